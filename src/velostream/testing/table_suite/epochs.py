"""Epochs: a repeated commit changes nothing, and an epoch is stored with its rows or not at all."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import pytest

from velostream.errors import TableError
from velostream.model.change import Epoch, Mode
from velostream.testing.table_cases import BAG, KEYED, content, rows_of, write
from velostream.testing.table_suite.harness import TableHarness


class Epochs(TableHarness):
    def test_a_repeated_epoch_changes_nothing(self) -> None:
        if self.lacks("epochs", "insert"):
            return
        table = self.make_table(BAG)
        first = table.commit(write(Mode.APPEND, (1, "a")), Epoch("q", 7))
        for number in (7, 6):
            assert table.commit(write(Mode.APPEND, (1, "again")), Epoch("q", number)) == first
        table.commit(write(Mode.APPEND, (2, "b")), Epoch("other", 7))
        table.commit(write(Mode.APPEND, (3, "c")), Epoch("q", 8))
        assert content(table.snapshot().scan()) == content(rows_of(BAG, (1, "a"), (2, "b"), (3, "c")))

    def test_an_epoch_without_effect_counts(self) -> None:
        """An empty batch is a batch: its repeat, now with rows, is a repeat."""
        if self.lacks("epochs", "insert", "upsert"):
            return
        table = self.make_table(KEYED)
        version = table.commit(write(Mode.UPSERT, (1, "a")), Epoch("q", 1))
        assert table.commit(write(Mode.APPEND), Epoch("q", 2)) == version
        assert table.commit(write(Mode.UPSERT, (1, "a")), Epoch("q", 3)) == version
        if not self.lacks("durable"):
            table = self.crash(table)
        for number in (1, 2, 3):
            assert table.commit(write(Mode.UPSERT, (1, "late")), Epoch("q", number)) == version
        assert table.version == version
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a")))

    def test_an_epoch_that_was_refused_can_be_tried_again(self) -> None:
        if self.lacks("epochs", "insert"):
            return
        table = self.make_table(KEYED)
        with pytest.raises(TableError):
            table.commit(write(Mode.APPEND, (1, "a"), (1, "b")), Epoch("q", 1))
        if not self.lacks("durable"):
            table = self.crash(table)
        table.commit(write(Mode.APPEND, (1, "a")), Epoch("q", 1))
        assert table.snapshot().count() == 1

    def test_rows_and_epoch_survive_a_crash_together(self) -> None:  # B55
        if self.lacks("epochs", "insert", "durable"):
            return
        table = self.make_table(BAG)
        for number in range(5):
            table.commit(write(Mode.APPEND, (number, "x")), Epoch("q", number))
            table = self.crash(table)
            table.commit(write(Mode.APPEND, (number, "x")), Epoch("q", number))
            assert table.snapshot().count() == number + 1

    def test_writers_with_odd_names_are_kept_apart(self) -> None:
        if self.lacks("epochs", "insert"):
            return
        table = self.make_table(BAG)
        writers = ("q", "Q", "q ", "", "é", "e\u0301", "o'clock;--", "x" * 200)
        for _ in range(2):
            for number, writer in enumerate(writers):
                table.commit(write(Mode.APPEND, (number, "x")), Epoch(writer, 1))
        assert sorted(table.snapshot().scan().column("id").to_pylist()) == list(range(len(writers)))
