"""A Spark session for tests of the parts that talk to Spark directly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from velostream.engine.relations import SnapshotRelations
from velostream.engine.replica import ReplicaPublisher
from velostream.engine.spark import SparkRuntime

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def session(spark_kept: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    runtime = SparkRuntime(tmp_path_factory.mktemp("spark"))
    try:
        yield runtime.session()
    finally:
        runtime.stop()


@pytest.fixture
def relations(tmp_path):
    return SnapshotRelations(tmp_path / "snapshots")


@pytest.fixture
def publisher(tmp_path):
    return ReplicaPublisher(tmp_path / "replicas")
