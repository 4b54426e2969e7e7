"""Several tables of PostgreSQL in one slot: nobody loses what another has done with, and the last one clears up."""

from __future__ import annotations

import threading

import psycopg
import pytest

from velostream.errors import SourceError
from velostream.model.change import CHANGE
from velostream.sources.base import SourceSpec
from velostream.sources.postgres import PostgresSource
from velostream.sources.postgres_slot import position_of
from velostream.testing.services.postgres import PostgresService

from .conftest import Reader

TABLES = ("first", "second")


class Database:
    """Two tables, and readers of them that share a slot."""

    def __init__(self, url: str, connection: psycopg.Connection) -> None:
        self.url = url
        self._connection = connection
        self.readers: list[Reader] = []
        for table in TABLES:
            self.run(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement)

    def ask(self, statement: str):
        return self._connection.execute(statement).fetchall()

    def reader(self, table: str, **options: str) -> Reader:
        given = {"table": table, "cdc": "true", "slot.name": "shared"} | options
        reader = Reader(PostgresSource(SourceSpec("postgres", self.url, given)))
        self.readers.append(reader)
        return reader

    @property
    def confirmed(self) -> int:
        (place,) = self.ask("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'shared'")
        return position_of(place[0])

    @property
    def kept(self) -> list[str]:
        slots = self.ask("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
        return [name for (name,) in (*slots, *self.ask("SELECT pubname FROM pg_publication"))]


@pytest.fixture
def database():
    url = PostgresService.shared().new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        made = Database(url, connection)
        yield made
        for reader in made.readers:
            reader.source.close()
        made.run("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'shared'")


def at(reader: Reader) -> int:
    return position_of(reader.position["lsn"])


def taken(reader: Reader) -> list[tuple[int, int]]:
    return [(row[CHANGE], row["id"]) for row in reader.read()]


def test_each_reader_gets_the_changes_of_its_table_and_the_slowest_keeps_the_log(database):
    first = database.reader("first")
    assert taken(first) == [(1, 1)]
    database.run("INSERT INTO first VALUES (2)", "INSERT INTO second VALUES (2)")
    second = database.reader("second")
    assert taken(second) == [(1, 1), (1, 2)]
    database.run("BEGIN", "INSERT INTO first VALUES (3)", "INSERT INTO second VALUES (3)", "COMMIT")
    assert taken(first) == [(1, 2), (1, 3)]
    database.run("INSERT INTO first VALUES (4)")
    assert taken(first) == [(1, 4)]
    assert database.confirmed <= at(second) < at(first)
    assert taken(second) == [(1, 3)]
    assert database.confirmed == at(second)
    assert (taken(first), taken(second)) == ([], [])


def test_a_load_keeps_the_log_from_its_beginning_on(database):
    first, second = database.reader("first"), database.reader("second")
    taken(first)
    end = second.source.latest_offset(None, max_rows=10)
    database.run("INSERT INTO second VALUES (2)", "INSERT INTO first VALUES (2)")
    assert taken(first) == [(1, 2)]
    parts = second.source.partitions(None, end)
    loaded = [row for part in parts for batch in second.source.read(part, second.schema, print) for row in batch["id"]]
    second.position = end
    second.source.commit(end)
    assert ([row.as_py() for row in loaded], taken(second)) == ([1], [(1, 2)])


def test_a_table_joins_when_nobody_is_changing_it(database, eventually):
    first = database.reader("first")
    taken(first)
    second = database.reader("second")
    with psycopg.connect(database.url) as writer:
        writer.execute("INSERT INTO second VALUES (2)")
        begun = threading.Thread(target=second.read)
        begun.start()
        waiting = "SELECT FROM pg_locks WHERE relation = 'second'::regclass AND NOT granted"
        eventually(lambda: database.ask(waiting), what="the wait for the writer")
    begun.join(30)
    database.run("UPDATE second SET id = 3 WHERE id = 2")
    assert taken(second) == [(-1, 2), (1, 3)]


def test_positions_of_those_that_do_not_run_are_respected(database):
    first, second = database.reader("first"), database.reader("second")
    for reader in (first, second):
        reader.source.reader = reader.source.selection.table
        taken(reader)
    positions = {"first": first.position, "second": second.position}
    for reader in (first, second):
        reader.source.close()
    database.run("INSERT INTO first VALUES (2)", "INSERT INTO second VALUES (2)")
    again = database.reader("first")
    # As after a restart: the other is known by its position alone, which a fallback wraps.
    again.source.companions = lambda: [None, 7, {"way": "log", "turn": 0, "at": positions["second"]}]
    again.position = positions["first"]
    assert taken(again) == [(1, 2)]
    assert database.confirmed <= position_of(positions["second"]["lsn"])
    late = database.reader("second")
    late.position = positions["second"]
    assert taken(late) == [(1, 2)]


def test_the_last_one_clears_up(database):
    first, second = database.reader("first"), database.reader("second")
    taken(first)
    taken(second)
    first.source.forget(first.position)
    first.source.close()
    assert database.kept == ["shared", "velostream_shared"]
    database.run("INSERT INTO first VALUES (2)", "INSERT INTO second VALUES (2)")
    assert taken(second) == [(1, 2)]
    assert database.confirmed == at(second)
    second.source.forget(second.position)
    assert database.kept == []


def test_a_slot_that_was_lost_is_made_anew_for_all(database):
    first, second = (database.reader(table, **{"cdc.on.gap": "snapshot"}) for table in TABLES)
    taken(first)
    taken(second)
    database.run("SELECT pg_drop_replication_slot('shared')", "INSERT INTO first VALUES (2)")
    for reader, rows in ((first, [1, 2]), (second, [1])):
        replaced, *found = reader.read()
        assert (replaced, [row["id"] for row in found]) == ("replaced by", rows)
    database.run("INSERT INTO first VALUES (3)", "INSERT INTO second VALUES (3)")
    assert (taken(first), taken(second)) == ([(1, 3)], [(1, 3)])


def test_a_publication_of_somebody_else_is_left_alone(database):
    database.run("CREATE PUBLICATION theirs FOR TABLE first")
    first = database.reader("first", **{"publication.name": "theirs"})
    taken(first)
    with pytest.raises(SourceError, match="does not have table"):
        database.reader("second", **{"publication.name": "theirs"}).read()
    database.run("ALTER PUBLICATION theirs ADD TABLE second")
    second = database.reader("second", **{"publication.name": "theirs"})
    assert taken(second) == [(1, 1)]
    for reader in (first, second):
        reader.source.forget(reader.position)
    assert database.kept == ["theirs"]
