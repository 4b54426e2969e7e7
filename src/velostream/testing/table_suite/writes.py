"""The modes of a write, each as the seam describes it."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import NotFoundError, TableError
from velostream.model.change import CHANGE, Mode, Scope, Write
from velostream.model.schema import Column, Schema
from velostream.testing.table_cases import BAG, KEYED, changes, content, keys, rows_of, write
from velostream.testing.table_suite.harness import TableHarness
from velostream.testing.table_suite.lifecycle import CAPABILITIES_OF


class Writes(TableHarness):
    def test_append(self) -> None:
        if self.lacks("insert"):
            return
        for schema in (KEYED, BAG):
            table = self.make_table(schema)
            version = table.commit(write(Mode.APPEND, (1, "a", Decimal("1.50")), (2, None, None)))
            assert version == table.version == table.snapshot().version
            table.commit(write(Mode.APPEND, (3, "c", None)))
            assert table.version > version
            assert content(table.snapshot().scan()) == content(
                rows_of(schema, (1, "a", Decimal("1.50")), (2, None, None), (3, "c", None))
            )

    def test_a_bag_keeps_duplicates(self) -> None:
        if self.lacks("insert"):
            return
        table = self.make_table(BAG)
        table.commit(write(Mode.APPEND, (1, "a", None), (1, "a", None)))
        table.commit(write(Mode.APPEND, (1, "a", None)))
        assert table.snapshot().count() == 3

    def test_a_duplicate_key_applies_nothing(self) -> None:  # B49
        if self.lacks("insert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a", None)))
        version = table.version
        for rows in ([(2, "b"), (1, "again")], [(3, "c"), (3, "d")]):
            with pytest.raises(TableError) as caught:
                table.commit(write(Mode.APPEND, *rows))
            assert caught.value.code == "duplicate-key"
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a", None)))
        assert table.version == version

    def test_upsert(self) -> None:  # B46
        if self.lacks("upsert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.UPSERT, (1, "a"), (2, "b")))
        table.commit(write(Mode.UPSERT, (2, "x"), (3, "c"), (2, "B")))
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a"), (2, "B"), (3, "c")))

    def test_delete(self) -> None:
        if self.lacks("insert", "delete"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, "c")))
        table.commit(keys(2, 9, 2))
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a"), (3, "c")))
        bag = self.make_table(BAG)
        bag.commit(write(Mode.APPEND, (1, "a"), (1, "a"), (2, None)))
        bag.commit(write(Mode.DELETE, (1, "a"), (2, None), (5, "nobody")))
        assert content(bag.snapshot().scan()) == content(rows_of(BAG, (1, "a")))

    def test_changes_apply_in_order(self) -> None:  # B48
        if self.lacks(*CAPABILITIES_OF[Mode.CHANGES]):
            return
        for schema in (KEYED, BAG):
            table = self.make_table(schema)
            table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
            table.commit(
                changes(((1, "a"), -1), ((1, "A"), 1), ((3, "c"), 1), ((3, "c"), -1), ((2, "b"), -1), ((2, "b"), 1))
            )
            assert content(table.snapshot().scan()) == content(rows_of(schema, (1, "A"), (2, "b")))

    def test_a_removal_needs_no_more_than_the_key(self) -> None:
        if self.lacks(*CAPABILITIES_OF[Mode.CHANGES]):
            return
        schema = Schema((Column("id", pa.int64()), Column("n", pa.int32(), nullable=False)), ("id",))
        table = self.make_table(schema)
        table.commit(write(Mode.APPEND, (1, 10), (2, 20), schema=schema))
        rows = pa.table({"id": [1], CHANGE: pa.array([-1], pa.int8())})
        table.commit(Write(Mode.CHANGES, rows))
        assert content(table.snapshot().scan()) == content(rows_of(schema, (2, 20)))
        with pytest.raises(TableError) as caught:
            table.commit(Write(Mode.CHANGES, rows.set_column(1, CHANGE, pa.array([1], pa.int8()))))
        assert caught.value.code == "not-null"

    def test_changes_need_their_signs(self) -> None:
        if self.lacks(*CAPABILITIES_OF[Mode.CHANGES]):
            return
        table = self.make_table(KEYED)
        rows = rows_of(KEYED, (1, "a"))
        for wrong in (rows, rows.append_column(CHANGE, pa.array([0], pa.int8()))):
            with pytest.raises(TableError):
                table.commit(Write(Mode.CHANGES, wrong))
        assert table.snapshot().count() == 0

    def test_replace_commits_the_difference_only(self) -> None:
        if self.lacks(*CAPABILITIES_OF[Mode.REPLACE]):
            return
        for schema in (KEYED, BAG):
            table = self.make_table(schema)
            followed = not self.lacks("changes")
            if followed:
                table.follow()
            table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, None)))
            before = table.version
            table.commit(write(Mode.REPLACE, (3, None), (2, "b"), (1, "a")))
            assert table.version == before
            table.commit(write(Mode.REPLACE, (2, "b"), (4, "d")))
            assert content(table.snapshot().scan()) == content(rows_of(schema, (2, "b"), (4, "d")))
            if followed:
                assert table.changes(before).arrow.num_rows == 3
            table.commit(Write(Mode.REPLACE, rows_of(schema, (5, "d")), Scope("name", "d")))
            assert content(table.snapshot().scan()) == content(rows_of(schema, (2, "b"), (5, "d")))

    def test_a_replaced_part_may_take_over_keys_of_the_rest(self) -> None:
        if self.lacks(*CAPABILITIES_OF[Mode.REPLACE]):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, None), (4, "a")))
        table.commit(Write(Mode.REPLACE, pa.table({"id": [2, 4]}), Scope("name", "a")))
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (2, "a"), (3, None), (4, "a")))
        table.commit(Write(Mode.REPLACE, pa.table({"id": [5]}), Scope("name", None)))
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (2, "a"), (4, "a"), (5, None)))

    def test_a_write_without_effect_is_no_version(self) -> None:
        table = self.make_table(KEYED)
        before = table.version
        for mode, capabilities in CAPABILITIES_OF.items():
            if mode is not Mode.CHANGES and not self.lacks(*capabilities):
                table.commit(write(mode))
        if not self.lacks("upsert"):
            before = table.commit(write(Mode.UPSERT, (1, "a", Decimal("1.50"))))
            assert table.commit(write(Mode.UPSERT, (1, "a", Decimal("1.50")))) == before
        assert table.version == before

    def test_not_null_and_types_are_held(self) -> None:  # B13
        if self.lacks("insert"):
            return
        schema = Schema((Column("id", pa.int64(), nullable=False), Column("n", pa.int32())), ("id",))
        table = self.make_table(schema)
        with pytest.raises(TableError) as caught:
            table.commit(Write(Mode.APPEND, pa.table({"id": pa.array([1, None], pa.int64())})))
        assert caught.value.code == "not-null"
        for wrong in (pa.array(["1"]), pa.array([1.5]), pa.array([2**40])):
            with pytest.raises(TableError) as caught:
                table.commit(Write(Mode.APPEND, pa.table({"id": [1], "n": wrong})))
            assert caught.value.code == "wrong-type"
        with pytest.raises(NotFoundError):
            table.commit(Write(Mode.APPEND, pa.table({"id": [1], "m": [1]})))
        assert table.snapshot().count() == 0
        table.commit(Write(Mode.APPEND, pa.table({"N": pa.array([7], pa.int8()), "ID": pa.array([1], pa.int16())})))
        assert table.snapshot().scan().to_pylist() == [{"id": 1, "n": 7}]

    def test_a_large_write_is_one_write(self) -> None:
        """More rows than a statement has room for parameters; still all or nothing."""
        if self.lacks("insert", "upsert"):
            return
        size = 20_000
        table = self.make_table(KEYED)
        version = table.commit(write(Mode.APPEND, *((number, f"n{number}") for number in range(size))))
        with pytest.raises(TableError):
            table.commit(write(Mode.APPEND, *((number, "again") for number in reversed(range(size - 1, 2 * size)))))
        assert (table.snapshot().count(), table.version) == (size, version)
        table.commit(write(Mode.UPSERT, *((number, "new") for number in range(size // 2, size + size // 2))))
        names = table.snapshot().scan(columns=["name"]).column("name").to_pylist()
        assert (len(names), names.count("new")) == (size + size // 2, size)
