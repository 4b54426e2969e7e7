"""One process at a time on a state directory; a killed one leaves it free."""

import os
import time

import pytest

import velostream
from velostream.errors import StateError
from velostream.testing.crash import Child

HOLDER = """
import sys, velostream
connection = velostream.connect(sys.argv[1])
if sys.argv[2] == "spark":
    connection.memory("orders").append([{"user_id": 1}])
    connection.execute("CREATE TABLE counts AS SELECT user_id, COUNT(*) AS n FROM memory://orders GROUP BY user_id")
    connection.drain("counts", timeout=60)
print("open", flush=True)
import threading
threading.Event().wait()
"""


@pytest.fixture
def holder(tmp_path):
    def start(kind):
        child = Child(["-c", HOLDER, tmp_path / "state", kind], log=tmp_path / "log")
        children.append(child)
        child.await_line("open", timeout=90)
        return child

    children = []
    yield start
    for child in children:
        child.kill()


def test_a_second_process_is_refused_and_told_who_holds_it(holder, tmp_path):  # B58
    child = holder("idle")
    with pytest.raises(StateError) as refused:
        velostream.connect(tmp_path / "state")
    assert refused.value.code == "state-locked"
    assert f"process {child.pid} " in refused.value.detail
    assert str(tmp_path / "state") in refused.value.message


def test_a_second_connection_of_one_process_is_refused_too(tmp_path):
    with velostream.connect(tmp_path / "state"), pytest.raises(StateError, match=f"process {os.getpid()} "):
        velostream.connect(tmp_path / "state")
    velostream.connect(tmp_path / "state").close()


def test_a_killed_process_leaves_the_directory_free_within_ten_seconds(holder, tmp_path):
    child = holder("spark")
    child.kill()
    killed_at = time.monotonic()
    with velostream.connect(tmp_path / "state") as connection:
        assert time.monotonic() - killed_at < 10
        connection.drain("counts", timeout=60)
        assert connection.execute("SELECT * FROM counts").fetchall() == [(1, 1)]
