"""Every type and every name, in and out without loss."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from velostream.errors import UnsupportedError
from velostream.model.change import Mode, Write
from velostream.model.rows import rows_to_arrow
from velostream.model.schema import Column, Schema
from velostream.model.variant import is_variant
from velostream.tables.base import Snapshot
from velostream.testing.table_cases import NAMES, TYPES, content, equals, rows_of, write
from velostream.testing.table_suite.harness import TableHarness


class Values(TableHarness):
    @pytest.mark.parametrize("type_", TYPES)
    def test_every_type_comes_back_exactly(self, type_: str) -> None:
        if self.lacks("insert"):
            return
        schema = Schema.of(("n", "INT"), ("v", type_))
        table = self.make_table(schema)
        rows = rows_of(schema, *enumerate([None, *TYPES[type_]]))
        table.commit(Write(Mode.APPEND, rows))
        self._check_values(table.snapshot(), rows)
        if not self.lacks("durable"):
            self._check_values(self.reopen(table).snapshot(), rows)

    def test_variants_come_back_exactly_or_are_refused(self) -> None:
        schema = Schema.of(("n", "INT"), ("v", "VARIANT"), ("inside", "ARRAY<STRUCT<v: VARIANT>>"))
        if self.lacks("variants"):
            with pytest.raises(UnsupportedError, match='"v" is VARIANT'):
                self._table_class.refuse_variants(schema)
            return
        table = self.make_table(schema)
        values: list[Any] = [None, {"a": [1, Decimal("1.50"), "x", None], "b": {"c": True}}, [], "text", 2.5]
        records = [{"n": number, "v": value, "inside": [{"v": value}]} for number, value in enumerate(values)]
        rows = rows_to_arrow(records, schema)
        table.commit(Write(Mode.APPEND, rows))
        for snapshot in (table.snapshot(), self.reopen(table).snapshot()):
            self._check_values(snapshot, rows)
            assert is_variant(snapshot.scan().column("v").type)

    def _check_values(self, snapshot: Snapshot, rows: pa.Table) -> None:
        found = snapshot.scan()
        assert found.schema.types == rows.schema.types
        assert content(found) == content(rows)

    @pytest.mark.parametrize("type_", [name for name in TYPES if "<" not in name])
    def test_every_plain_type_can_be_a_key(self, type_: str) -> None:
        if self.lacks("insert", "upsert", "lookup"):
            return
        schema = Schema.of(("k", type_), ("v", "INT"), key=["k"])
        table = self.make_table(schema)
        values = [None, *TYPES[type_]]
        table.commit(write(Mode.APPEND, *((value, 1) for value in values), schema=schema))
        table.commit(write(Mode.UPSERT, *((value, number) for number, value in enumerate(values)), schema=schema))
        snapshot = table.snapshot()
        assert snapshot.count() == len(values)
        found = snapshot.lookup(pa.array(values, schema.columns[0].type), ["v"])
        assert found.column("v").to_pylist() == list(range(1, len(values)))
        for number, value in enumerate(values):
            row = snapshot.get(value)
            assert row is not None
            assert row["v"] == number

    def test_zeros_are_one_key_and_nans_another(self) -> None:
        if self.lacks("upsert", "lookup"):
            return
        schema = Schema.of(("k", "DOUBLE"), ("v", "STRING"), key=["k"])
        table = self.make_table(schema)
        table.commit(write(Mode.UPSERT, (0.0, "zero"), (math.nan, "nan"), (1.0, "one"), schema=schema))
        table.commit(write(Mode.UPSERT, (-0.0, "ZERO"), (-math.nan, "NAN"), schema=schema))
        snapshot = table.snapshot()
        found = snapshot.lookup(pa.array([0.0, -0.0, math.nan, 1.0]), ["v"])
        assert found.column("v").to_pylist() == ["ZERO", "ZERO", "NAN", "one"]
        assert snapshot.count() == 3

    def test_any_name_will_do(self) -> None:
        if self.lacks("insert", "upsert", "lookup", "conditions"):
            return
        schema = Schema(tuple(Column(name, pa.string()) for name in NAMES), NAMES[:2])
        table = self.make_table(schema)
        table.commit(write(Mode.UPSERT, NAMES, schema=schema))
        table.commit(write(Mode.UPSERT, [*NAMES[:2], *("changed" for _ in NAMES[2:])], schema=schema))
        snapshot = table.snapshot()
        row = snapshot.get(NAMES[:2])
        assert row is not None
        assert [row[name] for name in NAMES] == [*NAMES[:2], *("changed" for _ in NAMES[2:])]
        for name in NAMES:
            assert snapshot.count(equals(name, row[name], pa.string())) == 1
            assert snapshot.scan(columns=[name]).column_names == [name]
