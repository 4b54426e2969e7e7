"""A join never runs before its tables are loaded."""

import pyarrow as pa
import pyarrow.csv
import pytest

import velostream
from velostream.errors import VelostreamError

USERS = 1_000_000


@pytest.fixture(scope="module")
def users_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "users.csv"
    ids = pa.array(range(USERS), pa.int64())
    names = pa.array([f"user-{number}" for number in range(USERS)])
    pyarrow.csv.write_csv(pa.table({"id": ids, "name": names}), path)
    return path


def test_a_join_waits_for_its_table_and_loses_no_row(users_file, tmp_path):  # B39
    with velostream.connect(tmp_path / "state") as connection:
        orders = connection.memory("orders")
        orders.append([{"number": number, "user_id": number * 7919 % USERS} for number in range(1000)])
        connection.execute(f"CREATE TABLE users AS SELECT id PRIMARY KEY, name FROM file://{users_file}")
        connection.execute(
            "CREATE TABLE named AS SELECT o.number, u.name FROM memory://orders o LEFT JOIN users u ON o.user_id = u.id"
        )
        during = []
        while connection.status("users").state != "ready":
            during.append((connection.status("named").state, len(connection.table("named"))))
            orders.append([{"number": 1000 + len(during), "user_id": len(during)}])
            with pytest.raises(VelostreamError):
                connection.wait("named", timeout=0.05)
        assert during, "the table had loaded before anyone could look"
        assert {rows for _, rows in during} == {0}
        assert "waiting" in {state for state, _ in during}
        connection.drain("named", timeout=60)
        expected = 1000 + len(during)
        found = connection.execute("SELECT COUNT(*), COUNT(name), COUNT(DISTINCT number) FROM named").fetchone()
        assert found == (expected, expected, expected)


def test_a_select_waits_for_the_table_it_reads(users_file):
    with velostream.connect() as connection:
        results = connection.execute_script(
            f"CREATE TABLE users AS SELECT id PRIMARY KEY, name FROM file://{users_file};"
            f"SELECT COUNT(*) FROM users; SELECT name FROM users WHERE id = {USERS - 1}"
        )
        assert results[1].fetchall() == [(USERS,)]
        assert results[2].fetchall() == [(f"user-{USERS - 1}",)]


@pytest.mark.parametrize(("outcome", "state"), [("fail", "failed"), ("start", "ready")])
def test_the_gate_ends_as_asked_when_the_time_is_up(outcome, state):  # B40
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE users AS SELECT id, name FROM memory://users")
        connection.memory("orders").append([{"number": 1, "user_id": 1}])
        connection.memory("users").append([{"id": 2, "name": "late"}])
        connection.wait("users", timeout=60)
        connection.execute("PAUSE QUERY users")
        connection._context.board(connection._entry("users"))._was_ready = False
        connection.execute(
            "CREATE TABLE named AS SELECT o.number, u.name FROM memory://orders o LEFT JOIN users u ON o.user_id = u.id"
            f" WITH ('table.wait.timeout' = '500ms', 'table.wait.on.timeout' = '{outcome}')"
        )
        if state == "failed":
            with pytest.raises(VelostreamError, match="waited too long"):
                connection.wait("named", timeout=60)
        else:
            connection.wait("named", timeout=60)
            assert connection.execute("SELECT * FROM named").fetchall() == [(1, None)]
        assert connection.status("named").state == state
