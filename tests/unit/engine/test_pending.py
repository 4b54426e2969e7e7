"""Transactions over several places whose stores fail in between: finished later, once, and in nobody's way."""

from __future__ import annotations

import logging
import threading
import time

import pytest

import velostream
from velostream.engine import pending
from velostream.engine.pending import PendingTransactions
from velostream.errors import Category, StoreError, TableError
from velostream.tables.sqlite import SqliteTable

DEADLINE = 20.0


class Trouble:
    """What SQLite does at the next commits: each takes one of `plans`, which may be an error or a function."""

    def __init__(self, monkeypatch):
        self.before, self.after = [], []
        commit = SqliteTable.commit_together

        def troubled(table, parts, epoch=None):
            _meet(self.before)
            commit(table, parts, epoch)
            _meet(self.after)

        monkeypatch.setattr(SqliteTable, "commit_together", troubled)


def _meet(plans):
    plan = plans.pop(0) if plans else None
    if isinstance(plan, Exception):
        raise plan
    if plan is not None:
        plan()


def away():
    return StoreError("the store is away", category=Category.NETWORK)


@pytest.fixture
def trouble(monkeypatch):
    monkeypatch.setattr(pending, "_RETRY_SECONDS", 0.02)
    return Trouble(monkeypatch)


@pytest.fixture
def connect(tmp_path):
    return lambda: velostream.connect(tmp_path / "state")


@pytest.fixture
def connection(connect, tmp_path):
    with connect() as opened:
        opened.execute("CREATE TABLE ours (id BIGINT PRIMARY KEY)")
        for name in ("first", "second"):
            clause = f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/{name}.db')"
            opened.execute(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY) {clause}")
        yield opened


def insert(connection, number, *tables):
    tx = connection.begin()
    for table in tables:
        tx.table(table).insert({"id": number})
    return tx


def ids(connection, table):
    return sorted(row["id"] for row in connection.table(table).arrow().to_pylist())


def notes(tmp_path, suffix="pending"):
    return [path.name for path in (tmp_path / "state" / "transactions").glob(f"*.{suffix}")]


def wait_for(condition):
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_of_two_transactions_at_once_each_has_its_own_number(connection, trouble, monkeypatch, tmp_path):
    monkeypatch.setattr(pending, "_RETRY_SECONDS", 600.0)
    one_looked, both_looked = threading.Event(), threading.Event()
    finish_all = PendingTransactions.finish_all

    def look(pending_transactions):
        finish_all(pending_transactions)
        (both_looked if one_looked.is_set() else one_looked).set()

    monkeypatch.setattr(PendingTransactions, "finish_all", look)
    trouble.after = [away()]
    raised = []

    def commit(tx):
        try:
            tx.commit()
        except StoreError as error:
            raised.append(error)

    transactions = insert(connection, 1, "first", "ours"), insert(connection, 2, "second", "ours")
    threads = [threading.Thread(target=commit, args=[tx]) for tx in transactions]
    with connection._context.sequence.exclusive():
        for thread in threads:
            thread.start()
        assert one_looked.wait(DEADLINE)
        assert not both_looked.wait(0.2)
    for thread in threads:
        thread.join(DEADLINE)
    assert len(raised) == 1
    assert ids(connection, "first") == [1]
    assert ids(connection, "second") == [2]
    assert ids(connection, "ours") == [1, 2]
    assert notes(tmp_path) == []


def test_every_incident_is_retried(connection, trouble, tmp_path):
    for number in (1, 2, 3):
        trouble.before, trouble.after = ([away(), away()], []) if number < 3 else ([], [away()])
        with pytest.raises(StoreError, match="away"):
            insert(connection, number, "first", "ours").commit()
        wait_for(lambda: all(thread.name != "pending transactions" for thread in threading.enumerate()))
        assert notes(tmp_path) == []
        assert ids(connection, "first") == ids(connection, "ours") == list(range(1, number + 1))


def test_retrying_survives_errors_of_any_kind(connection, trouble, tmp_path, caplog):
    trouble.before = [away(), StoreError("wrong password", category=Category.AUTHENTICATION), RuntimeError("surprise")]
    with pytest.raises(StoreError, match="away"):
        insert(connection, 1, "first", "ours").commit()
    wait_for(lambda: not notes(tmp_path))
    assert ids(connection, "first") == ids(connection, "ours") == [1]
    assert "wrong password" in caplog.text
    assert "surprise" in caplog.text


def test_while_a_transaction_waits_for_its_store_others_go_on(connection, trouble, tmp_path):
    waiting, go_on = threading.Event(), threading.Event()

    def hang():
        waiting.set()
        assert go_on.wait(DEADLINE)

    trouble.before = [away(), hang]
    with pytest.raises(StoreError, match="away"):
        insert(connection, 1, "first", "ours").commit()
    assert waiting.wait(DEADLINE)
    done = threading.Event()

    def write():
        connection.execute("INSERT INTO ours VALUES (7)")
        insert(connection, 8, "ours").commit()
        done.set()

    writing = threading.Thread(target=write)
    writing.start()
    went_on = done.wait(DEADLINE / 2)
    go_on.set()
    writing.join(DEADLINE)
    assert went_on
    wait_for(lambda: not notes(tmp_path))
    assert ids(connection, "ours") == [1, 7, 8]


def test_what_a_dropped_table_would_have_got_is_left_out(connection, connect, trouble, monkeypatch, tmp_path):
    monkeypatch.setattr(pending, "_RETRY_SECONDS", 600.0)
    trouble.before = [away()]
    with pytest.raises(StoreError, match="away"):
        insert(connection, 1, "first", "second", "ours").commit()
    connection.execute("DROP TABLE first")
    connection.close()
    with connect() as again:
        wait_for(lambda: not notes(tmp_path))
        assert ids(again, "second") == ids(again, "ours") == [1]


def test_a_note_that_can_not_be_finished_is_set_aside(connection, connect, trouble, tmp_path, caplog):
    insert(connection, 1, "first", "ours").commit()
    trouble.before = [None, away(), None, TableError("a row is refused", category=Category.DATA)]
    with pytest.raises(StoreError, match="away"):
        insert(connection, 2, "first", "second", "ours").commit()
    wait_for(lambda: notes(tmp_path, "unfinished"))
    wait_for(lambda: connection.execute("SHOW DEAD LETTERS").fetchall())
    assert "a row is refused" in repr(connection.execute("SHOW DEAD LETTERS").fetchall())
    assert any("a row is refused" in one.message for one in caplog.records if one.levelno == logging.WARNING)
    for path in (tmp_path / "state" / "transactions").iterdir():
        path.unlink()
    insert(connection, 3, "first", "ours").commit()
    assert ids(connection, "first") == [1, 2, 3]
    assert ids(connection, "ours") == [1, 3]


def test_an_unreadable_note_hinders_nobody(connection, connect, tmp_path):
    insert(connection, 1, "first", "ours").commit()
    connection.close()
    (tmp_path / "state" / "transactions" / "000000000001.pending").write_bytes(b"{}\n")
    with connect() as again:
        insert(again, 2, "first", "ours").commit()
        assert ids(again, "first") == ids(again, "ours") == [1, 2]
        assert "000000000001" in repr(again.execute("SHOW DEAD LETTERS").fetchall())
    assert notes(tmp_path, "unfinished") == ["000000000001.unfinished"]
