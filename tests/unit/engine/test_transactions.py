"""Transactions on one connection: isolation, conflicts, rollback, sessions, what is refused. Without Spark."""

from __future__ import annotations

import threading

import pytest

import velostream
from velostream.errors import TableError, ValidationError, VelostreamError


@pytest.fixture
def connection():
    with velostream.connect() as opened:
        opened.execute("CREATE TABLE accounts (id INT PRIMARY KEY, balance DECIMAL(10,2))")
        opened.execute("CREATE TABLE moves (id INT, note STRING)")
        opened.execute("INSERT INTO accounts VALUES (1, 100), (2, 50)")
        yield opened


def rows(speaker, sql="SELECT * FROM accounts"):
    return sorted((int(one), float(other) if other is not None else None) for one, other in speaker.execute(sql))


def move(speaker, amount):
    speaker.execute("UPDATE accounts SET balance = balance - ? WHERE id = 1", [amount])
    speaker.execute("UPDATE accounts SET balance = balance + ? WHERE id = 2", [amount])


def test_a_transaction_sees_its_writes_and_nobody_else_does_until_it_commits(connection):  # B50
    with connection.begin() as tx:
        move(tx, 30)
        tx.table("moves").insert({"id": 1, "note": "x"})
        assert rows(tx) == [(1, 70.0), (2, 80.0)]
        assert len(tx.table("moves")) == 1
        assert rows(connection) == [(1, 100.0), (2, 50.0)]
        assert len(connection.table("moves")) == 0
    assert rows(connection) == [(1, 70.0), (2, 80.0)]
    assert len(connection.table("moves")) == 1


def test_one_commit_holds_all_tables(connection):
    before = connection.metrics()["sequence"]
    with connection.begin() as tx:
        move(tx, 30)
        tx.execute("INSERT INTO moves VALUES (1, 'x')")
    assert connection.metrics()["sequence"] == before + 1
    assert connection.table("accounts").version == connection.table("moves").version == before + 1


def test_what_is_raised_inside_rolls_back(connection):
    def fail():
        with connection.begin() as tx:
            move(tx, 30)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert rows(connection) == [(1, 100.0), (2, 50.0)]


def test_a_transaction_reads_one_commit_number(connection):
    with connection.begin() as tx:
        connection.execute("INSERT INTO accounts VALUES (3, 1)")
        connection.execute("INSERT INTO moves VALUES (3, 'x')")
        assert rows(tx) == [(1, 100.0), (2, 50.0)]
        assert tx.table("moves").arrow().num_rows == 0


def test_the_first_to_commit_wins_and_the_other_may_try_again(connection):  # B50
    first, second = connection.begin(), connection.begin()
    move(first, 10)
    move(second, 20)
    second.execute("INSERT INTO moves VALUES (1, 'x')")
    first.commit()
    with pytest.raises(TableError) as raised:
        second.commit()
    assert raised.value.code == "write-conflict"
    assert raised.value.category.retriable
    assert rows(connection) == [(1, 90.0), (2, 60.0)]
    assert len(connection.table("moves")) == 0


def test_a_statement_by_itself_conflicts_too(connection):
    tx = connection.begin()
    move(tx, 10)
    connection.execute("UPDATE accounts SET balance = 0 WHERE id = 1")
    with pytest.raises(TableError, match="accounts"):
        tx.commit()


def test_writes_of_different_rows_do_not_conflict(connection):
    first, second = connection.begin(), connection.begin()
    first.execute("UPDATE accounts SET balance = 1 WHERE id = 1")
    second.execute("UPDATE accounts SET balance = 2 WHERE id = 2")
    second.execute("INSERT INTO accounts VALUES (3, 3)")
    first.commit()
    second.commit()
    assert rows(connection) == [(1, 1.0), (2, 2.0), (3, 3.0)]


def test_both_inserting_one_key_is_a_conflict(connection):
    first, second = connection.begin(), connection.begin()
    for tx in (first, second):
        tx.execute("INSERT INTO accounts VALUES (9, 9)")
    first.commit()
    with pytest.raises(TableError) as raised:
        second.commit()
    assert raised.value.code == "write-conflict"


