"""Making a table, or finding out how what is there under its name is used."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from velostream.errors import AlreadyExistsError, NotFoundError, TableError
from velostream.model.options import Options
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.document_stores import check_columns, is_read_only, mismatch
from velostream.tables.redis.client import KIND, Connection
from velostream.tables.redis.columns import Packed
from velostream.tables.redis.layout import Layout

_HASHES_LOOKED_AT = 1000
_KEYS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class TableState:
    """What is kept about a table."""

    id: str
    incarnation: str
    version: int
    made: bool
    """We made the table, and DROP removes it; else it is a user's."""
    followed_from: int | None
    columns: str
    """The schema as text."""

    @property
    def schema(self) -> Schema:
        return Schema.from_json(json.loads(self.columns))

    @classmethod
    def of(cls, connection: Connection, layout: Layout) -> TableState | None:
        found = connection.ask(lambda client: client.hgetall(layout.meta))
        if not found:
            return None
        return cls(
            id=found[b"id"].decode(),
            incarnation=found[b"incarnation"].decode(),
            version=int(found[b"version"]),
            made=found[b"made"] == b"1",
            followed_from=int(found[b"followed_from"]) if b"followed_from" in found else None,
            columns=found[b"schema"].decode(),
        )


@dataclass(frozen=True)
class Opening:
    """How a table is to be used once it is open."""

    layout: Layout
    incarnation: str

    @classmethod
    def of(cls, spec: TableSpec, options: Options, connection: Connection) -> Opening:
        """Raises `StateError` with the difference when what is there has other columns."""
        name = options.text("table") or spec.name
        if not name or name.endswith(":"):
            raise TableError(f'no table can have the keys "{name}:…"', hint="WITH ('table' = …) gives another name")
        indexed = [column.strip() for column in (options.text("index") or "").split(",") if column.strip()]
        indexes = tuple(spec.schema.column(column).name for column in indexed)
        layout = Layout(spec.name, f"{name}:", spec.schema, own=True, indexes=indexes)
        state = TableState.of(connection, layout)
        theirs = [] if state is not None and state.made else connection.hashes(layout.prefix)
        if is_read_only(options):
            if state is None and not theirs:
                raise NotFoundError.of("table", name)
            return cls(_fitting(layout, spec, connection, state, theirs), "")
        if (state is not None and state.id != spec.id) or (state is None and theirs):
            match options.text("if.exists"):
                case "fail":
                    raise AlreadyExistsError.of("table", name)
                case "replace":
                    remove(connection, layout, everything=True)
                    state, theirs = None, []
        layout = _fitting(layout, spec, connection, state, theirs)
        if state is not None:
            return cls(layout, state.incarnation)
        values: dict[str, Any] = {
            "id": spec.id,
            "incarnation": uuid.uuid4().hex,
            "version": 0,
            "schema": json.dumps(spec.schema.to_json()),
            "made": int(layout.own),
        }
        return cls(layout, connection.ask(lambda client: _incarnation(client, layout.meta, values)))


def _incarnation(client: Any, meta: str, values: Mapping[str, Any]) -> str:
    """Keep these values about a table unless others are kept; of two openings at once the first one makes it."""
    with client.pipeline() as pipeline:
        for name, value in values.items():
            pipeline.hsetnx(meta, name, value)
        pipeline.hget(meta, "incarnation")
        kept: bytes = pipeline.execute()[-1]
    return kept.decode()


def remove(connection: Connection, layout: Layout, *, everything: bool) -> None:
    """Remove what is kept about a table, and with `everything` its rows."""
    ids = connection.hashes(layout.prefix) if everything else []
    names = [layout.prefix.encode() + id_ for id_ in ids]
    for start in range(0, len(names), _KEYS_AT_ONCE):
        part = names[start : start + _KEYS_AT_ONCE]
        connection.ask(lambda client, part=part: client.unlink(*part))  # type: ignore[misc]
    kept = [layout.epochs, layout.changes, layout.expiry, f"{layout.prefix}:rows", layout.meta]
    kept += map(layout.index, layout.indexes)
    connection.ask(lambda client: client.unlink(*kept))


def _fitting(
    layout: Layout, spec: TableSpec, connection: Connection, state: TableState | None, theirs: list[bytes]
) -> Layout:
    """The layout to use, checked against what is there."""
    if (state is not None and state.made) or (state is None and not theirs):
        if state is not None:
            check_columns(KIND, spec, state.schema)
        layout.check()
        return layout
    adopted = Layout(layout.name, layout.prefix, layout.schema, own=False, key_inside=False)
    adopted.check()
    known = () if state is None else state.schema.names
    return _looked_at(adopted, connection, theirs[:_HASHES_LOOKED_AT], known=known)


def _looked_at(layout: Layout, connection: Connection, ids: list[bytes], *, known: Sequence[str]) -> Layout:
    """What a look at some hashes tells; `StateError` with what tells against the columns asked for.

    A NULL is a field that isn't there, so `known` columns may be nowhere.
    """
    packed = Packed.of([pa.array(ids, pa.binary())])
    names = layout.schema.names
    _, lengths, data = connection.read(
        [layout.meta, ""], [layout.prefix, "ids", packed.lengths, packed.data, *map(layout.field, names)]
    )
    found, _, *values = Packed(lengths, data).columns(len(names) + 2)
    differences = []
    for name, column in zip(names, values, strict=True):
        if len(found) and column.null_count == len(found) and name not in (*known, *layout.schema.key):
            differences.append(f'column "{name}" {layout.schema.column(name).sql_type} is not there')
            continue
        try:
            layout.decode([name], [column], found)
        except TableError as error:
            differences.append(error.message)
    if differences:
        raise mismatch(KIND, layout.name, differences)
    key_inside = any(
        column.null_count < len(found) for name, column in zip(names, values, strict=True) if name in layout.schema.key
    )
    return Layout(layout.name, layout.prefix, layout.schema, own=False, key_inside=key_inside or not layout.schema.key)
