"""A database server that dies in the middle of a stream of commits, again and again: nothing lost, nothing twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream import plugins
from velostream.errors import Category, StoreError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.base import Table, TableSpec
from velostream.testing.services.base import Service
from velostream.testing.services.mysql import MysqlService
from velostream.testing.services.postgres import PostgresService

SCHEMA = Schema.of(("id", "BIGINT"), ("name", "STRING"), ("amount", "DECIMAL(10,2)"), key=["id"])
EACH = 20


class Writer(threading.Thread):
    """Commits numbered batches, each until it is done, as a query does; keeps the errors it met."""

    def __init__(self, table: Table) -> None:
        super().__init__(daemon=True)
        self.table = table
        self.done = 0
        self.errors: list[Exception] = []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.table.commit(batch(self.done), Epoch("query", self.done))
            except StoreError as error:
                self.errors.append(error)
            else:
                self.done += 1


def batch(number: int) -> Write:
    ids = range(number * EACH, (number + 1) * EACH)
    rows = {"id": ids, "name": [f"row {id_}" for id_ in ids], "amount": [Decimal(id_) / 4 for id_ in ids]}
    return Write(Mode.APPEND, pa.table(rows).cast(SCHEMA.arrow))


@pytest.fixture(params=[PostgresService, MysqlService], ids=lambda kind: kind.kind)
def server(request: pytest.FixtureRequest) -> Iterator[Service]:
    """One of the test's own, as it is taken away."""
    with request.param() as started:
        yield started


@pytest.fixture
def table(server: Service) -> Iterator[Table]:
    """Gives up soon, so that the test sees the errors."""
    options = {"url": server.url, "retry.timeout": "50ms"}
    opened: Table = plugins.load(plugins.Group.TABLES, server.kind).open(TableSpec("t", "t", SCHEMA, options))
    yield opened
    opened.close()


def test_a_server_that_dies_under_commits_loses_and_doubles_nothing(
    server: Service, table: Table, eventually: Callable[..., None]
):  # B56
    writer = Writer(table)
    writer.start()
    for suddenly in (True, False, True):
        done, met = writer.done, len(writer.errors)
        eventually(lambda done=done: writer.done > done, what="a commit")
        with server.stopped(suddenly=suddenly):
            eventually(lambda met=met: len(writer.errors) > met, what="an error")
    done = writer.done
    eventually(lambda: writer.done > done, what="recovery")
    writer.ended.set()
    writer.join()
    assert {error.category for error in writer.errors} == {Category.NETWORK}
    seen = table.snapshot().scan()
    wanted = pa.concat_tables([batch(number).rows for number in range(writer.done)])
    assert seen.sort_by("id").equals(wanted.cast(seen.schema))
    assert table.version == writer.done


def test_readers_come_back_by_themselves(server: Service, table: Table):  # B56
    table.commit(batch(0))
    stamp = table.stamp()
    for suddenly in (False, True):
        with server.stopped(suddenly=suddenly):
            for read in (table.snapshot, table.stamp, lambda: table.get(1)):
                with pytest.raises(StoreError) as caught:
                    read()
                assert caught.value.category is Category.NETWORK
        assert table.get(1) is not None
        assert table.snapshot().count() == EACH
        assert table.stamp() is not None
    table.commit(batch(1))
    assert table.stamp() != stamp
