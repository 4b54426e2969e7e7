"""The connection's side of a query in Real-Time Mode: it is stopped, and its process says what it shouldn't."""

from __future__ import annotations

import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from velostream.engine import jvm
from velostream.engine.jvm import Identity
from velostream.engine.realtime import process, runner
from velostream.engine.realtime.process import Order, Word
from velostream.engine.realtime.runner import RealtimeRunner
from velostream.engine.status import StatusBoard
from velostream.errors import VelostreamError

BEGIN = """
import json, os, subprocess, sys
out = os.fdopen(int(sys.argv[1]), "w")
sys.stdin.readline()
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts a process that does what the lines say, in place of that of a query."""
    begun = []

    def start(lines):
        (tmp_path / "in_its_place.py").write_text(BEGIN + lines)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(process, "__name__", "in_its_place")
        order = Order(job={}, jars=[], slots=1, checkpoint="", logs=str(tmp_path / "logs"), inherit=[], settings={})
        begun.append(runner._Process(order))
        return begun[-1]

    yield start
    for one in begun:
        one.end()


def told(running):
    """What it says until it is lost, and the error then."""
    words, deadline = [], time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            news = running.news(0.1)
        except VelostreamError as error:
            return words, error
        if news is not None:
            words.append(news["word"])
    pytest.fail("it isn't noticed that the process has ended")


def test_what_a_library_prints_is_no_word_and_is_among_the_last_ones(started):
    running = started(
        """
print("a warning", flush=True)
os.write(1, b"\\xff of C\\n")
print(json.dumps({"word": "started"}), file=out, flush=True)
"""
    )
    words, error = told(running)
    assert words == [Word.STARTED]
    assert error.code == "spark-lost"
    assert "a warning" in error.detail


def test_a_line_that_can_not_be_read_does_not_hide_what_follows(started):
    running = started(
        """
print("not JSON", file=out)
print(json.dumps({"word": "started"}), file=out)
out.write('{"word": "prog')
"""
    )
    words, error = told(running)
    assert words == [Word.STARTED]
    assert error.code == "spark-lost"
    assert running.ended


@pytest.mark.parametrize("is_heard", [True, False])
def test_the_end_of_a_process_is_that_of_its_jvm(started, monkeypatch, is_heard):
    monkeypatch.setattr(jvm, "_ORPHAN_TIMEOUT_SECONDS", 0.2)
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        identity = Identity.of(sleeper.pid)
        running = started(
            f"""
print(json.dumps({{"word": "spark", "jvm": {{"pid": {identity.pid}, "started": "{identity.started}"}}}}), file=out)
"""
        )
        if is_heard:
            assert told(running)[0] == [Word.SPARK]
        running.end()
        assert not identity.alive
    finally:
        sleeper.kill()
        sleeper.wait()


@pytest.mark.parametrize("when", ["before", "while"])
def test_waiting_for_a_query_ends_when_it_is_stopped(when):
    asked = threading.Event()

    class NeverThere:
        def latest_offset(self, position):
            asked.set()
            return {}

        def reached(self, position, target):
            return False

    board = StatusBoard("q", "query")
    context = SimpleNamespace(board=lambda _: board, closing=threading.Event())
    waited_for = RealtimeRunner(context, SimpleNamespace(name="q"), source=NeverThere(), sink=None, start={}, job=None)
    if when == "before":
        waited_for.stop()
    waiting = threading.Thread(target=waited_for.drain, args=(time.monotonic() + 20,), daemon=True)
    waiting.start()
    if when == "while":
        assert asked.wait(10)
        waited_for.stop()
    waiting.join(10)
    assert not waiting.is_alive()
    assert asked.is_set() == (when == "while")
