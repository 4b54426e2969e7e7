"""Spark as a guest in the user's process: started on demand, shared, cancellable, and gone without a trace."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest
from py4j.protocol import Py4JError

from velostream.engine.spark import SparkRuntime
from velostream.errors import ClosedError


@pytest.fixture
def runtime(spark_kept, tmp_path):
    opened = SparkRuntime(tmp_path / "one", config={"spark.sql.shuffle.partitions": 3})
    (tmp_path / "one").mkdir()
    yield opened
    opened.stop()


def test_settings(runtime):
    assert not runtime.started
    conf = runtime.session().conf
    assert runtime.started
    assert conf.get("spark.sql.ansi.enabled") == "true"
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.sql.shuffle.partitions") == "3"
    assert conf.get("spark.sql.adaptive.streaming.stateless.enabled") == "false"


def test_connections_share_the_context_and_nothing_else(runtime, tmp_path):
    (tmp_path / "two").mkdir()
    other = SparkRuntime(tmp_path / "two")
    try:
        assert other.session().sparkContext is runtime.session().sparkContext
        runtime.session().range(1).createOrReplaceTempView("mine")
        assert not other.session().catalog.tableExists("mine")
        assert other.session().conf.get("spark.sql.shuffle.partitions") != "3"
    finally:
        other.stop()
    assert runtime.session().range(3).count() == 3
    with pytest.raises(ClosedError):
        other.session()


def test_a_given_session_is_used_and_left_as_it_was(runtime, tmp_path):
    theirs = runtime.session().newSession()
    theirs.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    ours = SparkRuntime(tmp_path, session=theirs)
    assert ours.session().conf.get("spark.sql.session.timeZone") == "UTC"
    assert theirs.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    ours.stop()
    assert theirs.range(2).count() == 2


def test_the_process_keeps_its_environment_module_path_and_signal_handler(runtime):
    runtime.session()
    assert not any(name.startswith("PYSPARK_GATEWAY") for name in os.environ)
    assert "SPARK_HOME" not in os.environ
    assert not any("userFiles" in path for path in sys.path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_no_litter_in_the_working_directory(runtime, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runtime.session().sql("CREATE TABLE litter USING parquet AS SELECT 1 AS a").collect()
    runtime.session().sql("DROP TABLE litter").collect()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]


def test_an_interrupt_ends_statements_and_leaves_the_rest_alone(runtime, eventually):
    session = runtime.session()
    tracker = session.sparkContext.statusTracker()
    outcome = []

    def wait_long(batches):
        threading.Event().wait(120)
        yield from batches

    def statement():
        with runtime.interruptible():
            try:
                outcome.append(runtime.session().range(0, 1, 1, 1).mapInArrow(wait_long, "id long").toArrow())
            except Py4JError as error:
                outcome.append(error)

    worker = threading.Thread(target=statement)
    worker.start()
    eventually(tracker.getActiveJobsIds, what="the job of the statement")
    assert session.range(5).count() == 5
    runtime.interrupt()
    worker.join(timeout=60)
    assert isinstance(outcome[0], Py4JError)
    assert session.range(5).count() == 5
