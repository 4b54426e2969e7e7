"""Several tables of a store committed in one step, and reading and writing made one step."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from decimal import Decimal

import pytest

from velostream.errors import TableError
from velostream.model.change import Epoch, Mode
from velostream.tables.base import TableWrites
from velostream.testing.table_cases import BAG, KEYED, content, in_threads, keys, rows_of, write
from velostream.testing.table_suite.harness import TableHarness


class Transactions(TableHarness):
    def test_several_tables_commit_together(self) -> None:  # B50
        if self.lacks("transactions", "insert", "upsert", "delete"):
            return
        one, other = self.make_together(KEYED, BAG)
        assert one.commit_group == other.commit_group
        one.commit_together(
            [
                TableWrites(one, [write(Mode.APPEND, (1, "a"), (2, "b")), write(Mode.UPSERT, (1, "A")), keys(2)]),
                TableWrites(other, [write(Mode.APPEND, (7, "x"), (7, "x"))]),
            ]
        )
        assert content(one.snapshot().scan()) == content(rows_of(KEYED, (1, "A")))
        assert content(other.snapshot().scan()) == content(rows_of(BAG, (7, "x"), (7, "x")))

    def test_what_one_table_refuses_none_takes(self) -> None:  # B50
        if self.lacks("transactions", "insert"):
            return
        one, other = self.make_together(BAG, KEYED)
        other.commit(write(Mode.APPEND, (1, "taken")))
        versions = one.version, other.version
        with pytest.raises(TableError) as caught:
            one.commit_together(
                [
                    TableWrites(one, [write(Mode.APPEND, (1, "a"))]),
                    TableWrites(other, [write(Mode.APPEND, (2, "b"), (1, "again"))]),
                ],
                Epoch("q", 1),
            )
        assert caught.value.code == "duplicate-key"
        assert (one.snapshot().count(), other.snapshot().count()) == (0, 1)
        assert (one.version, other.version) == versions
        one.commit_together([TableWrites(one, [write(Mode.APPEND, (1, "a"))])], Epoch("q", 1))
        assert one.snapshot().count() == 1

    def test_a_repeated_transaction_changes_nothing(self) -> None:
        if self.lacks("transactions", "insert", "epochs"):
            return
        one, other = self.make_together(BAG, BAG)
        for number in (1, 1, 2, 1, 2):
            one.commit_together(
                [TableWrites(table, [write(Mode.APPEND, (number, "x"))]) for table in (one, other)], Epoch("q", number)
            )
        if not self.lacks("durable"):
            specs = [self.spec_of(table) for table in (one, other)]
            for table in (one, other):
                self.close(table)
            one, other = self.open_together(specs)
            one.commit_together([TableWrites(other, [write(Mode.APPEND, (9, "x"))])], Epoch("q", 2))
        for table in (one, other):
            assert content(table.snapshot().scan()) == content(rows_of(BAG, (1, "x"), (2, "x")))

    def test_the_first_committer_wins(self) -> None:  # B50
        if self.lacks("transactions", "insert", "upsert"):
            return
        one, other = self.make_together(KEYED, KEYED)
        one.commit(write(Mode.APPEND, (1, "a")))
        read_at = one.version
        one.commit(write(Mode.UPSERT, (1, "first")))
        with pytest.raises(TableError) as caught:
            one.commit_together(
                [
                    TableWrites(other, [write(Mode.APPEND, (1, "b"))]),
                    TableWrites(one, [write(Mode.UPSERT, (1, "second"))], read_at=read_at),
                ],
                Epoch("q", 1),
            )
        assert (caught.value.code, caught.value.category.retriable) == ("write-conflict", True)
        assert content(one.snapshot().scan()) == content(rows_of(KEYED, (1, "first")))
        assert other.snapshot().count() == 0
        one.commit_together(
            [
                TableWrites(other, [write(Mode.APPEND, (1, "b"))], read_at=other.version),
                TableWrites(one, [write(Mode.UPSERT, (1, "second"))], read_at=one.version),
            ],
            Epoch("q", 1),
        )
        assert content(one.snapshot().scan()) == content(rows_of(KEYED, (1, "second")))
        assert other.snapshot().count() == 1

    def test_a_table_only_read_conflicts_too(self) -> None:
        if self.lacks("transactions", "insert"):
            return
        read, written = self.make_together(KEYED, KEYED)
        read_at = read.version
        read.commit(write(Mode.APPEND, (1, "a")))
        with pytest.raises(TableError) as caught:
            written.commit_together(
                [TableWrites(read, [], read_at=read_at), TableWrites(written, [write(Mode.APPEND, (1, "b"))])]
            )
        assert caught.value.code == "write-conflict"
        assert written.snapshot().count() == 0

    def test_concurrent_transactions_lose_no_update(self) -> None:
        if self.lacks("transactions", "insert", "upsert"):
            return
        one, other = self.make_together(KEYED, BAG)
        one.commit(write(Mode.APPEND, (1, "counter", Decimal(0))))
        each = 5

        def increment() -> None:
            done = 0
            while done < each:
                snapshot = one.snapshot()
                row = snapshot.get(1)
                assert row is not None
                try:
                    one.commit_together(
                        [
                            TableWrites(
                                one,
                                [write(Mode.UPSERT, (1, "counter", row["amount"] + 1))],
                                read_at=snapshot.version,
                            ),
                            TableWrites(other, [write(Mode.APPEND, (1, "x"))]),
                        ]
                    )
                except TableError as error:
                    assert error.code == "write-conflict"  # noqa: PT017 - any number of them may come
                else:
                    done += 1

        in_threads([increment] * 3)
        row = one.snapshot().get(1)
        assert row is not None
        assert row["amount"] == other.snapshot().count() == 3 * each

    def test_reading_and_writing_can_be_made_one_step(self) -> None:
        if self.lacks("update", "insert", "upsert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "counter", Decimal(0))))

        def increment() -> None:
            for _ in range(6):
                with table.exclusive(), table.exclusive():
                    row = table.snapshot().get(1)
                    assert row is not None
                    table.commit(write(Mode.UPSERT, (1, "counter", row["amount"] + 1)))

        in_threads([increment] * 4)
        row = table.snapshot().get(1)
        assert row is not None
        assert row["amount"] == 24
