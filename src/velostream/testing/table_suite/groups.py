"""Groups that a store works out itself: the same as those of its rows."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from velostream.engine.grouping import columns_read, grouped
from velostream.model.expression import Call, ColumnRef, Expression, Literal
from velostream.model.grouping import Grouping, Measure, MeasureKind
from velostream.model.schema import Schema
from velostream.tables.base import Table
from velostream.testing.table_suite.harness import TableHarness

_SCHEMA = Schema.of(
    ("id", "BIGINT"),
    ("name", "STRING"),
    ("day", "DATE"),
    ("small", "INT"),
    ("large", "BIGINT"),
    ("price", "DECIMAL(18,2)"),
    ("flag", "BOOLEAN"),
    key=["id"],
)
_GROUPS = ("name", "day", "small", "price", "flag")
_CONDITIONS: tuple[Expression | None, ...] = (
    None,
    Call(">", (ColumnRef("small"), Literal(0, pa.int32()))),
    Call("=", (ColumnRef("name"), Literal("nobody", pa.string()))),
    Call("like", (ColumnRef("name"), Literal("_", pa.string()))),
)
_MEASURES = (
    Measure(MeasureKind.COUNT),
    *(Measure(MeasureKind.COUNT, name) for name in _GROUPS),
    *(Measure(MeasureKind.SUM, name) for name in ("small", "price")),
    *(Measure(kind, name) for kind in (MeasureKind.MIN, MeasureKind.MAX) for name in ("name", "day", "large", "price")),
)


class Groups(TableHarness):
    def test_groups_of_the_store_are_those_of_its_rows(self) -> None:
        if not self.has_rows or self.lacks("conditions"):
            return
        table = self.filled(_SCHEMA, *_rows())
        groups = [(), *((name,) for name in _GROUPS), ("name", "day"), ("small", "flag", "price")]
        for condition in _CONDITIONS:
            _agrees(table, Grouping(_MEASURES, (), condition))
            _agrees(table, Grouping(_MEASURES, ("name",), condition))
        for by in groups:
            _agrees(table, Grouping(_MEASURES, by))
            # Beyond 64 bits.
            _agrees(table, Grouping((Measure(MeasureKind.SUM, "large"),), by))
            for name in ("name", "price"):
                _agrees(table, Grouping((Measure(MeasureKind.DISTINCT, name),), by))

    def test_a_table_without_rows_has_one_group_or_none(self) -> None:
        if not self.has_rows or self.lacks("conditions"):
            return
        table = self.make_table(_SCHEMA)
        _agrees(table, Grouping(_MEASURES))
        _agrees(table, Grouping((Measure(MeasureKind.DISTINCT, "name"),)))
        _agrees(table, Grouping(_MEASURES, ("name",)))


def _agrees(table: Table, grouping: Grouping) -> None:
    """What the store says, if it says anything, is what the rows say; and it is announced."""
    snapshot = table.snapshot()
    told = snapshot.group(grouping)
    if told is None:
        return
    assert table.compile_grouping(grouping) is not None
    rows = snapshot.scan(grouping.condition, columns_read(grouping))
    if grouping.by:
        expected = grouped(rows, grouping, table.schema)
    else:
        # Arrow's groups need a column, and without rows there is still a group.
        one = pa.table(
            {**{name: rows.column(name) for name in rows.column_names}, "all": pa.nulls(len(rows), pa.int8())}
        )
        whole = Grouping(grouping.measures, ("all",))
        found = grouped(one, whole, Schema((*table.schema.columns, *Schema.of(("all", "TINYINT")).columns)))
        expected = found.drop_columns(["g0"]) if found.num_rows else _nothing(grouping)
    assert told.schema == grouping.answer_schema(table.schema)
    assert sorted(map(repr, told.to_pylist())) == sorted(map(repr, expected.to_pylist()))


def _nothing(grouping: Grouping) -> pa.Table:
    counted = (MeasureKind.COUNT, MeasureKind.DISTINCT)
    row = {f"m{place}": 0 if one.kind in counted else None for place, one in enumerate(grouping.measures)}
    return pa.Table.from_pylist([row], grouping.answer_schema(_SCHEMA))


def _rows() -> list[tuple[Any, ...]]:
    chance = random.Random(7)  # noqa: S311 - no secret
    values: list[list[Any]] = [
        [None, "", "a", "A", "é", "z" * 2000, "z" * 2000 + "!"],
        [None, date(1971, 12, 31), date(2024, 2, 29), date(2024, 3, 1)],
        [None, -3, 0, 5],
        [None, 2**62, -(2**62), 2**63 - 1, 1],
        [None, Decimal("0.10"), Decimal("-0.50"), Decimal("9999999999999999.99")],
        [None, True, False],
    ]
    return [(number, *map(chance.choice, values)) for number in range(200)]
