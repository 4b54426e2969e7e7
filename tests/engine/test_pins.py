"""A crash around the commit of an aggregate: Spark's state and the table never come apart."""

import time
from decimal import Decimal

import pytest

import velostream
from velostream.engine.maintain import aggregate
from velostream.errors import StateError
from velostream.testing.crash import play_until_crash

# An approximate count is no partial result of ours, so the groups are in Spark's state.
FIRST_RUN = """
> CREATE TABLE users (id BIGINT PRIMARY KEY, country STRING, factor DECIMAL(4,2));
> INSERT INTO users VALUES (1, 'IT', 1.50), (2, 'DE', 2.00);
> CREATE TABLE sales AS
  SELECT u.country, approx_count_distinct(o.amount) AS n, SUM(o.amount * u.factor) AS total
  FROM memory://orders o JOIN users u ON o.user_id = u.id GROUP BY u.country;
$ append orders
{"user_id": 1, "amount": 10.00}
{"user_id": 2, "amount": 1.01}
> SELECT COUNT(*) FROM sales
2
> SELECT 'unreachable'
"""
UPDATE_AND_REPLAY = """
> UPDATE users SET country = 'FR', factor = 90.00 WHERE id = 1;
> SELECT COUNT(*) FROM sales
-1
"""


def rows(connection, sql):
    return {tuple(map(str, row)) for row in connection.execute(sql).fetchall()}


def test_state_and_table_agree_after_a_crash_between_their_commits(tmp_path):
    """The batch is in Spark's state and not in the table; the joined table changes; the batch is replayed, twice."""
    play_until_crash(FIRST_RUN, folder=tmp_path, point="aggregate.before-commit")
    play_until_crash(UPDATE_AND_REPLAY, folder=tmp_path, point="aggregate.before-commit")
    with velostream.connect(tmp_path / "state") as connection:
        assert connection.execute("SELECT country FROM users WHERE id = 1").fetchone() == ("FR",)
        connection.drain("sales", timeout=60)
        assert rows(connection, "SELECT * FROM sales") == {("IT", "1", "15.0000"), ("DE", "1", "2.0200")}
        orders = [{"user_id": 1, "amount": Decimal("0.05")}, {"user_id": 2, "amount": Decimal("1.01")}]
        connection.memory("orders").append(orders)
        connection.drain("sales", timeout=60)
        assert rows(connection, "SELECT * FROM sales") == {
            ("IT", "1", "15.0000"),
            ("FR", "1", "4.5000"),
            ("DE", "1", "4.0400"),
        }


def test_a_replayed_stateful_batch_is_executed_and_discarded(tmp_path, monkeypatch):
    """The table holds the batch and Spark doesn't know: it runs again, as state demands, and changes nothing."""
    play_until_crash(FIRST_RUN, folder=tmp_path, point="aggregate.after-commit")
    given, replayed = [], []
    collect, commit = aggregate.arrow_result, aggregate.AggregateRunner._commit

    def collected(frame):
        rows = collect(frame)
        given.append(rows.num_rows)
        return rows

    def committed(runner, frame, batch_id):
        table = runner.context.table(runner.entry.id)
        before = table.version
        commit(runner, frame, batch_id)
        replayed.append((batch_id, given[-1], table.version - before))

    monkeypatch.setattr(aggregate, "arrow_result", collected)
    monkeypatch.setattr(aggregate.AggregateRunner, "_commit", committed)
    with velostream.connect(tmp_path / "state") as connection:
        deadline = time.monotonic() + 60
        while not replayed:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert replayed[0] == (0, 2, 0)
        connection.memory("orders").append([{"user_id": 1, "amount": Decimal("1.00")}])
        connection.drain("sales", timeout=60)
        assert rows(connection, "SELECT * FROM sales") == {("IT", "2", "16.5000"), ("DE", "1", "2.0200")}


def test_a_checkpoint_of_another_select_is_refused(tmp_path):
    with velostream.connect(tmp_path / "state") as connection:
        connection.memory("orders").append([{"user_id": 1, "amount": Decimal("1.00")}])
        select = "CREATE TABLE {name} AS SELECT user_id, {sum} AS total FROM memory://orders GROUP BY user_id"
        options = f" WITH ('checkpoint' = '{tmp_path}/checkpoint')"
        connection.execute(select.format(name="totals", sum="SUM(amount)") + options)
        connection.drain("totals", timeout=60)
        connection.execute("DROP TABLE totals")
        with pytest.raises(StateError, match="different SELECT") as changed:
            connection.execute(select.format(name="totals", sum="MAX(amount)") + options)
        assert changed.value.code == "checkpoint-mismatch"
        assert "OR REPLACE" in changed.value.hint
        with pytest.raises(StateError, match="earlier table of that name"):
            connection.execute(select.format(name="totals", sum="SUM(amount)") + options)
        assert "totals" not in connection.tables()


def test_a_lost_checkpoint_is_noticed(tmp_path):
    """Read again from the beginning, its rows would be counted twice."""
    with velostream.connect(tmp_path / "state") as connection:
        connection.memory("orders").append([{"user_id": 1, "amount": Decimal("1.00")}])
        connection.execute(
            "CREATE TABLE totals AS SELECT user_id, SUM(amount) AS total FROM memory://orders GROUP BY user_id"
            f" WITH ('checkpoint' = '{tmp_path}/checkpoint')"
        )
        connection.drain("totals", timeout=60)
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    with velostream.connect(tmp_path / "state") as connection:
        deadline = time.monotonic() + 60
        while connection.status("totals").state != "failed":
            assert time.monotonic() < deadline
        assert "lost" in connection.status("totals").error
        assert connection.table("totals").get(1)["user_id"] == 1
