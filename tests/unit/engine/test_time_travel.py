"""TIMESTAMP AS OF: a table as it was at an instant, on kinds that know when their versions were made."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

import velostream
from velostream.errors import TableError, UnsupportedError, ValidationError


def an_instant() -> datetime:
    """Now, in a millisecond that has nothing else in it."""
    found = datetime.now(UTC) + timedelta(milliseconds=2)
    while datetime.now(UTC) < found + timedelta(milliseconds=2):
        time.sleep(0)
    return found


@pytest.mark.parametrize("extension", ["inMemory", "delta", "cache"])
def test_a_table_as_it_was_at_an_instant(tmp_path, extension):
    with velostream.connect(tmp_path / "state") as connection:
        history = "" if extension == "delta" else ", 'history' = '5'"
        before = an_instant()
        connection.execute(f"CREATE TABLE t (id INT PRIMARY KEY, n INT) WITH ('extension' = '{extension}'{history})")
        connection.execute("INSERT INTO t VALUES (1, 1)")
        first = an_instant()
        connection.execute("UPDATE t SET n = 2")

        def seen(as_of: str, params: list[object] | None = None) -> list[tuple[object, ...]]:
            return connection.execute(f"SELECT n FROM t TIMESTAMP AS OF {as_of}", params).fetchall()

        naive = first.replace(tzinfo=None).isoformat(sep=" ")
        assert seen(f"'{naive}'") == seen(f"TIMESTAMP '{first.isoformat()}'") == seen("?", [first]) == [(1,)]
        assert connection.execute(f"SELECT k.n FROM t TIMESTAMP AS OF '{naive}' k WHERE k.n = 2").fetchall() == []
        assert seen("?", [an_instant()]) == [(2,)]
        with pytest.raises(TableError) as early:
            seen("?", [before])
        assert early.value.code == "changes-expired"
        with pytest.raises(TableError, match="not known yet") as late:
            seen("?", [datetime.now(UTC) + timedelta(hours=1)])
        assert late.value.code == "unknown-version"
        with pytest.raises(ValidationError, match="older version"):
            connection.execute(f"CREATE TABLE v AS SELECT * FROM t TIMESTAMP AS OF '{naive}'")


def test_a_transaction_sees_it_without_its_own_writes():
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT) WITH ('history' = '5')")
        connection.execute("INSERT INTO t VALUES (1, 1)")
        first = an_instant()
        with connection.begin() as tx:
            tx.execute("UPDATE t SET n = 2")
            assert tx.execute("SELECT n FROM t TIMESTAMP AS OF ?", [first]).fetchall() == [(1,)]


def test_a_kind_without_versions_refuses(tmp_path):
    with velostream.connect() as connection:
        connection.execute(
            f"CREATE TABLE t (id INT) WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/store.db')"
        )
        with pytest.raises(UnsupportedError, match="sqlite"):
            connection.execute("SELECT * FROM t TIMESTAMP AS OF '2020-01-01'")
