"""Spark's connector for Kafka: the jars that Real-Time Mode needs and PySpark doesn't bring along."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from velostream.engine.archive import cache_directory
from velostream.engine.artifacts import MavenArtifact, Tell, cached, fetch_artifacts

CONNECTOR = (
    MavenArtifact(
        "org.apache.spark",
        "spark-sql-kafka-0-10_2.13",
        "4.2.0",
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705",
    ),
    # Registries lack that of 4.2; only log-ins by delegation tokens, which we don't offer, would tell them apart.
    MavenArtifact(
        "org.apache.spark",
        "spark-token-provider-kafka-0-10_2.13",
        "4.0.0",
        "f2be3b76f9e6cbe63379d4e4e0dc14f59dbf056ae2ad16ff15ac108004c86767",
    ),
    MavenArtifact(
        "org.apache.kafka",
        "kafka-clients",
        "3.9.2",
        "014b4ef36884478a932641818b080c36a8f8e2e92dc771e800c9d2694f4f83d8",
    ),
    MavenArtifact(
        "org.apache.commons",
        "commons-pool2",
        "2.13.1",
        "f77a5060d6936a9144023584232f9de3f2248f1abfe156e9d31795f18770674f",
    ),
)


def connector_folder() -> Path:
    """Where the jars are kept, fetched or not; another place for other jars."""
    digest = hashlib.sha256("".join(artifact.sha256 for artifact in CONNECTOR).encode()).hexdigest()[:16]
    return cache_directory() / f"spark-kafka-{digest}"


def connector_jars(tell: Tell) -> Sequence[Path]:
    """The jars, fetched if they aren't there yet; the error `missing-artifact` if they can't be had."""

    def fill(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            for jar in fetch_artifacts(CONNECTOR, into=Path(work), tell=tell):
                jar.rename(folder / jar.name)

    folder = cached(connector_folder(), fill=fill)
    return [folder / artifact.file_name for artifact in CONNECTOR]
