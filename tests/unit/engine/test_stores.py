"""Tables in stores of their own, as far as they need no Spark: made, changed, read, found again, dropped, away."""

from __future__ import annotations

import json
import re
import sqlite3
import stat
import sys
from dataclasses import replace
from decimal import Decimal
from typing import ClassVar

import pyarrow as pa
import pytest

import velostream
from velostream import plugins
from velostream.engine.stores import StoreTable, write_to_stores
from velostream.errors import AlreadyExistsError, OptionError, StateError, StoreError, UnsupportedError, VelostreamError
from velostream.model.change import Epoch, Mode, Write
from velostream.model.confidential import concealed, public
from velostream.model.options import Option, expand_environment
from velostream.tables.base import TableCapabilities
from velostream.tables.memory.sequence import Part
from velostream.tables.sqlite import SqliteTable

COLUMNS = "(id BIGINT PRIMARY KEY, name STRING, amount DECIMAL(10,2))"


@pytest.fixture
def database(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture
def connection(tmp_path):
    with velostream.connect(tmp_path / "state") as found:
        yield found


@pytest.fixture
def stored(database):
    """The WITH clause of a table in the database, with more options."""

    def clause(**more):
        options = {"extension": "sqlite", "url": f"sqlite:///{database}"} | more
        return "WITH (" + ", ".join(f"'{name}' = '{value}'" for name, value in options.items()) + ")"

    return clause


def rows_in(database, table="t"):
    with sqlite3.connect(database) as opened:
        return opened.execute(f'SELECT * FROM "{table}" ORDER BY 1').fetchall()


def tables_in(database):
    with sqlite3.connect(database) as opened:
        return {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def test_the_rows_are_in_the_store_and_everything_reads_them_there(connection, database, stored):
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored()}")
    assert connection.execute("INSERT INTO t VALUES (1, 'a', 1.50), (2, 'b', 2.25)").rowcount == 2
    assert connection.execute("UPDATE t SET amount = amount * 2 WHERE name = 'a'").rowcount == 1
    assert connection.execute("UPSERT INTO t VALUES (3, 'c', NULL)").rowcount == 1
    assert connection.execute("DELETE FROM t WHERE id = 2").rowcount == 1
    assert rows_in(database) == [(1, "a", "3.00"), (3, "c", None)]
    assert connection.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, "a", Decimal("3.00")), (3, "c", None)]
    assert connection.execute("SELECT count(*), sum(amount) FROM t").fetchall() == [(2, Decimal("3.00"))]
    assert connection.table("t").get(3)["name"] == "c"


def test_connector_is_another_word_for_extension(connection, database):
    connection.execute(f"CREATE TABLE t {COLUMNS} WITH ('connector' = 'SQLite', 'url' = 'sqlite:///{database}')")
    assert "t" in tables_in(database)
    with pytest.raises(OptionError, match='option "extension" says "cache" and option "connector" "sqlite"'):
        connection.execute(f"CREATE TABLE u {COLUMNS} WITH ('extension' = 'cache', 'connector' = 'sqlite')")


def test_options_are_the_kinds_own(connection, stored):
    with pytest.raises(OptionError) as failed:
        connection.execute(f"CREATE TABLE t {COLUMNS} {stored(urll='x')}")
    assert failed.value.hint == 'did you mean "url"?'
    assert failed.value.caret() is not None
    with pytest.raises(OptionError) as failed:
        connection.execute(f"CREATE TABLE t {COLUMNS} WITH ('extension' = 'sqlit')")
    assert failed.value.hint.startswith('did you mean "sqlite"')
    with pytest.raises(OptionError, match=r'option "cache\.max_size" is not known here'):
        connection.execute(f"CREATE TABLE t {COLUMNS} WITH ('cache.max_size' = '5')")
    assert connection.tables() == []


def test_a_store_that_is_not_there_fails_the_create_and_leaves_nothing(connection, tmp_path):  # B54
    with pytest.raises(StoreError):
        connection.execute(
            f"CREATE TABLE t {COLUMNS} WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{tmp_path}/no/such.db')"
        )
    assert connection.tables() == []
    assert connection.execute("SHOW STATUS").fetchall() == []
    connection.execute(f"CREATE TABLE t {COLUMNS}")


