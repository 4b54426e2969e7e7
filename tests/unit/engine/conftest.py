"""Tables for tests of what is built on them."""

import pytest

from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence


@pytest.fixture
def sequence():
    sequence = CommitSequence.open(None)
    yield sequence
    sequence.close()


@pytest.fixture
def make_table(sequence):
    """Makes a memory table: `make_table("t", ("id", "INT"), key=["id"])`."""

    def make(name, *columns, key=()):
        return sequence.create_table(name, name=name, schema=Schema.of(*columns, key=key))

    return make
