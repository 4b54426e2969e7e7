"""Whatever happens to watched files, what was read of them is what a full reading gives at the end."""

import json
import os
import tempfile
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.model.schema import Schema
from velostream.sources.base import SourceSpec
from velostream.sources.files import FileSource

SCHEMA = Schema.of(("n", "BIGINT"), ("s", "STRING"))
NAMES = ("a.csv", "b.csv", "c.csv")
FILE = st.sampled_from(NAMES)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), FILE, st.integers(1, 4)),
        st.tuples(st.just("begin line"), FILE, st.just(0)),
        st.tuples(st.just("rewrite"), FILE, st.integers(0, 4)),
        st.tuples(st.just("change first"), FILE, st.just(0)),
        st.tuples(st.just("delete"), FILE, st.just(0)),
        st.tuples(st.just("step"), FILE, st.sampled_from((None, 1, 2, 5))),
        st.tuples(st.just("restart"), FILE, st.just(0)),
    ),
    max_size=25,
)


class Files:
    """The folder, and the lines that ought to be read of it."""

    def __init__(self, folder):
        self.folder = folder
        self.next = 1
        self.ticks = 0

    def lines(self, count):
        made = "".join(f'{number},"row\n{number}"\n' for number in range(self.next, self.next + count))
        self.next += count
        return made

    def act(self, action, name, count):
        path = self.folder / name
        text = path.read_text() if path.exists() else "n,s\n"
        if action == "append":
            if not text.endswith("\n"):
                text += 'x"\n'
            text += self.lines(count)
        elif action == "begin line" and text.endswith("\n"):
            text += f'{self.next},"half'
            self.next += 1
        elif action == "rewrite":
            text = "n,s\n" + self.lines(count)
        elif action == "change first":
            text = text.replace("n,s\n", f"n,s\n{self.next},changed\n", 1)
            self.next += 1
        elif action == "delete":
            path.unlink(missing_ok=True)
            return
        path.write_text(text)
        # Each write gets a time of its own, long enough ago to be quiet.
        self.ticks += 1
        moment = time.time() - 10_000 + self.ticks
        os.utime(path, (moment, moment))

    def complete_numbers(self):
        found = []
        for path in sorted(self.folder.glob("*.csv")):
            text = path.read_text()
            if not text.endswith("\n"):
                text = text[: text.rindex("\n", 0, text.rindex(',"half')) + 1]
            found += [int(line.split(",")[0]) for line in text.splitlines()[1:] if "," in line]
        return sorted(found)


class Table:
    """Rows by origin, as the engine keeps them."""

    def __init__(self, source):
        self.source = source
        self.position = source.initial_offset()
        self.rows = {}
        self.bad = []

    def step(self, limit):
        end = self.source.latest_offset(self.position, max_rows=limit)
        for partition in self.source.partitions(self.position, end):
            if partition.replaces:
                self.rows[partition.origin] = []
            for batch in self.source.read(partition, SCHEMA, self.bad.append):
                self.rows.setdefault(partition.origin, []).extend(batch.column(0).to_pylist())
        moved = end != self.position
        assert self.source.reached(end, self.position)
        assert not moved or not self.source.reached(self.position, end)
        self.position = json.loads(json.dumps(end))
        return moved

    def numbers(self):
        return sorted(number for numbers in self.rows.values() for number in numbers)


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_a_watched_folder_is_what_its_files_are(actions):  # B42
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        spec = SourceSpec("file", f"file://{folder}/*.csv", {"watch": "true"}, SCHEMA)
        table = Table(FileSource(spec))
        for action, name, count in actions:
            if action == "step":
                table.step(count)
            elif action == "restart":
                table.source = FileSource(spec)
            else:
                files.act(action, name, count)
        while table.step(None):
            pass
        assert table.numbers() == files.complete_numbers()
        assert table.bad == []


@settings(max_examples=60, deadline=None)
@given(ACTIONS)
def test_an_appended_folder_gives_every_line_once(actions):  # B42
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        spec = SourceSpec("file", f"file://{folder}/*.csv", {"watch": "true", "watch.mode": "append"}, SCHEMA)
        table = Table(FileSource(spec))
        for action, name, count in actions:
            if action == "step":
                table.step(count)
            elif action == "restart":
                table.source = FileSource(spec)
            elif action in ("append", "begin line"):
                files.act(action, name, count)
        while table.step(None):
            pass
        assert table.numbers() == files.complete_numbers()
        assert table.bad == []
