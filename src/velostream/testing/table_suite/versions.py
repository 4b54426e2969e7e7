"""Older versions, and what changed since."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from velostream.errors import TableError
from velostream.model.change import CHANGE, Mode
from velostream.tables.base import Table
from velostream.tables.memory.compare import hashable_rows
from velostream.testing.table_cases import BAG, KEYED, content, keys, rows_of, write
from velostream.testing.table_suite.harness import TableHarness

_STEPS = (
    write(Mode.APPEND, (1, "a"), (2, "b")),
    write(Mode.UPSERT, (1, "A")),
    write(Mode.UPSERT, (1, "a")),
    keys(2),
    keys(1),
    write(Mode.UPSERT, (1, "a")),
)


def check_changes(table: Table, since: int, until: int, before: Counter[Any], after: Counter[Any]) -> None:
    """What `changes` tells leads from one state to the other, without a row that needn't be there."""
    batch = table.changes(since, until)
    assert batch.version == until
    assert batch.arrow.column_names == [*table.schema.names, CHANGE]
    signs = batch.arrow.column(CHANGE).to_pylist()
    assert signs == sorted(signs)
    changed = Counter(before)
    for row, sign in zip(hashable_rows(batch.arrow.drop_columns([CHANGE])), signs, strict=True):
        changed[row] += sign
    assert +changed == after
    assert len(signs) == sum((before - after).values()) + sum((after - before).values())


class Versions(TableHarness):
    def test_a_snapshot_never_changes(self) -> None:
        """Of a kind without versions only what one call gives is of one version: a later call sees later rows."""
        if self.lacks("insert", "upsert", "versions"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
        snapshot = table.snapshot()
        before = content(snapshot.scan())
        table.commit(write(Mode.UPSERT, (1, "A"), (3, "c")))
        assert content(snapshot.scan()) == before
        assert snapshot.count() == 2
        assert not snapshot.contains(3)

    def test_older_versions(self) -> None:
        if self.lacks("versions", "insert", "upsert", "delete"):
            return
        table = self.make_table(KEYED)
        versions, states = [table.version], [content(table.snapshot().scan())]
        for step in _STEPS:
            versions.append(table.commit(step))
            states.append(content(table.snapshot().scan()))
        assert versions == sorted(set(versions))
        for version, state in zip(versions, states, strict=True):
            assert table.snapshot(version).version == version
            assert content(table.snapshot(version).scan()) == state
        with pytest.raises(TableError):
            table.snapshot(versions[-1] + 1)

    def test_what_changed_since(self) -> None:
        if self.lacks("changes", "insert", "upsert", "delete"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (0, "before"), (1, "b")))
        versions, states = [table.follow()], [content(table.snapshot().scan())]
        assert versions == [table.version]
        for step in (keys(1), *_STEPS):
            versions.append(table.commit(step))
            states.append(content(table.snapshot().scan()))
        for since, before in zip(versions, states, strict=True):
            for until, after in zip(versions, states, strict=True):
                if until >= since:
                    check_changes(table, since, until, before, after)
        assert table.changes(versions[0]).version == table.version

    def test_changes_that_are_not_kept_or_not_there_yet_are_refused(self) -> None:
        if self.lacks("changes", "insert"):
            return
        table = self.make_table(KEYED)
        since = table.version
        table.commit(write(Mode.APPEND, (1, "a")))
        after = content(table.snapshot().scan())
        table.follow()
        try:
            check_changes(table, since, table.version, Counter(), after)
        except TableError as error:
            assert error.code == "changes-expired"  # noqa: PT017 - a kind may keep more than it must
        with pytest.raises(TableError):
            table.changes(table.version + 1)

    def test_changes_of_a_bag_count_its_rows(self) -> None:
        if self.lacks("changes", "insert", "delete"):
            return
        table = self.make_table(BAG)
        since = table.follow()
        table.commit(write(Mode.APPEND, (1, "a"), (1, "a"), (1, "a"), (2, None)))
        middle, state = table.version, content(table.snapshot().scan())
        check_changes(table, since, middle, Counter(), state)
        table.commit(write(Mode.DELETE, (1, "a"), (2, None)))
        left = content(rows_of(BAG, (1, "a"), (1, "a")))
        check_changes(table, middle, table.version, state, left)
        check_changes(table, since, table.version, Counter(), left)

    def test_changes_are_kept_over_a_restart(self) -> None:
        if self.lacks("changes", "insert", "durable"):
            return
        table = self.make_table(KEYED)
        since = table.follow()
        table.commit(write(Mode.APPEND, (1, "a")))
        table = self.crash(table)
        table.commit(write(Mode.APPEND, (2, "b")))
        assert table.follow() == table.version
        check_changes(table, since, table.version, Counter(), content(rows_of(KEYED, (1, "a"), (2, "b"))))

    def test_a_stamp_moves_with_the_rows(self) -> None:
        if self.lacks("insert"):
            return
        table = self.make_table(KEYED)
        stamps = [table.stamp()]
        assert table.stamp() == stamps[0]
        for number in range(3):
            table.commit(write(Mode.APPEND, (number, "x")))
            stamps.append(table.stamp())
        assert stamps == [None] * 4 or len(set(stamps)) == 4
