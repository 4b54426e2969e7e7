"""Other programs at the same store: tables of theirs that we adopt, and writes of theirs that we see."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import StateError
from velostream.model.change import Epoch, Mode
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.testing.foreign_tables import ForeignTable
from velostream.testing.table_cases import BAG, KEYED, content, equals, in_threads, rows_of, write
from velostream.testing.table_suite.harness import TableHarness


class ForeignWriters(TableHarness):
    @contextmanager
    def _foreign(self) -> Iterator[tuple[ForeignTable, TableSpec]]:
        """A table somebody else has made, with two rows."""
        make, spec = self.store.foreign, self.new_spec(KEYED)
        assert make is not None
        table = make(spec.options)
        try:
            table.put(1, "a", Decimal("1.50"))
            table.put(2, None)
            yield table, spec
        finally:
            table.close()

    def test_a_table_of_the_user_is_adopted(self) -> None:
        if self.store.foreign is None:
            return
        with self._foreign() as (theirs, spec):
            table = self.open(spec)
            expected = [(1, "a", Decimal("1.50")), (2, None, None)]
            assert content(table.snapshot().scan()) == content(rows_of(KEYED, *expected))
            if self.lacks("upsert", "epochs"):
                return
            table.commit(write(Mode.UPSERT, (1, "ours"), (3, "c")), Epoch("q", 1))
            table = self.reopen(table)
            table.commit(write(Mode.UPSERT, (1, "repeated")), Epoch("q", 1))
            assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "ours"), (2, None), (3, "c")))
            table.drop()
            self.close(table)
            assert theirs.exists()

    def test_an_adopted_table_must_fit(self) -> None:
        if self.store.foreign is None:
            return
        with self._foreign() as (theirs, spec):
            with pytest.raises(StateError):
                self.open(replace(spec, schema=Schema.of(("id", "BIGINT"), ("other", "DATE"), key=["id"])))
            assert theirs.exists()

    def test_writes_of_others_are_seen(self) -> None:
        if self.store.foreign is None:
            return
        with self._foreign() as (theirs, spec):
            table = self.open(spec)
            stamp = table.stamp()
            theirs.put(3, "c", Decimal("3.00"))
            theirs.put(1, "changed")
            theirs.remove(2)
            assert stamp is None or table.stamp() != stamp
            snapshot = table.snapshot()
            assert content(snapshot.scan()) == content(rows_of(KEYED, (1, "changed"), (3, "c", Decimal("3.00"))))
            assert snapshot.lookup(pa.array([1, 2, 3]), ["name"]).column("name").to_pylist() == ["changed", "c"]
            row = snapshot.get(1)
            assert row is not None
            assert row["name"] == "changed"
            assert snapshot.count(equals("name", "c", pa.string())) == 1

    def test_two_programs_of_ours_share_a_store(self) -> None:
        """Each has its own object; neither loses what the other wrote, and both know all epochs."""
        if self.lacks("insert", "epochs", "durable"):
            return
        first = self.make_table(BAG)
        if self.is_private(self.spec_of(first)):
            return
        second = self.open(self.spec_of(first))
        each = 8

        def append(number: int) -> None:
            table, writer = (first, second)[number % 2], f"w{number}"
            for step in range(each):
                table.commit(write(Mode.APPEND, (number * each + step, "x")), Epoch(writer, step))

        in_threads([lambda: append(0), lambda: append(1)])
        for table in (first, second):
            table.commit(write(Mode.APPEND, (0, "repeated")), Epoch("w0", each - 1))
            table.commit(write(Mode.APPEND, (0, "repeated")), Epoch("w1", each - 1))
            assert sorted(table.snapshot().scan().column("id").to_pylist()) == list(range(2 * each))
        assert first.version == second.version
