"""MongoDB and Redis killed without a chance to finish anything, in the middle of a stream of commits."""

from __future__ import annotations

import threading
import time
from decimal import Decimal

import pytest

from velostream.errors import StoreError
from velostream.model.change import CHANGE, Epoch, Mode, Write
from velostream.tables.base import TableSpec
from velostream.tables.mongodb.table import MongodbTable
from velostream.tables.redis.table import RedisTable
from velostream.testing.services.mongodb import MongodbService
from velostream.testing.services.redis import RedisService
from velostream.testing.table_cases import KEYED, content, rows_of

_COMMITS = 40
_DEADLINE_SECONDS = 60


@pytest.mark.parametrize(("kind", "service"), [(MongodbTable, MongodbService), (RedisTable, RedisService)])
def test_nothing_is_lost_or_doubled_when_the_server_is_killed(kind, service):  # B55, B56
    with service() as server:
        table = kind.open(TableSpec("t", "t", KEYED, {"url": server.url}))
        beginning = table.follow()
        reached = [threading.Event() for _ in range(_COMMITS)]

        def write_stream():
            deadline = time.monotonic() + _DEADLINE_SECONDS
            for number in range(_COMMITS):
                while True:
                    try:
                        table.commit(_update(number), Epoch("stream", number))
                        break
                    except StoreError as error:
                        if not error.category.retriable or time.monotonic() >= deadline:
                            raise
                reached[number].set()

        writer = threading.Thread(target=write_stream)
        writer.start()
        for number in (5, 20):
            assert reached[number].wait(_DEADLINE_SECONDS)
            with server.stopped(suddenly=True):
                pass
        writer.join(_DEADLINE_SECONDS)
        assert reached[-1].is_set()
        # Every commit counts up one row and adds another; what is there tells how often each was applied.
        expected = rows_of(KEYED, (-1, "last", Decimal(_COMMITS - 1)), *((n, f"n{n}") for n in range(_COMMITS)))
        assert content(table.snapshot().scan()) == content(expected)
        assert table.version == beginning + _COMMITS
        told = table.changes(beginning).arrow
        assert set(told.column(CHANGE).to_pylist()) == {1}
        assert content(told.drop_columns([CHANGE])) == content(expected)
        table.close()


def _update(number):
    return Write(Mode.UPSERT, rows_of(KEYED, (-1, "last", Decimal(number)), (number, f"n{number}")))