def test_another_table_in_the_place_is_adopted_if_it_fits_and_stays_when_ours_is_dropped(connection, database, stored):
    with sqlite3.connect(database) as opened:
        opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, amount TEXT)")
        opened.execute("INSERT INTO t VALUES (7, 'theirs', '1.00')")
        opened.execute("CREATE TABLE u (id TEXT)")
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored()}")
    assert connection.execute("SELECT name FROM t").fetchall() == [("theirs",)]
    connection.execute("DROP TABLE t")
    assert rows_in(database) == [(7, "theirs", "1.00")]
    with pytest.raises(StateError, match="other columns"):
        connection.execute(f"CREATE TABLE u {COLUMNS} {stored()}")
    assert connection.tables() == []


def test_dropping_removes_what_we_made(connection, database, stored):
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored(table='kept')}")
    assert "kept" in tables_in(database)
    connection.execute("DROP TABLE t")
    assert "kept" not in tables_in(database)


def test_one_table_of_a_store_is_one_table_here(connection, stored):
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored(table='shared')}")
    with pytest.raises(AlreadyExistsError, match='would be in sqlite is table "t" already'):
        connection.execute(f"CREATE TABLE u {COLUMNS} {stored(table='shared', history='5')}")
    assert connection.tables() == ["t"]
    connection.execute(f"CREATE OR REPLACE TABLE t {COLUMNS} {stored(table='shared', history='5')}")
    connection.execute("INSERT INTO t VALUES (1, 'a', 1)")


def test_or_replace_builds_the_table_anew(connection, database, stored):
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored()}")
    connection.execute("INSERT INTO t VALUES (1, 'a', 1)")
    connection.execute(f"CREATE OR REPLACE TABLE t (id BIGINT PRIMARY KEY, other STRING) {stored()}")
    assert rows_in(database) == []
    connection.execute("INSERT INTO t VALUES (1, 'x')")
    connection.execute("CREATE OR REPLACE TABLE t (id BIGINT)")
    assert "t" not in tables_in(database)
    connection.execute("INSERT INTO t VALUES (5)")
    connection.execute(f"CREATE OR REPLACE TABLE t (id BIGINT) {stored()}")
    assert connection.execute("SELECT * FROM t").fetchall() == []


def test_it_is_there_again_after_a_restart(tmp_path, database, stored):
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute(f"CREATE TABLE t {COLUMNS} {stored()}")
        connection.execute("INSERT INTO t VALUES (1, 'a', 1)")
    with velostream.connect(tmp_path / "state") as connection:
        connection.wait("t")
        connection.execute("INSERT INTO t VALUES (2, 'b', 2)")
        assert connection.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,)]
        connection.execute("DROP TABLE t")
    assert "t" not in tables_in(database)


def test_a_store_that_is_away_at_the_start_is_waited_for(tmp_path, eventually):  # B56
    folder = tmp_path / "server"
    folder.mkdir()
    clause = f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{folder}/store.db')"
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute(f"CREATE TABLE t {COLUMNS} {clause}")
        connection.execute("CREATE TABLE other (id BIGINT)")
        connection.execute("INSERT INTO t VALUES (1, 'a', 1)")
    folder.rename(tmp_path / "away")
    with velostream.connect(tmp_path / "state") as connection:
        eventually(lambda: connection.status("t").attempts > 0, what="the retry")
        status = connection.status("t")
        assert (status.state, status.rows) == ("waiting", None)
        assert status.error is not None
        assert status.next_retry_at is not None
        with pytest.raises(StoreError):
            connection.execute("INSERT INTO t VALUES (2, 'b', 2)")
        connection.execute("INSERT INTO other VALUES (1)")
        (tmp_path / "away").rename(folder)
        connection.wait("t", timeout=30)
        assert connection.status("t").state == "ready"
        connection.execute("INSERT INTO t VALUES (2, 'b', 2)")
        assert connection.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,)]


def test_dropping_a_table_whose_store_is_away_says_that_its_rows_stay(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    clause = f"WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{folder}/store.db', 'retry.timeout' = '0s')"
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute(f"CREATE TABLE t {COLUMNS} {clause}")
    folder.rename(tmp_path / "away")
    with velostream.connect(tmp_path / "state") as connection:
        done = connection.execute("DROP TABLE t").fetchall()[0][0]
        assert "its rows are still in the store" in done
        assert connection.tables() == []


def test_what_a_kind_does_not_claim_is_refused(connection, stored, monkeypatch):  # B51
    monkeypatch.setattr(SqliteTable, "capabilities", TableCapabilities(insert=True, epochs=True))
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored()}")
    connection.execute("INSERT INTO t VALUES (1, 'a', 1)")
    for statement in ("UPSERT INTO t VALUES (1, 'b', 1)", "DELETE FROM t WHERE id = 1"):
        with pytest.raises(UnsupportedError) as refused:
            connection.execute(statement)
        assert refused.value.code == "unsupported-capability"
        assert refused.value.message.startswith('kind "sqlite" can\'t do "')


