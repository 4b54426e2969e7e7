"""Following files: what is appended or rewritten is in the view within 2 s."""

import time

import pytest

import velostream

PROMISED_SECONDS = 2.0


@pytest.fixture(scope="module")
def connection():
    with velostream.connect() as connection:
        yield connection


def seconds_until(connection, sql, expected):
    began = time.monotonic()
    while (found := sorted(connection.execute(sql).fetchall())) != expected:
        assert time.monotonic() - began < 30, f"still {found}"
        time.sleep(0.01)
    return time.monotonic() - began


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def test_an_appended_line_is_in_the_view_within_two_seconds(connection, tmp_path):  # B42
    path = tmp_path / "orders.csv"
    path.write_text("id,amount\n1,1.00\n")
    connection.execute(
        f"CREATE TABLE grown AS SELECT id FROM file://{path} WITH ('watch' = 'true', 'watch.mode' = 'append')"
    )
    seconds_until(connection, "SELECT id FROM grown", [(1,)])
    for number in range(2, 5):
        append(path, f"{number},2.00\n")
        expected = [(known,) for known in range(1, number + 1)]
        assert seconds_until(connection, "SELECT id FROM grown", expected) < PROMISED_SECONDS


def test_a_rewritten_file_replaces_its_rows(connection, tmp_path):  # B42
    path = tmp_path / "prices.csv"
    path.write_text("sku,price\napple,3.10\nleek,1.20\n")
    connection.execute(f"CREATE TABLE rewritten AS SELECT sku, price FROM file://{path} WITH ('watch' = 'true')")
    seconds_until(connection, "SELECT sku FROM rewritten", [("apple",), ("leek",)])
    new = tmp_path / "new"
    new.write_text("sku,price\napple,3.15\npear,2.00\n")
    new.replace(path)
    assert seconds_until(connection, "SELECT sku FROM rewritten", [("apple",), ("pear",)]) < PROMISED_SECONDS
    [price] = connection.execute("SELECT price FROM rewritten WHERE sku = 'apple'").fetchone()
    assert str(price) == "3.15"


def test_a_half_written_line_waits_for_its_end(connection, tmp_path):  # B42
    path = tmp_path / "halves.csv"
    path.write_text("id,name\n1,one\n")
    connection.execute(
        f"CREATE TABLE halves AS SELECT id, name FROM file://{path} WITH ('watch' = 'true', 'watch.mode' = 'append')"
    )
    seconds_until(connection, "SELECT * FROM halves", [(1, "one")])
    append(path, "2,two\n3,thr")
    seconds_until(connection, "SELECT * FROM halves", [(1, "one"), (2, "two")])
    append(path, "ee\n")
    seconds_until(connection, "SELECT * FROM halves", [(1, "one"), (2, "two"), (3, "three")])


def test_files_come_and_go_in_a_watched_directory(connection, tmp_path):  # B42
    (tmp_path / "a.csv").write_text("id\n1\n2\n")
    connection.execute(
        f"CREATE TABLE listed AS SELECT id FROM file://{tmp_path}/*.csv"
        " WITH ('watch' = 'true', 'watch.mode' = 'directory')"
    )
    seconds_until(connection, "SELECT id FROM listed", [(1,), (2,)])
    (tmp_path / "b.csv").write_text("id\n3\n")
    seconds_until(connection, "SELECT id FROM listed", [(1,), (2,), (3,)])
    (tmp_path / "a.csv").unlink()
    seconds_until(connection, "SELECT id FROM listed", [(3,)])
