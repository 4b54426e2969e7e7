"""The simple rung: what holds when the two methods of a kind fail."""

from __future__ import annotations

import pytest

from velostream.errors import StateError, StoreError
from velostream.model.change import Epoch, Mode
from velostream.tables.base import TableSpec
from velostream.tables.simple import SimpleTable
from velostream.testing.table_cases import KEYED, content, rows_of, write


class InBytes(SimpleTable):
    kind = "inBytes"

    def __init__(self, stored: bytes | None = None) -> None:
        self.stored = stored
        self.fails = False
        super().__init__(TableSpec("t", "t", KEYED))

    def load(self) -> bytes | None:
        return self.stored

    def save(self, content: bytes) -> None:
        if self.fails:
            raise StoreError("the store is full")
        self.stored = content


def test_a_save_that_fails_changes_nothing():
    table = InBytes()
    table.commit(write(Mode.APPEND, (1, "a")), Epoch("q", 1))
    before = table.version
    table.fails = True
    for step in (write(Mode.APPEND, (2, "b")), write(Mode.UPSERT, (1, "A"))):
        with pytest.raises(StoreError):
            table.commit(step, Epoch("q", 2))
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a")))
        assert table.version == before
    table.fails = False
    assert table.commit(write(Mode.APPEND, (2, "b")), Epoch("q", 2)) == before + 1
    again = InBytes(table.stored)
    assert again.version == before + 1
    assert content(again.snapshot().scan()) == content(rows_of(KEYED, (1, "a"), (2, "b")))


def test_readers_see_a_commit_once_it_is_stored():
    seen = []

    class Watching(InBytes):
        def save(self, content: bytes) -> None:
            if hasattr(self, "_newest"):
                seen.append(self.snapshot().count())
            super().save(content)

    table = Watching()
    table.commit(write(Mode.APPEND, (1, "a")))
    assert seen == [0]
    assert table.snapshot().count() == 1


@pytest.mark.parametrize("stored", [b"", b"no table at all"])
def test_what_is_no_table_is_refused(stored):
    with pytest.raises(StateError) as caught:
        InBytes(stored)
    assert caught.value.code == "state-corrupt"
