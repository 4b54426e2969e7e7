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
from velostream.tables.base import Origin, TableSpec
from velostream.tables.documents import dropped
from velostream.tables.redis.client import KIND, Connection
from velostream.tables.redis.columns import Packed
from velostream.tables.redis.layout import Layout
from velostream.tables.redis.state import TableState, check_index, create_index, remove
from velostream.tables.stored import check_columns, is_read_only, mismatch

_HASHES_LOOKED_AT = 1000


@dataclass(frozen=True)
class Opening:
    """How a table is to be used once it is open."""

    layout: Layout
    incarnation: str
    origin: Origin | None

    @classmethod
    def of(cls, spec: TableSpec, options: Options, connection: Connection) -> Opening:
        """Raises `StateError` with the difference when what is there has other columns."""
        name = options.text("table") or spec.name
        if not name or name.endswith(":"):
            raise TableError(f'no table can have the keys "{name}:…"', hint="WITH ('table' = …) gives another name")
        layout = Layout(spec.name, f"{name}:", spec.schema, own=True)
        state = TableState.of(connection, layout)
        theirs = [] if state is not None and state.made else connection.hashes(layout.prefix)
        if is_read_only(options):
            if state is None and not theirs:
                raise NotFoundError.of("table", name)
            origin = None if state is None else Origin(state.id, state.made)
            return cls(_fitting(layout, spec, connection, state, theirs), "", origin)
        indexed = [column.strip() for column in (options.text("index") or "").split(",")]
        columns = [spec.schema.column(column).name for column in indexed if column]
        ttl = options.duration("ttl")
        if (state is not None and state.id != spec.id) or (state is None and theirs):
            match options.text("if.exists"):
                case "fail":
                    raise AlreadyExistsError.of("table", name)
                case "replace":
                    layout.check()
                    for column in columns:
                        check_index(layout, column)
                    remove(connection, layout, state, everything=True)
                    state, theirs = None, []
        layout = _fitting(layout, spec, connection, state, theirs)
        for column in columns:
            check_index(layout, column)
        incarnation = cls._incarnation(spec, layout, connection) if state is None else state.incarnation
        if ttl is not None:
            milliseconds = max(1, int(ttl.total_seconds() * 1000))
            connection.ask(lambda client: client.hset(layout.meta, "ttl", milliseconds))
        for column in columns:
            create_index(connection, layout, column)
        entered = TableState.of(connection, layout)
        if entered is None:
            raise dropped(spec.name)
        return cls(layout, incarnation, Origin(entered.id, entered.made))

    @staticmethod
    def _incarnation(spec: TableSpec, layout: Layout, connection: Connection) -> str:
        values: dict[str, Any] = {
            "id": spec.id,
            "incarnation": uuid.uuid4().hex,
            "version": 0,
            "schema": json.dumps(spec.schema.to_json()),
            "made": int(layout.own),
        }
        return connection.ask(lambda client: _kept(client, layout.meta, values))


def _kept(client: Any, meta: str, values: Mapping[str, Any]) -> str:
    """Keep these values about a table unless others are kept, and give the incarnation that is.

    Of two openings at once the first one makes the table.
    """
    with client.pipeline() as pipeline:
        for name, value in values.items():
            pipeline.hsetnx(meta, name, value)
        pipeline.hget(meta, "incarnation")
        kept: bytes = pipeline.execute()[-1]
    return kept.decode()


def _fitting(
    layout: Layout, spec: TableSpec, connection: Connection, state: TableState | None, theirs: list[bytes]
) -> Layout:
    """The layout to use, checked against what is there."""
    if (state is not None and state.made) or (state is None and not theirs):
        if state is not None:
            check_columns(KIND, spec.name, wanted=spec.schema, there=state.schema)
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
        [layout.meta, ""], [layout.prefix, "ids", packed.lengths, packed.data, "i", *map(layout.field, names)]
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
    if not differences and layout.schema.key:
        keys = layout.decode(layout.schema.key, [found], found)
        other = next(
            (id_ for id_, ours in zip(found.to_pylist(), layout.key_ids(keys), strict=True) if id_ != ours), None
        )
        if other is not None:
            differences.append(f"the key {other!r} is written otherwise than a value of its column is")
    if differences:
        raise mismatch(KIND, layout.name, differences)
    key_inside = any(
        column.null_count < len(found) for name, column in zip(names, values, strict=True) if name in layout.schema.key
    )
    return Layout(layout.name, layout.prefix, layout.schema, own=False, key_inside=key_inside or not layout.schema.key)
