"""Partition columns of a Delta table: their values are in the log, one set of them per file, and not in the files."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from velostream.errors import OptionError, TableError
from velostream.model.schema import Schema

_PLACE = "_place"


def check_partition_columns(given: str, schema: Schema) -> tuple[str, ...]:
    """The columns that the option `partition.by` names; `OptionError` for one that can't be."""
    names = []
    for name in (part.strip() for part in given.split(",")):
        column = schema.find(name)
        if column is None or not is_partitionable(column.type):
            expected = "columns of whole numbers, texts, dates or truth values, such as a,b"
            raise OptionError.value("partition.by", given, expected=expected)
        names.append(column.name)
    if len(names) == len(schema.names):
        raise OptionError.value("partition.by", given, expected="fewer columns than the table has")
    return tuple(names)


def is_partitionable(type_: pa.DataType) -> bool:
    """Whether we write values of the type to the log as every reader of Delta understands them."""
    return bool(
        pa.types.is_integer(type_) or pa.types.is_string(type_) or pa.types.is_date(type_) or pa.types.is_boolean(type_)
    )


def partition_text(value: Any) -> str | None:
    """A value as the log has it."""
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case date() if not isinstance(value, datetime):
            return value.isoformat()
        case _:
            return str(value)


def by_partition(rows: pa.Table, names: Sequence[str], *, table: str) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """The rows of each partition, in their order, without the partition columns."""
    if not names:
        yield (), rows
        return
    for name in names:
        if pa.types.is_string(rows.schema.field(name).type) and "" in rows.column(name).unique().to_pylist():
            # To every reader of Delta the empty text is NULL there.
            raise TableError(
                f'column "{name}" of table "{table}" is a partition column and can\'t hold the empty text',
                hint="NULL instead, or a table that is not partitioned by it",
                code="wrong-type",
            )
    placed = rows.select(list(names)).append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
    groups = placed.group_by(list(names), use_threads=False).aggregate([(_PLACE, "list")])
    rest = rows.drop_columns(list(names))
    values = zip(*(groups.column(name).to_pylist() for name in names), strict=True)
    for held, places in zip(values, groups.column(f"{_PLACE}_list"), strict=True):
        yield tuple(held), rest.take(places.values)


def guarantee(names: Sequence[str], values: Sequence[Any], schema: pa.Schema) -> ds.Expression | None:
    """What holds for all rows of a file; Arrow's scanner fills the columns from it and leaves whole files out by it."""
    if not names:
        return None
    held = [
        ds.field(name).is_null()
        if value is None
        else ds.field(name) == ds.scalar(pa.scalar(value, schema.field(name).type))
        for name, value in zip(names, values, strict=True)
    ]
    return functools.reduce(operator.and_, held)
