"""From the base and the log back to tables: read once, then built in one go per table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from velostream.errors import StateError
from velostream.model.schema import Schema
from velostream.tables.memory.base_files import Base, StoredRows, TableBase, read_base, read_rows
from velostream.tables.memory.chunks import widened
from velostream.tables.memory.conform import stored_schema
from velostream.tables.memory.generation import Delta, Generation
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.journal import ALIVE
from velostream.tables.memory.log import Log, Record
from velostream.tables.memory.settings import TableSettings

_ROW_ID = np.dtype("<i8")


@dataclass
class RecoveredTable:
    """A table as its creation, its base and the log have it so far."""

    id: str
    name: str
    schema: Schema
    options: dict[str, str]
    indexes: list[tuple[str, ...]] = field(default_factory=list)
    base: TableBase | None = None
    stored: StoredRows | None = None
    rows: list[pa.RecordBatch] = field(default_factory=list)
    added: list[tuple[int, int, int]] = field(default_factory=list)
    """Per batch of rows the number of its commit, how many there are, and when that was, in microseconds."""
    removed: list[tuple[int, Integers]] = field(default_factory=list)
    """Number of the commit, ids of the rows."""

    @cached_property
    def stored_schema(self) -> pa.Schema:
        return stored_schema(self.schema)

    def add_columns(self, schema: Schema) -> None:
        """The rows so far had fewer columns than those that follow."""
        self.schema, self.stored_schema = schema, stored_schema(schema)
        self.rows = [widened(batch, self.stored_schema) for batch in self.rows]
        if self.stored is not None:
            self.stored = replace(self.stored, rows=[widened(batch, self.stored_schema) for batch in self.stored.rows])

    def generation(self) -> Generation:
        """All of it as rows with their history."""
        empty = np.empty(0, dtype=np.int64)
        stored = self.stored or StoredRows([], empty, empty, empty)
        numbers, counts, times = np.array(self.added, dtype=np.int64).reshape(-1, 3).T
        before = np.zeros(len(stored.added), dtype=np.int64) if stored.added_at is None else stored.added_at
        generation = Generation.restored(
            self.stored_schema,
            self.schema.key,
            rows=[*stored.rows, *self.rows],
            renumbered=stored.ids,
            next_id=self.base.next_row_id if self.base else 0,
            added=np.concatenate((stored.added, np.repeat(numbers, counts))),
            removed=np.concatenate((stored.removed, np.full(int(counts.sum()), ALIVE))),
            removals=self.removed,
            floor=self.base.floor if self.base else 0,
            floor_version=self.base.floor_version if self.base else 0,
            added_at=np.concatenate((before, np.repeat(times, counts))),
            form=TableSettings.of(self.options, self.schema).form,
        )
        for columns in self.indexes:
            generation.index_on(columns)
        return generation


@dataclass
class Recovered:
    """What a directory holds."""

    base: Base
    sequence: int
    tables: dict[str, RecoveredTable]
    writers: dict[str, dict[str, Any]]
    times: list[tuple[int, int]] = field(default_factory=list)
    """Milliseconds and the numbers of the commits made in them."""


def recover(directory: Path, log: Log) -> Recovered:
    """Read the base and replay the log; `StateError` when either is damaged."""
    base = read_base(directory)
    state = Recovered(base, base.sequence, {}, dict(base.writers), list(base.times))
    for table in base.tables:
        schema = Schema.from_json(table.schema)
        state.tables[table.id] = RecoveredTable(
            table.id,
            table.name,
            schema,
            dict(table.options),
            [tuple(columns) for columns in table.indexes],
            table,
            read_rows(directory, table, stored_schema(schema)),
        )
    for record in log.records(base.first_segment):
        try:
            _replay(state, record)
        except (KeyError, ValueError, pa.ArrowException) as error:
            raise StateError.corrupt(str(directory), reason=f"a record of the log makes no sense: {error!r}") from error
    return state


def _replay(state: Recovered, record: Record) -> None:
    header = record.header
    match header["kind"]:
        case "commit":
            _replay_commit(state, record)
        case "create":
            state.tables[header["table"]] = RecoveredTable(
                header["table"], header["name"], Schema.from_json(header["schema"]), dict(header["options"])
            )
        case "columns":
            state.tables[header["table"]].add_columns(Schema.from_json(header["schema"]))
        case "drop":
            del state.tables[header["table"]]
        case "index":
            state.tables[header["table"]].indexes.append(tuple(header["columns"]))
        case "drop_index":
            gone = tuple(header["columns"])
            table = state.tables[header["table"]]
            table.indexes = [columns for columns in table.indexes if columns != gone]
        case "forget":
            state.writers.pop(header["writer"], None)
        case unknown:
            raise ValueError(f"unknown kind of record {unknown!r}")


def _replay_commit(state: Recovered, record: Record) -> None:
    number = record.header["sequence"]
    if number != state.sequence + 1:
        raise ValueError(f"commit {number} follows commit {state.sequence}")
    payloads = iter(record.payloads)
    committed_at = int(datetime.fromisoformat(record.header["at"]).timestamp() * 1_000_000)
    for change in record.header["tables"]:
        table = state.tables[change["table"]]
        for _ in range(change["batches"]):
            batch = pa.ipc.read_record_batch(next(payloads), table.stored_schema)
            table.rows.append(batch)
            table.added.append((number, batch.num_rows, committed_at))
        if change["removed"]:
            table.removed.append((number, np.frombuffer(next(payloads), dtype=_ROW_ID)))
    state.writers.update(record.header["writers"])
    state.sequence = number
    state.times.append((committed_at // 1000, number))


def commit_record(
    number: int,
    committed_at: str,
    deltas: Mapping[str, tuple[Delta, Integers]],
    writers: Mapping[str, Mapping[str, Any]],
) -> tuple[dict[str, Any], list[pa.Buffer]]:
    """Header and payloads of a commit. Beside each delta stand the ids of the rows it removes."""
    tables: list[dict[str, Any]] = []
    payloads: list[pa.Buffer] = []
    for table_id, (delta, removed_ids) in deltas.items():
        batches = [batch for batch in delta.rows.combine_chunks().to_batches() if batch.num_rows]
        payloads += [batch.serialize() for batch in batches]
        if len(removed_ids):
            payloads.append(pa.py_buffer(removed_ids.astype(_ROW_ID).tobytes()))
        tables.append({"table": table_id, "batches": len(batches), "removed": len(removed_ids)})
    header = {"kind": "commit", "sequence": number, "at": committed_at, "writers": writers, "tables": tables}
    return header, payloads
