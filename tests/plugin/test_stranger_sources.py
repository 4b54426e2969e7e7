"""A stranger's kinds of sources, against the suite that ships with the package and within the engine."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

import velostream
from velostream import plugins
from velostream.engine.spooled import SpooledSource
from velostream.errors import Category, SourceError
from velostream.model.options import Option, OptionType
from velostream.plugins import Group
from velostream.sources.base import SimpleSource, SourceSpec
from velostream.testing.crash import play_until_crash
from velostream.testing.feeds import SourceFeed, numbered_rows
from velostream.testing.source_suite import SourceSuite


class MailboxFeed(SourceFeed):
    """A folder of messages."""

    limit_slack = 50

    def __init__(self, folder):
        self.folder = folder / "mailbox"
        self.folder.mkdir()
        self.next = self.first_number
        self.messages = 0

    def source(self):
        return plugins.load(Group.SOURCES, "mailbox")(SourceSpec("mailbox", f"mailbox://{self.folder}"))

    def append(self, count):
        self.send(*map(plain, numbered_rows(self.next, count).to_pylist()))
        self.next += count
        return True

    def append_bad_record(self):
        self.send("no row")
        return True

    def missing_source(self):
        return plugins.load(Group.SOURCES, "mailbox")(SourceSpec("mailbox", f"mailbox://{self.folder}/nowhere"))

    def send(self, *records):
        self.messages += 1
        draft = self.folder / "draft"
        draft.write_text(json.dumps(records))
        draft.rename(self.folder / f"{self.messages}.json")


class SpooledFeed(MailboxFeed):
    """The same folder, as the engine reads it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.spool = folder / "spool"

    def source(self):
        return SpooledSource(super().source(), self.spool, durable=False, positions=list)


class LedgerFeed(SourceFeed):
    """A file of lines."""

    limit_slack = 50
    numbered = False

    def __init__(self, folder, **options):
        self.path = folder / "ledger.csv"
        self.options = {name.replace("_", "."): value for name, value in options.items()}
        self.next = self.first_number

    def source(self):
        return plugins.load(Group.SOURCES, "ledger")(SourceSpec("ledger", f"ledger://{self.path}", self.options))

    def append(self, count):
        with self.path.open("ab") as file:
            options = pacsv.WriteOptions(include_header=self.next == self.first_number)
            pacsv.write_csv(numbered_rows(self.next, count), file, options)
        self.next += count
        return True

    def missing_source(self):
        return plugins.load(Group.SOURCES, "ledger")(SourceSpec("ledger", f"ledger://{self.path}.gone", self.options))


class TestMailbox(SourceSuite):
    @pytest.fixture
    def feed(self, tmp_path):
        return MailboxFeed(tmp_path)


class TestSpooledMailbox(SourceSuite):
    @pytest.fixture
    def feed(self, tmp_path):
        return SpooledFeed(tmp_path)


@pytest.mark.parametrize("options", [{}, {"follow": "true"}, {"poll_interval": "1s"}], ids=["once", "added", "polled"])
class TestLedger(SourceSuite):
    @pytest.fixture
    def feed(self, tmp_path, options):
        return LedgerFeed(tmp_path, **options)


def plain(row):
    return {name: value if name == "id" else None if value is None else str(value) for name, value in row.items()}


def read_all(source):
    start = source.initial_offset()
    bad = []
    parts = source.partitions(start, source.latest_offset(start))
    return [
        row["id"]
        for part in parts
        for batch in source.read(part, source.schema(), bad.append)
        for row in batch.to_pylist()
    ]


def test_what_was_kept_is_not_kept_twice_when_nobody_could_be_told(tmp_path, monkeypatch):
    feed = SpooledFeed(tmp_path)
    feed.append(5)
    source = feed.source()
    monkeypatch.setattr(type(source._inner), "commit", refuse)
    with pytest.raises(SourceError):
        source.latest_offset(source.initial_offset())
    monkeypatch.undo()
    feed.append(2)
    assert read_all(feed.source()) == [1, 2, 3, 4, 5, 6, 7]
    assert not list(feed.folder.glob("*.json"))


def refuse(*_):
    raise SourceError("the mailbox is away", category=Category.NETWORK)


def test_a_source_that_could_not_be_told_is_told_at_the_next_look(tmp_path, monkeypatch):
    feed = SpooledFeed(tmp_path)
    source = feed.source()
    feed.append(1)
    position = source.latest_offset(source.initial_offset())
    feed.append(1)
    monkeypatch.setattr(type(source._inner), "commit", refuse)
    with pytest.raises(SourceError):
        source.latest_offset(position)
    monkeypatch.undo()
    assert list(feed.folder.glob("*.json"))
    source.latest_offset(position)
    assert not list(feed.folder.glob("*.json"))


class RestlessSource(SimpleSource):
    """Has another end whenever it is asked."""

    kind = "restless"
    options = (Option("poll.interval", "how often it is asked", OptionType.DURATION),)
    ends = loads = 0

    def supports_incremental(self):
        return "poll.interval" not in self.settings

    def get_current_offset(self):
        self.ends += 1
        return self.ends

    def bulk_load(self, until):
        self.loads += 1
        return self.incremental_load(0, until)

    def incremental_load(self, since, until):
        return pa.table({"id": range(since, until)})


def test_a_source_that_never_rests_gives_what_was_there_a_moment_ago(tmp_path):
    restless = RestlessSource(SourceSpec("restless", "restless://"))
    source = SpooledSource(restless, tmp_path / "spool", durable=False, positions=list)
    position, found = source.initial_offset(), []
    for _ in range(5):
        end = source.latest_offset(position)
        for part in source.partitions(position, end):
            found += [row for batch in source.read(part, source.schema(), None) for row in batch["id"].to_pylist()]
        position = end
    assert found == list(range(len(found)))
    assert position["files"] == 6
    assert restless.loads == 2, "all of it is loaded for the columns, and to begin with"


