"""The simple rung of the table seam: a kind whose store holds a table as one piece of bytes.

A file, an object, a key of some server: whatever can give a piece of bytes and replace it as a whole becomes a kind by
two methods. Its tables live in memory and are written anew by every commit, so they are as good as any for what fits
there and is written by one process at a time.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar, Self

import pyarrow as pa

from velostream.errors import StateError, UnsupportedError
from velostream.model.change import ChangeBatch, Epoch, Mode, Write
from velostream.model.expression import Expression
from velostream.model.options import Options
from velostream.model.schema import Schema
from velostream.tables.base import CompiledCondition, KeyValue, Row, Snapshot, Table, TableCapabilities, TableSpec
from velostream.tables.memory.table import MemoryTable

_NOTE = b"velostream"
"""Where the Arrow stream has what isn't rows."""


class SimpleTable(Table):
    """Subclass it, set `kind` and `options`, and give `load` and `save`.

    An `__init__` of your own prepares what these two need and then calls this one, which loads the table.
    """

    capabilities: ClassVar[TableCapabilities] = TableCapabilities(
        insert=True, update=True, delete=True, upsert=True, lookup=True, conditions=True, epochs=True, durable=True
    )

    def __init__(self, spec: TableSpec) -> None:
        Options(spec.options, self.options)
        self.name = spec.name
        self.schema = spec.schema
        self._rows = MemoryTable.open(TableSpec(spec.id, spec.name, spec.schema))
        stored = self.load()
        if stored is None:
            self._note = _Note()
            self.save(_encode(self._rows.snapshot().scan(), self._note, self.schema))
        else:
            rows, self._note = _decode(stored, spec)
            self._rows.commit(Write(Mode.APPEND, rows))
        self._newest = _NumberedSnapshot(self._rows.snapshot(), self._note.version)

    @abstractmethod
    def load(self) -> bytes | None:
        """What `save` was given last, by whatever process; None when there is nothing yet."""

    @abstractmethod
    def save(self, content: bytes) -> None:
        """Replace what is stored, all of it or, when this raises, nothing. On return it is safe from a crash."""

    @classmethod
    def open(cls, spec: TableSpec) -> Self:
        return cls(spec)

    @property
    def version(self) -> int:
        return self._newest.version

    def commit(self, write: Write, epoch: Epoch | None = None) -> int:
        with self._rows.exclusive():
            if epoch is not None and epoch.number <= self._note.epochs.get(epoch.writer, -1):
                return self.version
            before = self._rows.snapshot()
            self._rows.commit(write)
            after = self._rows.snapshot()
            changed = after.version != before.version
            if changed or epoch is not None:
                self._save(before, after, self._note.after(epoch, changed=changed))
            return self.version

    def exclusive(self) -> AbstractContextManager[None]:
        return self._rows.exclusive()

    def snapshot(self, version: int | None = None) -> Snapshot:
        newest = self._newest
        if version not in (None, newest.version):
            raise UnsupportedError.capability(self.kind, "versions")
        return newest

    def changes(self, since: int, until: int | None = None) -> ChangeBatch:
        raise UnsupportedError.capability(self.kind, "changes")

    def compile_condition(self, condition: Expression) -> CompiledCondition:
        return self._rows.compile_condition(condition)

    def _save(self, before: Snapshot, after: Snapshot, note: _Note) -> None:
        """Store what a commit has led to; readers see it once it is."""
        try:
            self.save(_encode(after.scan(), note, self.schema))
        except BaseException:
            self._rows.commit(Write(Mode.REPLACE, before.scan()))
            raise
        self._note = note
        self._newest = _NumberedSnapshot(after, note.version)


@dataclass(frozen=True, slots=True)
class _Note:
    """What is stored with the rows."""

    version: int = 0
    epochs: Mapping[str, int] = field(default_factory=dict)

    def after(self, epoch: Epoch | None, *, changed: bool) -> _Note:
        epochs = self.epochs if epoch is None else {**self.epochs, epoch.writer: epoch.number}
        return _Note(self.version + changed, epochs)


class _NumberedSnapshot(Snapshot):
    """A snapshot of the rows under the number that the stored table gives it."""

    def __init__(self, rows: Snapshot, version: int) -> None:
        self.schema = rows.schema
        self.version = version
        self._rows = rows

    def get(self, key: KeyValue) -> Row | None:
        return self._rows.get(key)

    def contains(self, key: KeyValue) -> bool:
        return self._rows.contains(key)

    def lookup(self, keys: pa.Array | pa.ChunkedArray | pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        return self._rows.lookup(keys, columns)

    def lookup_by(
        self,
        on: Sequence[str],
        keys: pa.Array | pa.ChunkedArray | pa.Table,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        return self._rows.lookup_by(on, keys, columns)

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        return self._rows.scan(condition, columns)

    def count(self, condition: Expression | None = None) -> int:
        return self._rows.count(condition)

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        return self._rows.batches(size, offset)


def _encode(rows: pa.Table, note: _Note, schema: Schema) -> bytes:
    """A table as an Arrow stream."""
    text = json.dumps({"version": note.version, "epochs": dict(note.epochs), "schema": schema.to_json()})
    noted = rows.replace_schema_metadata({_NOTE: text.encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, noted.schema) as writer:
        writer.write_table(noted)
    return bytes(sink.getvalue())


def _decode(stored: bytes, spec: TableSpec) -> tuple[pa.Table, _Note]:
    """Raises `StateError` when it isn't the content of this table."""
    try:
        with pa.ipc.open_stream(stored) as reader:
            rows = reader.read_all()
        note = json.loads((rows.schema.metadata or {})[_NOTE])
    except (pa.ArrowInvalid, KeyError) as error:
        raise StateError(
            f'what is stored for table "{spec.name}" is no table', detail=str(error), code="state-corrupt"
        ) from error
    if note["schema"] != spec.schema.to_json():
        raise StateError(
            f'table "{spec.name}" is stored with other columns',
            detail=f"stored: {', '.join(name for name, _, _ in note['schema']['columns'])}",
            code="schema-mismatch",
        )
    return rows.replace_schema_metadata(None), _Note(note["version"], note["epochs"])
