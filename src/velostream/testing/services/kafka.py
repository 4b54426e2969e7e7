"""Apache Kafka out of its Maven artifacts: one node that is broker and controller, without ZooKeeper."""

from __future__ import annotations

import base64
import itertools
import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from velostream.engine.artifacts import MavenArtifact
from velostream.engine.java import find_java
from velostream.errors import ServiceError
from velostream.testing.services.base import LOOPBACK, Service, free_port
from velostream.testing.services.downloads import cached, fetch_artifacts

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

USER = "reader"
PASSWORD = "the reader's secret"  # noqa: S105 - of a server that lives as long as the tests

_JARS = Path(__file__).with_name("kafka_jars.txt")
_VERSION = "4.3.1"
_ANSWER_SECONDS = 5.0
_LEADERS_SECONDS = 30.0


class KafkaService(Service):
    """A broker that makes no topics by itself, with a second listener at which clients have to log in."""

    kind: ClassVar[str] = "kafka"

    def __init__(self, *, url: str | None = None) -> None:
        super().__init__(url=url)
        self._numbers = itertools.count(1)
        self._login_port = 0

    @classmethod
    def fetch(cls) -> Path:
        return cached(f"kafka-{_VERSION}", fill=_fetch_jars)

    def prepare(self) -> None:
        self._login_port, controller_port = free_port(), free_port()
        login = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAIN",
            "listeners": (
                f"PLAIN://{LOOPBACK}:{self.port},LOGIN://{LOOPBACK}:{self._login_port},"
                f"CONTROLLER://{LOOPBACK}:{controller_port}"
            ),
            "advertised.listeners": f"PLAIN://{LOOPBACK}:{self.port},LOGIN://{LOOPBACK}:{self._login_port}",
            "listener.security.protocol.map": "PLAIN:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": login,
            "log.dirs": str(self.folder / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # In one word: an id may begin with a dash.
        identity = f"--cluster-id={cluster}"
        self.run([*self._java("-Xmx128m"), "kafka.tools.StorageTool", "format", identity, "-c", self._settings])

    def command(self) -> Sequence[str]:
        return [*self._java("-Xms256m", "-Xmx768m"), "kafka.Kafka", str(self._settings)]

    def own_url(self) -> str:
        return f"kafka://{LOOPBACK}:{self.port}"

    def ask(self) -> None:
        self.admin().list_topics(timeout=_ANSWER_SECONDS)

    def new_database(self) -> str:
        """The URL of a new topic of one partition."""
        return self.new_topic()

    @property
    def brokers(self) -> str:
        """What clients take for `bootstrap.servers`."""
        return urlsplit(self.url).netloc

    @property
    def login_brokers(self) -> str | None:
        """The same broker where `USER` has to log in with `PASSWORD`, by SASL/PLAIN without TLS; None if not ours."""
        return f"{LOOPBACK}:{self._login_port}" if self._login_port else None

    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.brokers, "log_level": 0})

    def new_topic(self, *, partitions: int = 1, **settings: str) -> str:
        """The URL of a new topic; `cleanup_policy="compact"` and the like are its settings."""
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self.create_topic(name, partitions=partitions, **settings)
        return f"{self.url}/{name}"

    def create_topic(self, name: str, *, partitions: int = 1, **settings: str) -> None:
        """Make a topic; it can be written and read when this returns."""
        from confluent_kafka.admin import NewTopic

        config = {setting.replace("_", "."): value for setting, value in settings.items()}
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        admin = self.admin()
        for made in admin.create_topics([wanted]).values():
            made.result()
        deadline = time.monotonic() + _LEADERS_SECONDS
        while not _has_leaders(admin, name, partitions):
            if time.monotonic() > deadline:
                raise ServiceError(f'topic "{name}" has no leaders after {_LEADERS_SECONDS:.0f} s')
            time.sleep(0.01)

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, *options: str) -> list[str]:
        # The least compiler and collector: a test's broker lives for a minute.
        economy = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        return [str(find_java().path), *options, *economy, "-cp", f"{self.fetch()}/*"]


def _has_leaders(admin: AdminClient, topic: str, partitions: int) -> bool:
    found = admin.list_topics(topic, timeout=_ANSWER_SECONDS).topics[topic]
    led = [partition for partition in found.partitions.values() if partition.leader >= 0]
    return found.error is None and len(led) == partitions


def _fetch_jars(folder: Path) -> None:
    artifacts = [MavenArtifact.parse(line) for line in _JARS.read_text().splitlines()]
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        for jar in fetch_artifacts(artifacts, into=Path(work)):
            jar.rename(folder / jar.name)