def test_a_refused_statement_leaves_the_transaction_as_it_was(connection):  # B49
    with connection.begin() as tx:
        move(tx, 30)
        with pytest.raises(TableError, match="key 2"):
            tx.execute("INSERT INTO accounts VALUES (5, 5), (2, 2)")
        assert rows(tx) == [(1, 70.0), (2, 80.0)]
    assert rows(connection) == [(1, 70.0), (2, 80.0)]


def test_statements_of_sql(connection):
    connection.execute("BEGIN")
    move(connection, 30)
    assert rows(connection) == [(1, 70.0), (2, 80.0)]
    connection.execute("ROLLBACK")
    assert rows(connection) == [(1, 100.0), (2, 50.0)]
    connection.execute("BEGIN TRANSACTION")
    move(connection, 30)
    connection.commit()
    assert rows(connection) == [(1, 70.0), (2, 80.0)]


def test_a_begin_holds_for_its_own_thread(connection):
    connection.execute("BEGIN")
    connection.execute("DELETE FROM accounts")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(rows(connection)))
    thread.start()
    thread.join()
    assert seen == [[(1, 100.0), (2, 50.0)]]
    connection.execute("COMMIT")
    assert rows(connection) == []


def test_a_script_is_rolled_back_by_its_first_error(connection):
    with pytest.raises(TableError):
        connection.execute_script("BEGIN; DELETE FROM moves; INSERT INTO accounts VALUES (8, 8), (2, 2); COMMIT")
    assert rows(connection) == [(1, 100.0), (2, 50.0)]
    with pytest.raises(ValidationError) as raised:
        connection.execute_script("BEGIN; DELETE FROM accounts")
    assert raised.value.code == "open-transaction"
    assert rows(connection) == [(1, 100.0), (2, 50.0)]
    connection.execute_script("BEGIN; DELETE FROM accounts; COMMIT; INSERT INTO accounts VALUES (7, 7)")
    assert rows(connection) == [(7, 7.0)]


@pytest.mark.parametrize(
    ("statements", "code"),
    [
        (["COMMIT"], "no-transaction"),
        (["ROLLBACK"], "no-transaction"),
        (["BEGIN", "BEGIN"], "open-transaction"),
        (["BEGIN", "CREATE TABLE t (a INT)"], "not-in-transaction"),
        (["BEGIN", "DROP TABLE moves"], "not-in-transaction"),
        (["BEGIN", "CREATE INDEX i ON moves (id)"], "not-in-transaction"),
        (["BEGIN", "PAUSE QUERY q"], "not-in-transaction"),
    ],
)
def test_what_makes_no_sense_is_refused(connection, statements, code):
    *before, last = statements
    for statement in before:
        connection.execute(statement)
    with pytest.raises(VelostreamError) as raised:
        connection.execute(last)
    assert raised.value.code == code


def test_an_ended_transaction_says_so(connection):
    tx = connection.begin()
    tx.commit()
    for use in (lambda: tx.execute("SELECT 1"), lambda: tx.table("moves"), tx.commit):
        with pytest.raises(ValidationError) as raised:
            use()
        assert raised.value.code == "no-transaction"
    tx.rollback()


def test_everything_a_table_does_in_a_transaction(connection):
    with connection.begin() as tx:
        accounts = tx.table("accounts")
        accounts.insert([{"id": 3, "balance": 3}, {"id": 4, "balance": 4}])
        accounts.upsert({"id": 1, "balance": 1})
        accounts.update("id = 2", {"balance": velostream.expr("balance * 2")})
        accounts.bulk_update([{"id": 3, "balance": 33}])
        accounts.delete("id = 4")
        assert accounts.get(2)["balance"] == 100
        assert 4 not in accounts
        assert accounts.scalar("SUM(balance)") == 134
        assert [row["id"] for row in accounts.filter("balance > 30")] == [2, 3]
        with pytest.raises(TableError, match="key 1"):
            accounts.insert({"id": 1, "balance": 0})
    assert rows(connection) == [(1, 1.0), (2, 100.0), (3, 33.0)]


def test_truncate_and_refill(connection):
    with connection.begin() as tx:
        assert tx.execute("TRUNCATE TABLE accounts").rowcount == 2
        assert rows(tx) == []
        tx.execute("INSERT INTO accounts VALUES (1, 100), (8, 8)")
    assert rows(connection) == [(1, 100.0), (8, 8.0)]


