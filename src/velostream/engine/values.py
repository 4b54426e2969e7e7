"""The rows of a VALUES clause: constants, typed as the columns they go to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

from velostream.engine.assignment import assign_column, assign_constant
from velostream.errors import ResolveError, ValidationError
from velostream.model.expression import Literal
from velostream.model.schema import Column, Schema
from velostream.sql.lower import NotLowerable, lower
from velostream.sql.parameters import Parameters, bind_all
from velostream.sql.places import place_of
from velostream.sql.statements import Insert

Compute = Callable[[exp.Select, NotLowerable], pa.Table]
"""Computes a SELECT without FROM; told why that is needed."""

_NO_COLUMNS = Schema(())


@dataclass(frozen=True)
class _Cell:
    """A value that Spark has to compute, and where it goes."""

    row: int
    column: int
    tree: exp.Expr
    reason: NotLowerable


def values_rows(
    table: str, schema: Schema, statement: Insert, parameters: Parameters | None, compute: Compute
) -> pa.Table:
    """The rows an INSERT gives, with the columns it names; the table adds NULLs for the others.

    Errors name the column. Values that aren't constants for us are given to `compute`, all of a statement at once.
    """
    columns = _columns_of(schema, statement)
    _check_lengths(table, columns, statement)
    cells = bind_all([cell for row in statement.values for cell in row], parameters, text=statement.text)
    rows = [cells[start : start + len(columns)] for start in range(0, len(cells), len(columns))]
    values: list[list[Any]] = [[None] * len(rows) for _ in columns]
    waiting: list[_Cell] = []
    for number, row in enumerate(rows):
        for position, (tree, column) in enumerate(zip(row, columns, strict=True)):
            try:
                values[position][number] = _constant(tree, column, table, statement.text)
            except NotLowerable as reason:
                waiting.append(_Cell(number, position, tree, reason))
    if waiting:
        computed = compute(
            exp.select(*(exp.alias_(cell.tree, f"_{n}") for n, cell in enumerate(waiting))), waiting[0].reason
        )
        for cell, array in zip(waiting, computed.columns, strict=True):
            assigned = assign_column(array, columns[cell.column], table=table)
            values[cell.column][cell.row] = assigned[0].as_py()
    arrays = [pa.array(column_values, column.type) for column_values, column in zip(values, columns, strict=True)]
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def _columns_of(schema: Schema, statement: Insert) -> Sequence[Column]:
    if not statement.columns:
        return schema.columns
    columns: list[Column] = []
    for name in statement.columns:
        column = schema.find(name)
        if column is None:
            raise ResolveError.unknown("column", name, known=schema.names, **_place_of_name(name, statement))
        if column in columns:
            raise ValidationError(
                f'column "{column.name}" is given twice', code="duplicate-column", **_place_of_name(name, statement)
            )
        columns.append(column)
    return columns


def _place_of_name(name: str, statement: Insert) -> dict[str, Any]:
    """The column list carries no places, so the first mention of the name after the bracket is pointed at."""
    text = statement.text
    at = max(0, text.lower().find(name.lower(), text.find("(")))
    line = text.count("\n", 0, at)
    column = at - (text.rfind("\n", 0, at) + 1) + 1
    return {
        "line": statement.place.line + line,
        "column": column if line else column + statement.place.column - 1,
        "text": text,
    }


def _check_lengths(table: str, columns: Sequence[Column], statement: Insert) -> None:
    for row in statement.values:
        if len(row) != len(columns):
            place = place_of(row[0])
            raise ValidationError(
                f'table "{table}" takes {len(columns)} values and {len(row)} are given',
                detail="columns: " + ", ".join(column.name for column in columns),
                hint=None if statement.columns else f"name the columns: INSERT INTO {table} (…) VALUES …",
                code="wrong-number-of-values",
                line=place.line,
                column=place.column,
                text=statement.text,
            )


def _constant(tree: exp.Expr, column: Column, table: str, text: str) -> Any:
    if pa.types.is_nested(column.type):
        return _nested(tree, column, table, text)
    try:
        lowered = lower(tree, _NO_COLUMNS, text=text)
    except ResolveError as error:
        error.detail = "a value is a constant"
        error.hint = "text is written in single quotes: '…'"
        raise
    if not isinstance(lowered, Literal):
        raise NotLowerable("Spark computes this value")
    return assign_constant(lowered, column, table=table)


def _nested(tree: exp.Expr, column: Column, table: str, text: str) -> Any:
    """The value of ARRAY(…), MAP(…), STRUCT(…) and NAMED_STRUCT(…), each part typed by the column."""
    type_ = column.type

    def part(tree: exp.Expr, part_type: pa.DataType) -> Any:
        return _constant(tree, Column(column.name, part_type), table, text)

    while isinstance(tree, exp.Paren):
        tree = tree.this
    if isinstance(tree, exp.Null):
        return None
    if pa.types.is_list(type_):
        return [part(item, type_.value_type) for item in _items(tree)]
    if pa.types.is_map(type_):
        pairs = [(part(key, type_.key_type), part(value, type_.item_type)) for key, value in _entries(tree)]
        keys = [key for key, _ in pairs]
        if None in keys or any(key in keys[:number] for number, key in enumerate(keys)):
            raise NotLowerable("Spark refuses these keys")
        return pairs
    if not pa.types.is_struct(type_):
        raise NotLowerable("Spark computes this value")
    given = _fields(tree, [field.name for field in type_])
    return {field.name: part(given[field.name.lower()], field.type) for field in type_}


def _items(tree: exp.Expr) -> list[exp.Expr]:
    if isinstance(tree, exp.Array) or _is_call(tree, "array"):
        return list(tree.expressions)
    raise NotLowerable("Spark computes this array")


def _entries(tree: exp.Expr) -> list[tuple[exp.Expr, exp.Expr]]:
    if isinstance(tree, exp.VarMap | exp.Map):
        keys, values = tree.args.get("keys"), tree.args.get("values")
        if isinstance(keys, exp.Array) and isinstance(values, exp.Array):
            return list(zip(keys.expressions, values.expressions, strict=True))
    if _is_call(tree, "map") and len(tree.expressions) % 2 == 0:
        return list(zip(tree.expressions[::2], tree.expressions[1::2], strict=True))
    raise NotLowerable("Spark computes this map")


def _fields(tree: exp.Expr, names: Sequence[str]) -> dict[str, exp.Expr]:
    """The values of a struct by lower-case field name; every field of the type, and no other."""
    lower_names = [name.lower() for name in names]
    if _is_call(tree, "struct") and len(tree.expressions) == len(names):
        return dict(zip(lower_names, tree.expressions, strict=True))
    if isinstance(tree, exp.Struct) and all(isinstance(item, exp.PropertyEQ) for item in tree.expressions):
        given = {item.name.lower(): item.expression for item in tree.expressions}
        positional = list(given) == [f"col{number}" for number in range(1, len(given) + 1)]
        if positional and len(given) == len(names):
            return dict(zip(lower_names, given.values(), strict=True))
    elif _is_call(tree, "named_struct") and len(tree.expressions) % 2 == 0:
        given = {
            key.name.lower(): value for key, value in zip(tree.expressions[::2], tree.expressions[1::2], strict=True)
        }
    else:
        given = {key.name.lower(): value for key, value in _entries(tree)}
    if set(given) != set(lower_names):
        raise NotLowerable("Spark brings the fields together")
    return given


def _is_call(tree: exp.Expr, name: str) -> bool:
    return isinstance(tree, exp.Anonymous) and str(tree.this).lower() == name