def test_who_waits_for_a_table_of_a_source_that_never_rests_waits_for_what_was_there(monkeypatch):
    load = plugins.load
    monkeypatch.setattr(
        plugins, "load", lambda group, name: RestlessSource if name == "restless" else load(group, name)
    )
    monkeypatch.setattr(plugins, "names", lambda group, names=plugins.names: [*names(group), "restless"])
    with velostream.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT id FROM 'restless://here?poll.interval=10ms'")
        connection.wait("t", timeout=120)
        for _ in range(3):
            connection.drain("t", timeout=60)


def test_who_wants_what_is_to_come_gets_nothing_that_nobody_had_taken_in(tmp_path):
    feed = SpooledFeed(tmp_path)

    class LatestMailbox(plugins.load(Group.SOURCES, "mailbox")):
        begins_at_latest = True

        def initial_offset(self):
            return self.latest_offset(0)

    def opened():
        inner = LatestMailbox(SourceSpec("mailbox", f"mailbox://{feed.folder}"))
        return SpooledSource(inner, feed.spool, durable=False, positions=list)

    feed.append(2)
    first = opened()
    begin = first.initial_offset()
    feed.append(2)
    later = opened().initial_offset()
    feed.append(2)
    end = first.latest_offset(begin)
    assert ids(first, begin, end) == [3, 4, 5, 6]
    assert ids(first, later, end) == [5, 6]


def ids(source, start, end):
    parts = source.partitions(start, end)
    return [
        row for part in parts for batch in source.read(part, source.schema(), None) for row in batch["id"].to_pylist()
    ]


def test_what_one_statement_has_read_stays_for_another_that_has_not_begun(tmp_path):
    feed = MailboxFeed(tmp_path)
    feed.append(1)
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute(f"CREATE TABLE early AS SELECT id FROM 'mailbox://{feed.folder}'")
        connection.drain("early", timeout=120)
        # In an ingest of its own, and held up: it has committed nothing when it is paused.
        connection.execute("CREATE TABLE names AS SELECT id, name FROM memory://names")
        connection.execute(
            f"CREATE TABLE late AS SELECT m.id, n.name FROM 'mailbox://{feed.folder}' m "
            "LEFT JOIN names n ON n.id = m.id"
        )
        connection.execute("PAUSE QUERY late")
        for _ in range(3):
            feed.append(2)
            connection.drain("early", timeout=60)
    with velostream.connect(tmp_path / "state") as connection:
        feed.append(1)
        connection.drain("early", timeout=60)
        connection.execute("RESUME QUERY late")
        connection.memory("names").append([{"id": 1, "name": "one"}])
        connection.drain("late", timeout=60)
        for table in ("early", "late"):
            assert sorted(connection.execute(f"SELECT id FROM {table}").fetchall()) == [(n,) for n in range(1, 9)]


def test_files_stay_for_whoever_has_not_read_them(tmp_path):
    feed = SpooledFeed(tmp_path)
    others = []
    source = SpooledSource(MailboxFeed.source(feed), feed.spool, durable=False, positions=lambda: others)
    ends = []
    position = source.initial_offset()
    for _ in range(4):
        feed.append(1)
        position = source.latest_offset(position)
        ends.append(position)
    others[:] = [ends[1], {"spool": "another", "files": 0}, 7, None]
    source.commit(ends[3])
    assert source.latest_offset(ends[1]) == ends[3]
    with pytest.raises(SourceError) as caught:
        source.latest_offset(ends[0])
    assert caught.value.code == "records-expired"


@pytest.mark.parametrize("point", ["ingest.before-commit", "ingest.after-commit"])
def test_messages_that_are_gone_are_in_the_table_after_a_crash(point, tmp_path):
    feed = MailboxFeed(tmp_path)
    feed.append(5)
    feed.append_bad_record()
    feed.append(5)
    view = f"CREATE TABLE t AS SELECT id, name FROM 'mailbox://{feed.folder}'"
    play_until_crash(f"> {view};\n> SELECT count(*) FROM t;\n-1\n", folder=tmp_path, point=point)
    assert not list(feed.folder.glob("*.json"))
    with velostream.connect(tmp_path / "state") as connection:
        feed.append(3)
        connection.drain("t", timeout=120)
        assert sorted(row[0] for row in connection.execute("SELECT id FROM t")) == list(range(1, 14))
        assert [letter[4] for letter in connection.execute("SHOW DEAD LETTERS t")] == [b'"no row"']
        # Who comes later begins with what is kept.
        connection.execute(view.replace("t AS", "u AS"))
        connection.drain("u", timeout=60)
        feed.append(2)
        connection.drain("t", timeout=60)
        connection.drain("u", timeout=60)
        assert len(connection.table("t")) == 15
        assert connection.execute("SELECT max(id) FROM u").fetchone() == (15,)


def test_a_ledger_is_followed_as_its_options_say(tmp_path):
    feed = LedgerFeed(tmp_path)
    feed.append(3)
    with velostream.connect() as connection:
        for name, option in {"once": "", "added": "?follow=true", "polled": "?poll.interval=100ms"}.items():
            connection.execute(f"CREATE TABLE {name} AS SELECT id, price FROM 'ledger://{feed.path}{option}'")
            connection.wait(name, timeout=120)
        feed.append(4)
        for name in ("added", "polled"):
            connection.drain(name, timeout=60)
        counts = [len(connection.table(name)) for name in ("once", "added", "polled")]
    assert counts == [3, 7, 7]
