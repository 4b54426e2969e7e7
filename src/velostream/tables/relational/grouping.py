"""Groups worked out by a relational store, where its counts, sums and extremes are provably Spark's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from velostream.model.grouping import Grouping, Measure, MeasureKind
from velostream.tables.relational.codec import Decoder, decode_as
from velostream.tables.relational.condition import RelationalCondition
from velostream.tables.relational.dialect import Dialect
from velostream.tables.relational.layout import Layout, StoredColumn


@dataclass(frozen=True, slots=True)
class GroupingStatement:
    """A grouping as a SELECT."""

    text: str
    parameters: tuple[Any, ...]
    schema: pa.Schema
    decoders: tuple[Decoder, ...]
    """One for each column."""

    def decoded(self, rows: Iterator[Sequence[Any]]) -> pa.Table | None:
        """The answer; None when a value in it is none of ours: an error to be found by reading the rows."""
        found = list(zip(*rows, strict=True)) or [()] * len(self.decoders)
        try:
            columns = [decode(values) for decode, values in zip(self.decoders, found, strict=True)]
            return pa.Table.from_arrays(columns, schema=self.schema)
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class _Selected:
    """One item of the SELECT."""

    text: str
    decode: Decoder


def compile_grouping(
    grouping: Grouping, condition: RelationalCondition, *, dialect: Dialect, layout: Layout
) -> GroupingStatement | None:
    """The statement; None when the store can't be trusted with a part of it, or with the condition."""
    groups = layout.select(grouping.by)
    terms = [dialect.group_term(column, dialect.quote(column.stored_name)) for column in groups]
    schema = grouping.answer_schema(layout.schema)
    items: list[_Selected | None] = [
        _Selected(_representative(column, term, dialect), column.codec.decode)
        for column, term in zip(groups, terms, strict=True)
    ]
    items += [
        _measured(measure, field.type, dialect=dialect, layout=layout)
        for measure, field in zip(grouping.measures, list(schema)[len(groups) :], strict=True)
    ]
    selected = [item for item in items if item is not None]
    if condition.remainder is not None or None in terms or len(selected) < len(items):
        return None
    text = f"SELECT {', '.join(item.text for item in selected)} FROM {layout.quoted}"
    if condition.text:
        text += f" WHERE {condition.text}"
    if terms:
        text += f" GROUP BY {', '.join(map(str, terms))}"
    return GroupingStatement(text, condition.parameters, schema, tuple(item.decode for item in selected))


def is_summed_exactly(type_: pa.DataType) -> bool:
    """Whether sums of the type don't depend on the order of the values."""
    return bool(pa.types.is_integer(type_) or pa.types.is_decimal(type_))


def _measured(measure: Measure, type_: pa.DataType, *, dialect: Dialect, layout: Layout) -> _Selected | None:
    """The measure, whose values in the answer are of a type; None where the store isn't to be asked."""
    if measure.column is None:
        return _Selected("COUNT(*)", decode_as(type_))
    (column,) = layout.select([measure.column])
    name = dialect.quote(column.stored_name)
    text: str | None
    match measure.kind:
        case MeasureKind.COUNT:
            return _Selected(f"COUNT({name})", decode_as(type_))
        case MeasureKind.DISTINCT:
            term = dialect.group_term(column, name)
            return None if term is None else _Selected(f"COUNT(DISTINCT {term})", decode_as(type_))
        case MeasureKind.SUM:
            text = dialect.sum_expression(layout, column, name) if is_summed_exactly(column.codec.type) else None
            return None if text is None else _Selected(text, _sums(type_, dialect))
        case MeasureKind.MIN | MeasureKind.MAX:
            text = _extreme(measure.kind, column, name)
            return None if text is None else _Selected(text, column.codec.decode)


def _sums(type_: pa.DataType, dialect: Dialect) -> Decoder:
    return lambda values: pa.array([None if value is None else dialect.exact_sum(value) for value in values], type_)


def _extreme(kind: MeasureKind, column: StoredColumn, name: str) -> str | None:
    """Only where what the store compares is still a value of the column."""
    type_, order = column.codec.type, column.codec.order
    plain = is_summed_exactly(type_) or pa.types.is_date(type_) or pa.types.is_timestamp(type_)
    if order is None or not ((plain and order == "{}") or pa.types.is_string(type_)):
        return None
    return f"{kind.upper()}({order.format(name)})"


def _representative(column: StoredColumn, term: str | None, dialect: Dialect) -> str:
    """One of the values of a group, which are all equal."""
    name = dialect.quote(column.stored_name)
    return name if term == name else f"MIN({name})"
