"""Conditions: whoever evaluates them, the store or we, the answer is the one Spark gives."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from velostream.errors import NotFoundError, VelostreamError
from velostream.model.change import Mode, Write
from velostream.model.expression import Call, ColumnRef, Expression, Literal
from velostream.tables.base import Table
from velostream.tables.memory.evaluate import CannotCompile, evaluate_expression
from velostream.testing.table_cases import KEYED, equals, write
from velostream.testing.table_conditions import CONDITIONS, TRICKY, tricky_rows
from velostream.testing.table_suite.harness import TableHarness


class Conditions(TableHarness):
    def test_conditions(self) -> None:  # B15, B16
        if not self.has_rows or self.lacks("conditions"):
            return
        rows = [(1, "a", Decimal("1.50")), (2, "b", None), (3, None, Decimal("2.00")), (4, "a%", Decimal("1.49"))]
        table = self.filled(KEYED, *rows)
        price = pa.decimal128(10, 2)
        name, amount = ColumnRef("name"), ColumnRef("Amount")
        cases: list[tuple[Expression, list[int]]] = [
            (equals("id", 3, pa.int64()), [3]),
            (equals("name", "a", pa.string()), [1]),
            (Call("not", (equals("name", "a", pa.string()),)), [2, 4]),
            (Call(">=", (amount, Literal(Decimal("1.50"), price))), [1, 3]),
            (Call("is_null", (amount,)), [2]),
            (Call("<=>", (name, Literal(None, pa.string()))), [3]),
            (Call("in", (name, Literal("a", pa.string()), Literal("b", pa.string()))), [1, 2]),
            (Call("like", (name, Literal("a_", pa.string()))), [4]),
            (Call("and", (Call("is_null", (name,)), equals("id", 3, pa.int64()))), [3]),
            (Call("or", (Call("is_null", (name,)), equals("id", 1, pa.int64()))), [1, 3]),
            (equals("name", "a' OR '1'='1", pa.string()), []),
        ]
        for condition, expected in cases:
            found = table.snapshot().scan(condition, ["id"])
            assert sorted(found.column("id").to_pylist()) == expected, condition
            assert table.snapshot().count(condition) == len(expected)
            assert table.compile_condition(condition).access in ("key", "index", "scan")
        with pytest.raises(NotFoundError):
            table.snapshot().count(equals("nam", "a", pa.string()))

    def test_conditions_without_columns_are_about_every_row(self) -> None:
        """However the rows came and went."""
        if self.lacks("conditions", "insert", "upsert"):
            return
        table = self.filled(KEYED, (1, "a"), (2, "b"))
        table.commit(write(Mode.UPSERT, (2, "c"), (3, "d")))
        one, two = Literal(1, pa.int64()), Literal(2, pa.int64())
        for condition, expected in ((Call("in", (one, two, one)), [1, 2, 3]), (Call("<", (two, one)), [])):
            self._check(table, condition, expected)

    def test_a_key_in_a_condition_is_looked_up(self) -> None:  # B20
        if not self.has_rows or self.lacks("conditions"):
            return
        table = self.make_table(KEYED)
        by_key = equals("id", 3, pa.int64())
        assert table.compile_condition(by_key).access == "key"
        with_more = Call("and", (by_key, Call("is_null", (ColumnRef("name"),))))
        assert table.compile_condition(with_more).access == "key"

    def test_conditions_that_fail_are_errors(self) -> None:  # B19
        """Division by zero is neither NULL nor false."""
        if not self.has_rows or self.lacks("conditions"):
            return
        table = self.filled(KEYED, (0, "zero"), (1, "one"))
        one = Literal(1, pa.int64())
        with pytest.raises(VelostreamError):
            table.snapshot().count(Call("=", (Call("%", (one, ColumnRef("id"))), one)))
        with pytest.raises(VelostreamError):
            table.snapshot().count(Call("=", (Call("+", (ColumnRef("id"), Literal(2**63 - 1, pa.int64()))), one)))

    def test_any_condition_is_answered_as_by_the_memory_table(self) -> None:  # B15, B16, B21
        if self.lacks("conditions", "insert"):
            return
        table = self.make_table(TRICKY)
        rows = tricky_rows()
        table.commit(Write(Mode.APPEND, rows))

        @settings(max_examples=self.store.examples * 3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(CONDITIONS)
        def check(condition: Expression) -> None:
            try:
                mask = evaluate_expression(condition, rows)
            except CannotCompile:
                with pytest.raises(VelostreamError):
                    table.snapshot().count(condition)
                return
            self._check(table, condition, rows.filter(mask).column("id").to_pylist())

        check()

    @staticmethod
    def _check(table: Table, condition: Expression, expected: list[int]) -> None:
        snapshot = table.snapshot()
        assert sorted(snapshot.scan(condition, ["id"]).column("id").to_pylist()) == expected
        assert snapshot.count(condition) == len(expected)
        remainder = table.compile_condition(condition).remainder
        assert remainder is None or isinstance(remainder, Expression)