def test_readers_see_all_of_a_transaction_or_nothing(connection):  # B50
    stop = threading.Event()
    torn = []

    def look():
        while not stop.is_set():
            with connection.begin() as tx:
                total = tx.table("accounts").scalar("SUM(balance)")
                notes = len(tx.table("moves"))
            if total != 150 + notes:
                torn.append((total, notes))

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(30):
        with connection.begin() as tx:
            tx.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 1")
            tx.execute("INSERT INTO moves VALUES (?, 'x')", [number])
    stop.set()
    reader.join()
    assert torn == []


def test_a_committed_transaction_is_durable(tmp_path):
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        connection.execute("CREATE TABLE u (id INT)")
        with connection.begin() as tx:
            tx.execute("INSERT INTO t VALUES (1)")
            tx.execute("INSERT INTO u VALUES (1), (1)")
        left_open = connection.begin()
        left_open.execute("INSERT INTO t VALUES (2)")
    with velostream.connect(tmp_path / "state") as connection:
        assert connection.execute("SELECT * FROM t").fetchall() == [(1,)]
        assert connection.execute("SELECT * FROM u").fetchall() == [(1,), (1,)]


def test_a_script_run_again_repeats_nothing(tmp_path):
    script = """
        CREATE TABLE t (id INT PRIMARY KEY, n INT);
        INSERT INTO t VALUES (1, 1);
        UPDATE t SET n = n + 1;
        BEGIN; UPDATE t SET n = n * 10; INSERT INTO t VALUES (2, 2); COMMIT;
        UPDATE t SET n = n + 1;
    """
    for _ in range(2):
        with velostream.connect(tmp_path / "state") as connection:
            connection.run_script(script)
            assert rows(connection, "SELECT * FROM t") == [(1, 21.0), (2, 3.0)]


def test_older_versions_are_read_by_their_number(connection):
    connection.execute("CREATE TABLE kept (id INT PRIMARY KEY, n INT) WITH ('history' = '5')")
    connection.execute("INSERT INTO kept VALUES (1, 1)")
    version = connection.table("kept").version
    connection.execute("UPDATE kept SET n = 2")
    assert rows(connection, f"SELECT * FROM kept VERSION AS OF {version}") == [(1, 1.0)]
    assert rows(connection, f"SELECT id, n FROM kept VERSION AS OF {version} k WHERE k.n = 2") == []
    assert rows(connection, "SELECT * FROM kept") == [(1, 2.0)]
    with connection.begin() as tx:
        tx.execute("UPDATE kept SET n = 3")
        assert rows(tx, f"SELECT * FROM kept VERSION AS OF {version}") == [(1, 1.0)]
    with pytest.raises(TableError) as raised:
        connection.execute("SELECT * FROM kept VERSION AS OF 99999")
    assert raised.value.code == "unknown-version"
    with pytest.raises(ValidationError, match="older version"):
        connection.execute(f"CREATE TABLE v AS SELECT * FROM kept VERSION AS OF {version}")


def test_explain_and_validate_of_changes_by_rows(connection):
    explained = connection.execute("EXPLAIN UPDATE accounts SET balance = 0 FROM moves m WHERE accounts.id = m.id")
    assert ('rows of "accounts"', "found by id") in explained.fetchall()
    explained = connection.execute("EXPLAIN DELETE FROM accounts USING moves m WHERE balance > m.id")
    assert any("every row is compared" in value for _, value in explained.fetchall())
    found = connection.execute("VALIDATE UPDATE accounts SET balance = m.amount FROM moves m WHERE accounts.id = m.id")
    assert [row[1] for row in found.fetchall()] == ['column "amount" does not exist']


def test_a_stream_is_not_written_to_by_its_name(connection):
    connection.execute("CREATE STREAM s (id INT) WITH ('source' = 'memory://s')")
    for statement in ("INSERT INTO s VALUES (1)", "INSERT INTO s SELECT id FROM moves", "DELETE FROM s"):
        with pytest.raises(VelostreamError) as raised:
            connection.execute(statement)
        assert raised.value.code == "view-not-writable"