def test_show_tells_the_kind(connection, stored):
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored(history='5')}")
    connection.execute("CREATE TABLE m (id BIGINT)")
    connection.execute("INSERT INTO t VALUES (1, 'a', 1)")
    shown = connection.execute("SHOW TABLES")
    assert shown.columns == ["name", "kind", "rows", "state", "extension"]
    assert shown.fetchall() == [("t", "table", 1, "ready", "sqlite"), ("m", "table", 0, "ready", "inMemory")]
    properties = dict(connection.execute("SHOW PROPERTIES t").fetchall())
    assert (properties["extension"], properties["history"]) == ("sqlite", "5")
    assert dict(connection.execute("SHOW PROPERTIES m").fetchall())["extension"] == "inMemory"


def test_validate_knows_the_options_of_the_kind(connection, stored):
    assert connection.execute(f"VALIDATE CREATE TABLE t {COLUMNS} {stored()}").fetchall() == []
    problems = connection.execute(f"VALIDATE CREATE TABLE t {COLUMNS} {stored(urll='x')}").fetchall()
    assert [problem[1] for problem in problems] == ['option "urll" is not known here']


def test_a_named_data_source_is_looked_up_in_the_configuration(tmp_path, database):
    config = {"data_source.local": f"sqlite:///{database}"}
    with velostream.connect(tmp_path / "state", config=config) as connection:
        connection.execute(f"CREATE TABLE t {COLUMNS} WITH ('extension' = 'sqlite', 'data_source' = 'local')")
        connection.execute("INSERT INTO t VALUES (1, 'a', 1)")
        with pytest.raises(OptionError) as failed:
            connection.execute(f"CREATE TABLE u {COLUMNS} WITH ('extension' = 'sqlite', 'data_source' = 'locl')")
        assert (failed.value.code, failed.value.hint) == ("unknown-data-source", 'did you mean "local"?')
    assert rows_in(database) == [(1, "a", "1.00")]
    assert str(database) not in (tmp_path / "state" / "catalog.json").read_text()
    with velostream.connect(tmp_path / "state", config=config) as connection:
        connection.wait("t")
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(1,)]


def test_a_cache_may_stand_in_front(connection, stored):
    connection.execute(f"CREATE TABLE t {COLUMNS} {stored(**{'cache.max_size': '2'})}")
    connection.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    table = connection.table("t")
    assert [table.get(1)["name"], table.get(1)["name"]] == ["a", "a"]
    assert table.stats()["cache_hits"] >= 1
    connection.execute("UPDATE t SET name = 'new' WHERE id = 1")
    assert table.get(1)["name"] == "new"


class Guarded(SqliteTable):
    """A store with passwords, which a file has none of."""

    kind = "guarded"
    options = (*SqliteTable.options, Option("password", ""), Option("user", ""))
    seen: ClassVar[list[dict[str, str]]] = []

    @classmethod
    def open(cls, spec):
        cls.seen.append({name: expand_environment(value) for name, value in spec.options.items()})
        path = re.fullmatch(r".*@(.*)\?.*", spec.options["url"])[1]
        return super().open(replace(spec, options={"url": f"sqlite:///{path}", "table": spec.name}))


@pytest.fixture
def guarded(monkeypatch):
    """A kind `guarded` in the registry."""
    monkeypatch.setitem(plugins._registry(plugins.Group.TABLES), "guarded", "guarded_store:Guarded")
    monkeypatch.setitem(sys.modules, "guarded_store", sys.modules[__name__])
    Guarded.seen.clear()
    return Guarded


