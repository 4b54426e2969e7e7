"""Groups worked out by MongoDB, as an aggregation pipeline, where its answer is provably Spark's.

In a collection of ours every field is of its column's type. In one of the user's a field may be anything; so each group
also counts the documents whose fields are of other types, and if there are any the rows are read instead, which says
what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from velostream.model.grouping import Grouping, Measure, MeasureKind
from velostream.tables.mongodb.condition import MongodbCondition
from velostream.tables.mongodb.layout import Document, Layout
from velostream.tables.mongodb.values import DIGITS_OF_DECIMAL128, Values

_DIGITS_OF_A_COUNT = 12
"""So many rows have a sum that a Decimal128 still holds exactly."""
_STRANGERS = "strangers"
_BSON_TYPES: Mapping[pa.DataType, tuple[str, ...]] = {
    pa.int64(): ("int", "long"),
    pa.int32(): ("int",),
    pa.string(): ("string",),
    pa.bool_(): ("bool",),
}
"""Of fields in a user's collection that hold values of a column's type and no others."""


@dataclass(frozen=True)
class GroupingPipeline:
    """A grouping as the stages of an aggregation."""

    stages: tuple[Document, ...]
    grouping: Grouping
    layout: Layout

    def decoded(self, documents: Sequence[Document]) -> pa.Table | None:
        """The answer; None when it has to be worked out from the rows."""
        if any(document.get(_STRANGERS) for document in documents):
            return None
        schema = self.grouping.answer_schema(self.layout.schema)
        if not documents and not self.grouping.by:
            documents = [{"_id": None}]
        try:
            columns = [
                self.layout.values[self._named(name)].decode([document["_id"][f"g{place}"] for document in documents])
                for place, name in enumerate(self.grouping.by)
            ]
            for place, measure in enumerate(self.grouping.measures):
                values = [_measured(document, place, measure.kind) for document in documents]
                if measure.kind in (MeasureKind.MIN, MeasureKind.MAX) and measure.column is not None:
                    columns.append(self.layout.values[self._named(measure.column)].decode(values))
                else:
                    columns.append(pa.array(values, schema.field(f"m{place}").type))
            return pa.Table.from_arrays(columns, schema=schema)
        except (pa.ArrowException, ArithmeticError, TypeError, ValueError):
            return None

    def _named(self, column: str) -> str:
        return self.layout.schema.column(column).name


def compile_grouping(
    grouping: Grouping, condition: MongodbCondition | None, *, layout: Layout
) -> GroupingPipeline | None:
    """The pipeline; None when the server can't be trusted with a part of it, or with the condition."""
    by = [layout.schema.column(name).name for name in grouping.by]
    measured = [
        None if measure.column is None else layout.schema.column(measure.column).name for measure in grouping.measures
    ]
    used = {*by, *(name for name in measured if name is not None)}
    if (condition is not None and condition.rest is not None) or not all(_is_known(name, layout) for name in used):
        return None
    if not all(_is_groupable(layout.values[name]) for name in by):
        return None
    stages: list[Document] = [] if condition is None else [{"$match": condition.filter}]
    group: Document = {f"g{place}": _value(name, layout) for place, name in enumerate(by)}
    strangers: Document = {} if layout.own else {_STRANGERS: {"$sum": _is_strange(used, layout)}}
    if any(measure.kind is MeasureKind.DISTINCT for measure in grouping.measures):
        ((_, name), *others) = zip(grouping.measures, measured, strict=True)
        # With other measures next to it the server would have to keep all different values of a group in memory.
        if others or name is None or not _is_groupable(layout.values[name]):
            return None
        stages += [
            {"$group": {"_id": {**group, "value": _value(name, layout)}, **strangers}},
            {
                "$group": {
                    "_id": {field: f"$_id.{field}" for field in group} or None,
                    "m0": {"$sum": {"$cond": [{"$eq": ["$_id.value", None]}, 0, 1]}},
                    **({} if layout.own else {_STRANGERS: {"$sum": f"${_STRANGERS}"}}),
                }
            },
        ]
        return GroupingPipeline(tuple(stages), grouping, layout)
    accumulated: Document = {}
    for place, (measure, name) in enumerate(zip(grouping.measures, measured, strict=True)):
        found = _accumulators(place, measure, name, layout)
        if found is None:
            return None
        accumulated |= found
    stages.append({"$group": {"_id": group or None, **accumulated, **strangers}})
    return GroupingPipeline(tuple(stages), grouping, layout)


def _accumulators(place: int, measure: Measure, name: str | None, layout: Layout) -> Document | None:
    if name is None:
        return {f"m{place}": {"$sum": 1}}
    values = layout.values[name]
    counted = {"$sum": {"$cond": [{"$eq": [_value(name, layout), None]}, 0, 1]}}
    match measure.kind:
        case MeasureKind.COUNT:
            return {f"m{place}": counted}
        case MeasureKind.SUM if _is_summed_exactly(values.type):
            # The server's sum of nothing is 0.
            return {f"m{place}": {"$sum": f"${layout.paths[name]}"}, f"n{place}": counted}
        case MeasureKind.MIN | MeasureKind.MAX if values.ordered and not pa.types.is_floating(values.type):
            return {f"m{place}": {f"${measure.kind}": f"${layout.paths[name]}"}}
    return None


def _measured(document: Document, place: int, kind: MeasureKind) -> Any:
    """A measure of a group; what isn't in the document is of a group without rows."""
    found: Any = document.get(f"m{place}")
    if kind in (MeasureKind.COUNT, MeasureKind.DISTINCT):
        return found or 0
    if kind is not MeasureKind.SUM:
        return found
    if not document.get(f"n{place}"):
        return None
    if isinstance(found, float):
        raise TypeError("a sum beyond 64 bits is rounded")
    return Decimal(found) if isinstance(found, int) else found.to_decimal()


def _value(name: str, layout: Layout) -> Document:
    """The value of a column; a field that isn't there is a NULL."""
    return {"$ifNull": [f"${layout.paths[name]}", None]}


def _is_known(name: str, layout: Layout) -> bool:
    return layout.own or layout.values[name].type in _BSON_TYPES


def _is_strange(names: set[str], layout: Layout) -> Document:
    fit = [
        {"$in": [{"$type": f"${layout.paths[name]}"}, ["missing", "null", *_BSON_TYPES[layout.values[name].type]]]}
        for name in sorted(names)
    ]
    return {"$cond": [{"$and": fit}, 0, 1]}


def _is_groupable(values: Values) -> bool:
    return values.comparable and not pa.types.is_floating(values.type)


def _is_summed_exactly(type_: pa.DataType) -> bool:
    if pa.types.is_decimal(type_):
        return bool(type_.precision + _DIGITS_OF_A_COUNT <= DIGITS_OF_DECIMAL128)
    return bool(pa.types.is_integer(type_))
