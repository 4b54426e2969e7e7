"""Tables and rows in a few characters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence, MemoryTable
from velostream.tables.memory.compare import hashable_rows


@pytest.fixture
def sequence() -> Iterator[CommitSequence]:
    opened = CommitSequence.open(None)
    yield opened
    opened.close()


@pytest.fixture
def people(sequence: CommitSequence) -> MemoryTable:
    """A keyed table."""
    schema = Schema.of(("id", "BIGINT"), ("name", "STRING"), key=["id"])
    return sequence.create_table("people", name="people", schema=schema)


@pytest.fixture
def bag(sequence: CommitSequence) -> MemoryTable:
    schema = Schema.of(("id", "BIGINT"), ("name", "STRING"))
    return sequence.create_table("bag", name="bag", schema=schema)


@pytest.fixture
def reopened(tmp_path: Path) -> Iterator[Callable[[], CommitSequence]]:
    """Each call closes the sequence of the call before and opens the directory again."""
    opened: list[CommitSequence] = []

    def reopen() -> CommitSequence:
        if opened:
            opened.pop().close()
        opened.append(CommitSequence.open(tmp_path / "log"))
        return opened[0]

    yield reopen
    for sequence in opened:
        sequence.close()


def write(mode: Mode, *rows: tuple[object, ...], columns: tuple[str, ...] = ("id", "name")) -> Write:
    """A write of rows given as tuples."""
    arrays = {name: [row[index] for row in rows] for index, name in enumerate(columns)}
    types = {"id": pa.int64(), "name": pa.string(), "_change": pa.int8()}
    return Write(mode, pa.table({name: pa.array(values, types[name]) for name, values in arrays.items()}))


def changes(*rows: tuple[object, ...]) -> Write:
    return write(Mode.CHANGES, *rows, columns=("id", "name", "_change"))


def content(rows: pa.Table) -> Counter[object]:
    """Rows as a multiset."""
    return Counter(hashable_rows(rows))


def tuples(rows: pa.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=repr)
