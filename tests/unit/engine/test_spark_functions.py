"""Functions that a session is to know, registered before, while and after Spark starts."""

from __future__ import annotations

import threading

import pytest

from velostream.engine.spark import SparkRuntime

PATIENCE = 30


class SlowStart:
    """A session that takes as long to begin as a test wants, and remembers what was registered."""

    def __init__(self):
        self.asked = threading.Event()
        self.may_begin = threading.Event()
        self.known = []
        self.conf = self

    def newSession(self):  # noqa: N802 - Spark's name
        self.asked.set()
        assert self.may_begin.wait(PATIENCE)
        return self

    def isModifiable(self, key):  # noqa: N802 - Spark's name
        return False


@pytest.fixture
def given():
    return SlowStart()


@pytest.fixture
def runtime(given, tmp_path):
    runtime = SparkRuntime(tmp_path, session=given)
    yield runtime
    given.may_begin.set()
    runtime.stop()


def test_registering_does_not_wait_for_a_start_under_way(runtime, given):
    runtime.register("before", lambda session: session.known.append("before"))
    runtime.warm_up()
    assert given.asked.wait(PATIENCE)
    # On a thread of its own, so that waiting for the start would show as a failure and not as a test that hangs.
    registering = threading.Thread(
        target=runtime.register, args=("meanwhile", lambda session: session.known.append("meanwhile")), daemon=True
    )
    registering.start()
    registering.join(PATIENCE / 10)
    assert not registering.is_alive()
    given.may_begin.set()
    assert runtime.session() is given
    runtime.register("after", lambda session: session.known.append("after"))
    assert given.known == ["before", "meanwhile", "after"]
