"""Parts of commits that go to kinds of tables without transactions."""

import pyarrow as pa
import pytest

import velostream
from velostream.engine.stores import StoreTable, write_to_stores
from velostream.errors import UnsupportedError
from velostream.model.change import Epoch, Mode, Write
from velostream.tables.memory.sequence import Part


@pytest.fixture
def connection():
    with velostream.connect() as opened:
        yield opened


@pytest.mark.parametrize(
    ("done", "again"),
    [
        ([(Mode.DELETE, 1)], [(Mode.APPEND, 2), (Mode.UPSERT, 3)]),
        ([(Mode.DELETE, 1), (Mode.APPEND, 2)], [(Mode.APPEND, 2)]),
        ([], [(Mode.DELETE, 1), (Mode.APPEND, 2)]),
    ],
)
def test_a_part_decided_anew_with_fewer_writes_loses_and_doubles_nothing(connection, monkeypatch, done, again):
    """A kind without transactions, and a process that dies between the writes of a part."""
    connection.execute("CREATE TABLE bag (n BIGINT) WITH ('extension' = 'cache')")
    connection.execute("INSERT INTO bag VALUES (1)")
    bag = connection._context.table(connection._context.catalog.find("bag").id)

    def part(writes):
        return Part(writes=[(bag, Write(mode, pa.table({"n": [n]}))) for mode, n in writes], epoch=Epoch("writer", 0))

    with monkeypatch.context() as dying:
        commit, left = StoreTable.commit, iter(done)

        def commit_some(table, write, epoch=None):
            if next(left, None) is None:
                raise KeyboardInterrupt
            return commit(table, write, epoch)

        dying.setattr(StoreTable, "commit", commit_some)
        with pytest.raises(KeyboardInterrupt):
            write_to_stores(part([(Mode.DELETE, 1), (Mode.APPEND, 2), (Mode.DELETE, 9)]))
    for _ in range(2):
        write_to_stores(part(again))
    added = {n for mode, n in again if mode is not Mode.DELETE}
    assert sorted(bag.snapshot().scan()["n"].to_pylist()) == sorted(added)


def test_a_transaction_over_a_stream_refuses_a_kind_without_transactions(connection):
    connection.execute("CREATE STREAM s (id BIGINT) WITH ('source' = 'memory://s')")
    connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY) WITH ('extension' = 'cache')")
    with connection.begin() as tx, pytest.raises(UnsupportedError, match="transactions") as refused:
        tx.execute("INSERT INTO t SELECT id FROM s")
    assert refused.value.code == "unsupported-capability"
