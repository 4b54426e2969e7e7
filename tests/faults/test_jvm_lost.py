"""Spark's JVM is killed under an open connection: the statement says so, and the next one runs."""

from __future__ import annotations

import os
import signal

import pytest

import velostream
from velostream.engine import spark
from velostream.errors import VelostreamError


def kill_the_jvm() -> None:
    identity = spark._process_spark.identity
    assert identity is not None
    os.kill(identity.pid, signal.SIGKILL)


@pytest.fixture
def connection(tmp_path):
    with velostream.connect(tmp_path / "state") as connection:
        yield connection


def test_the_next_statement_starts_it_again(connection, eventually):
    connection.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    connection.execute("INSERT INTO t VALUES (1), (2)")
    query = "SELECT sum(id) OVER () FROM t LIMIT 1"
    assert connection.execute(query).fetchall() == [(3,)]
    kill_the_jvm()
    codes = []

    def answered():
        try:
            return connection.execute(query).fetchall() == [(3,)]
        except VelostreamError as error:
            codes.append(error.code)
            return False

    eventually(answered, what="an answer")
    assert set(codes) <= {"spark-lost"}
