"""`con.register`: data from Python as a table to query and join."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.engine.catalog import Entry, EntryKind
from velostream.engine.options import MEMORY
from velostream.engine.relations import arrow_result
from velostream.errors import AlreadyExistsError, TableError, ValidationError
from velostream.model.change import Mode, Write
from velostream.model.rows import rows_to_arrow
from velostream.model.schema import Schema
from velostream.sql.statements import Create, Name, ObjectKind, Statement

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext


def register(
    context: EngineContext,
    name: str,
    data: Any,
    *,
    key: Sequence[str] = (),
    execute: Callable[[Statement], object],
) -> Entry:
    """Make the data a table of that name; where there is one with these columns already, make it its content.

    What reads the table follows the difference. A table with other columns is replaced, which is refused while others
    read it, and where the table is in a store: rows there are given up only by a statement that says so.
    """
    rows = _arrow(data)
    schema = Schema.from_arrow(rows.schema)
    if not schema.columns:
        raise ValidationError(f'data for table "{name}" has no columns')
    schema = schema.with_key(schema.column(column).name for column in key)
    rows = rows_to_arrow(rows, schema)
    existing = context.catalog.find(name)
    if existing is not None and existing.kind is not EntryKind.TABLE:
        raise AlreadyExistsError.of(existing.kind, existing.name)
    if existing is not None and existing.store != MEMORY:
        raise AlreadyExistsError(
            f'table "{existing.name}" is in {existing.store}; register would put the data in place of its rows there',
            hint="register the data under another name, or write it to the table: INSERT, UPSERT",
        )
    if existing is None or not _same_columns(existing.schema, schema):
        execute(Create(what=ObjectKind.TABLE, name=Name(name), columns=schema, or_replace=True))
        existing = context.catalog.find(name)
    if existing is None:
        raise TableError(f'table "{name}" was dropped while it was registered')
    context.table_of(existing).commit(Write(Mode.REPLACE, rows))
    return existing


def _arrow(data: Any) -> pa.Table:
    from_spark = getattr(data, "toArrow", None)
    if hasattr(data, "_collect_as_arrow"):
        # A frame of Spark in this process: toArrow would cast fields of structs to NOT NULL.
        return arrow_result(data)
    try:
        return rows_to_arrow(data if from_spark is None else from_spark())
    except (TypeError, AttributeError) as error:
        raise ValidationError(
            f"{type(data).__name__} is no data for a table",
            hint="a list of dicts, Arrow, pandas or Polars data, or a Spark DataFrame",
        ) from error


def _same_columns(known: Schema | None, given: Schema) -> bool:
    """Equal names, types and key; NOT NULL is the table's own business."""
    return known is not None and (
        [(column.name, column.type) for column in known.columns] == [(c.name, c.type) for c in given.columns]
        and known.key == given.key
    )