def test_passwords_are_kept_apart_and_shown_nowhere(tmp_path, database, guarded, monkeypatch):
    monkeypatch.setenv("STORE_WORD", "from-outside")
    url = f"guarded://me:s3cret@{database}?token=t0ken"
    clause = f"WITH ('extension' = 'guarded', 'url' = '{url}', 'password' = 'pa$$', 'user' = '${{STORE_WORD}}')"
    state = tmp_path / "state"
    with velostream.connect(state) as connection:
        connection.run_script(f"CREATE TABLE t {COLUMNS} {clause};")
        connection.run_script(f"CREATE TABLE t {COLUMNS} {clause};")
        said = [
            connection.execute(statement).fetchall()
            for statement in ("SHOW TABLES", "SHOW PROPERTIES t", "SHOW STATUS", "DESCRIBE t", "SHOW METRICS t")
        ]
        said.append([repr(connection.table("t")), repr(connection.status("t"))])
        with pytest.raises(VelostreamError) as failed:
            connection.execute(f"CREATE TABLE t {COLUMNS} {clause}")
        said.append([str(failed.value)])
    for secret in ("s3cret", "pa$$", "t0ken", "from-outside"):
        assert secret not in repr(said)
    assert "${STORE_WORD}" in repr(said)
    files = [path for path in state.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    assert [path.name for path in files] == ["secrets.json"]
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    with velostream.connect(state) as connection:
        connection.wait("t")
        assert [opened["url"] for opened in guarded.seen] == [url, url]
        assert {opened["password"] for opened in guarded.seen} == {"pa$$"}
        connection.execute("DROP TABLE t")
    assert json.loads((state / "secrets.json").read_text()) == {}


def test_what_is_concealed():
    assert concealed("url", "redis://:pw@h/0") == "redis://:***@h/0"
    assert concealed("url", "postgresql://u:p@s/w@h/db") == "postgresql://u:***@h/db"
    assert concealed("url", "postgresql://u:${PW}@h/db") == "postgresql://u:${PW}@h/db"
    assert concealed("url", "postgresql://u@h:5432/db?sslmode=require") == "postgresql://u@h:5432/db?sslmode=require"
    assert concealed("password", "${PW}") == "${PW}"
    assert concealed("key", "a,b") == "a,b"
    assert public("CREATE … FROM redis://:pw@h/0?token=x WITH ('sasl.password' = 'it''s')") == (
        "CREATE … FROM redis://:***@h/0?token=*** WITH ('sasl.password' = '***')"
    )
    assert public("SELECT * FROM a://h?token='x y'&b=c, \"b://u:x y@h\" WHERE n = 'm@n'") == (
        "SELECT * FROM a://h?token=***&b=c, \"b://u:***@h\" WHERE n = 'm@n'"
    )
    assert public("WITH ('password' = '${PW}', 'url' = 'a://u:${PW}@h')") == (
        "WITH ('password' = '${PW}', 'url' = 'a://u:${PW}@h')"
    )


@pytest.mark.parametrize(
    "password", ["p@ss/word", "pa ss", "it''s", "back\\\\", 'a"b`c', "a:b?c#d", "a\nb", "@", "''", "ü;x=y", "a://b:c@d"]
)
@pytest.mark.parametrize("user", ["", "bob", "bob@corp", "b ob"])
def test_passwords_of_any_shape_are_concealed(user, password):
    options = "'url' = 'a://{0}:{1}@db/x', 'sasl.password' = '{1}', 'other' = 'b://h?token={1}&x=1', 'key' = 'a,b'"
    assert public(f"WITH ({options.format(user, password)})") == f"WITH ({options.format(user, '***')})"
    assert concealed("url", f"redis://{user}:{password}@db/x") == f"redis://{user}:***@db/x"


def test_a_secret_with_an_at_sign_after_a_password_is_concealed():
    for both in ("a://u:one@db/x?token=t@wo", "a://u:on?token=e@db", "a://h:1/x?token=t@wo"):
        assert re.search("one|wo|on|e@", concealed("url", both).replace("token", "")) is None
    assert concealed("url", "a://u:p@h/x?token=t@o&y=1") == "a://u:***@***&y=1"


def test_a_part_that_comes_again_changes_a_store_once(connection, stored):
    connection.execute(f"CREATE TABLE bag (n BIGINT) {stored()}")
    connection.execute(f"CREATE TABLE keyed (n BIGINT PRIMARY KEY) {stored()}")
    connection.execute("CREATE TABLE ours (n BIGINT)")
    context = connection._context
    bag, keyed, ours = (context.table(context.catalog.find(name).id) for name in ("bag", "keyed", "ours"))
    assert isinstance(bag, StoreTable)
    rows = pa.table({"n": [1]})
    writes = [(bag, Write(Mode.APPEND, rows)), (ours, Write(Mode.APPEND, rows)), (bag, Write(Mode.APPEND, rows))]
    part = Part(writes=[*writes, (keyed, Write(Mode.UPSERT, rows))], epoch=Epoch("writer", 0))
    for _ in range(3):
        left = write_to_stores(part)
    assert [table for table, _ in left.writes] == [ours]
    assert (bag.snapshot().count(), keyed.snapshot().count(), ours.snapshot().count()) == (2, 1, 0)
    write_to_stores(Part(writes=[(bag, Write(Mode.REPLACE, rows))], epoch=Epoch("writer", 0)))
    assert bag.snapshot().count() == 1
