"""What sources and sinks of Kafka share: where a topic is, how clients reach it, and what their errors mean.

The driver, librdkafka by `confluent_kafka`, is imported here, when a client is made. What leaves this
module of it are clients, whose calls stand inside `TopicClient.speaking`.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

from velostream.errors import Category, OptionError, SourceError, StoreError
from velostream.model.options import Option, Options, OptionType

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

CLIENT_OPTIONS = (
    Option("bootstrap.servers", "brokers, host:port with commas between; default: VELOSTREAM_KAFKA_BROKERS"),
    Option("security.protocol", "plaintext, ssl, sasl_plaintext or sasl_ssl"),
    Option("sasl.mechanism", "how to log in: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
    Option("sasl.username", "user to log in as"),
    Option("sasl.password", "password to log in with"),
    Option("ssl.*", "properties of TLS, as librdkafka names them"),
    Option("kafka.*", "any property of the client, as librdkafka names it"),
    Option("connect.timeout", "how long brokers may take to answer", OptionType.DURATION, "5s"),
)
TOPIC_OPTIONS = (
    Option("topic.create.if.missing", "create a topic that isn't there", OptionType.BOOLEAN, "false"),
    Option("topic.partitions", "partitions of a topic that is created", OptionType.INTEGER),
    Option("topic.replication", "copies of a topic that is created, at most one per broker", OptionType.INTEGER),
)

_ADDRESS = re.compile(r"kafka:(?://)?(?:(?P<brokers>[^/]*)/)?(?P<topic>[^/]*)/?")
_BROKERS = "VELOSTREAM_KAFKA_BROKERS"
_DRIVER = "confluent_kafka"
_PASSED_ON = ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password")
_DEFAULT_PARTITIONS = 6
_DEFAULT_REPLICATION = 3
_BETWEEN_LEADERS = ("NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE", "UNKNOWN_LEADER_EPOCH", "FENCED_LEADER_EPOCH")
"""What brokers answer for a moment after a topic was made or a partition has moved."""
_BETWEEN_LOOKS_SECONDS = 0.05
_COMPLAINTS_KEPT = 50
_DOWN_SECONDS = 1.0
"""For how long all brokers may refuse before that is told: a name may have several addresses that are tried in turn."""
_CATEGORIES = {
    Category.MISSING: "UNKNOWN_TOPIC_OR_PART UNKNOWN_TOPIC_ID _UNKNOWN_TOPIC _UNKNOWN_PARTITION",
    Category.NETWORK: (
        "_TRANSPORT _RESOLVE _TIMED_OUT _TIMED_OUT_QUEUE _MSG_TIMED_OUT _ALL_BROKERS_DOWN _WAIT_COORD _WAIT_CACHE "
        "REQUEST_TIMED_OUT BROKER_NOT_AVAILABLE LEADER_NOT_AVAILABLE NETWORK_EXCEPTION NOT_LEADER_FOR_PARTITION "
        "COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS NOT_COORDINATOR NOT_CONTROLLER REPLICA_NOT_AVAILABLE "
        "NOT_ENOUGH_REPLICAS NOT_ENOUGH_REPLICAS_AFTER_APPEND KAFKA_STORAGE_ERROR UNSTABLE_OFFSET_COMMIT"
    ),
    Category.AUTHENTICATION: (
        "_AUTHENTICATION _SSL SASL_AUTHENTICATION_FAILED UNSUPPORTED_SASL_MECHANISM ILLEGAL_SASL_STATE "
        "SECURITY_DISABLED TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED "
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED DELEGATION_TOKEN_AUTHORIZATION_FAILED"
    ),
    Category.CONFIGURATION: (
        "_INVALID_ARG _UNSUPPORTED_FEATURE _NOT_IMPLEMENTED _KEY_SERIALIZATION _VALUE_SERIALIZATION "
        "_KEY_DESERIALIZATION _VALUE_DESERIALIZATION INVALID_CONFIG UNSUPPORTED_VERSION TOPIC_EXCEPTION "
        "INVALID_REPLICATION_FACTOR INVALID_PARTITIONS POLICY_VIOLATION MSG_SIZE_TOO_LARGE INVALID_MSG_SIZE "
        "UNSUPPORTED_FOR_MESSAGE_FORMAT UNSUPPORTED_COMPRESSION_TYPE INVALID_TRANSACTION_TIMEOUT"
    ),
}
_BY_CODE = {code: category for category, codes in _CATEGORIES.items() for code in codes.split()}


def category_of(code: str) -> Category:
    """What kind of trouble a librdkafka error stands for, by the error's name."""
    return _BY_CODE.get(code, Category.UNKNOWN)


def brokers_are_known(option_names: Iterable[str]) -> bool:
    """Whether a topic can be found by its name alone, by an option of these or by the environment."""
    return "bootstrap.servers" in option_names or bool(os.environ.get(_BROKERS, "").strip())


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """A topic and the brokers that have it."""

    brokers: str
    topic: str

    @classmethod
    def of(cls, uri: str, options: Options) -> TopicAddress:
        """`kafka://topic` or `kafka://host:9092,…/topic`; brokers come from the URI, the options or the environment."""
        match = _ADDRESS.fullmatch(uri)
        topic = "" if match is None else match["topic"]
        if match is None or not topic:
            raise SourceError(
                f'address "{uri}" names no topic',
                hint="write kafka://topic or kafka://host:9092/topic",
                code="invalid-address",
                category=Category.CONFIGURATION,
            )
        brokers = match["brokers"] or options.text("bootstrap.servers") or os.environ.get(_BROKERS, "").strip()
        if not brokers:
            raise SourceError(
                f'it is not known where kafka topic "{topic}" is',
                hint=f"write kafka://host:9092/{topic}, or WITH ('bootstrap.servers' = 'host:9092'), "
                "or export VELOSTREAM_KAFKA_BROKERS=host:9092",
                code="missing-brokers",
                category=Category.CONFIGURATION,
            )
        return cls(brokers, topic)


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as the brokers describe it."""

    id: str
    """Other than that of any other topic, those before it under the same name included."""
    partitions: tuple[int, ...]


class TopicClient:
    """One topic through librdkafka. Opens nothing before the first call that needs it. For one thread at a time."""

    def __init__(self, address: TopicAddress, options: Options) -> None:
        self.address = address
        self._options = options
        self._timeout = (options.duration("connect.timeout") or timedelta(seconds=5)).total_seconds()
        self._made_admin: AdminClient | None = None
        self._complaints: deque[Any] = deque(maxlen=_COMPLAINTS_KEPT)
        """What librdkafka said went wrong by itself since the last call: why a call got no answer."""

    @property
    def timeout_seconds(self) -> float:
        return self._timeout

    def describe(self) -> TopicState:
        """The topic as it is now; the error `missing-topic` when there is none."""
        name = self.address.topic
        with self.speaking():
            from confluent_kafka import TopicCollection

            answer = self._admin().describe_topics(TopicCollection([name]), request_timeout=self._timeout)
            found = self._answer(answer[name])
        return TopicState(str(found.topic_id), tuple(sorted(partition.id for partition in found.partitions)))

    def offsets(self, partitions: Sequence[int], *, beginning: bool = False, committed: bool = True) -> dict[int, int]:
        """The first offset of each partition, or the one after its last; `committed` stops before open transactions."""
        if not partitions:
            return {}
        driver = _driver()
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = OffsetSpec.earliest() if beginning else OffsetSpec.latest()  # type: ignore[no-untyped-call]
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        places = {TopicPartition(self.address.topic, partition): wanted for partition in partitions}
        deadline = time.monotonic() + self._timeout
        with self.speaking():
            while True:
                answers = self._admin().list_offsets(places, isolation_level=level, request_timeout=self._timeout)
                try:
                    return {place.partition: int(self._answer(answer).offset) for place, answer in answers.items()}
                except driver.KafkaException as error:
                    if error.args[0].name() not in _BETWEEN_LEADERS or time.monotonic() > deadline:
                        raise
                    time.sleep(_BETWEEN_LOOKS_SECONDS)

    def create_if_missing(self) -> None:
        """Make the topic unless it is there, with as many partitions and copies as options or environment say."""
        try:
            self.describe()
        except SourceError as error:
            if error.code != "missing-topic":
                raise
        else:
            return
        with self.speaking(ignoring="TOPIC_ALREADY_EXISTS"):
            from confluent_kafka.admin import NewTopic

            copies = min(self._replication(), len(self._admin().list_topics(timeout=self._timeout).brokers))
            topic = NewTopic(self.address.topic, num_partitions=self._partitions(), replication_factor=copies)
            answers = self._admin().create_topics([topic], request_timeout=self._timeout)
            self._answer(answers[self.address.topic])
        deadline = time.monotonic() + self._timeout
        while True:
            # The brokers learn of a new topic one after the other.
            try:
                self.describe()
            except SourceError as error:
                if error.code != "missing-topic" or time.monotonic() > deadline:
                    raise
                time.sleep(_BETWEEN_LOOKS_SECONDS)
            else:
                return

    def consumer(self, needed: Mapping[str, Any], *, preferred: Mapping[str, Any] | None = None) -> Consumer:
        """A consumer that joins no group, the caller's to close; `kafka.*` options win over what is preferred."""
        driver = _driver()
        preferred = {"group.id": "velostream", **(preferred or {})}
        with self.speaking():
            made: Consumer = driver.Consumer(self._properties({"enable.auto.commit": False, **needed}, preferred))
            return made

    def producer(self, needed: Mapping[str, Any], *, preferred: Mapping[str, Any]) -> Producer:
        """A producer; `kafka.*` options win over what is preferred."""
        driver = _driver()
        with self.speaking():
            made: Producer = driver.Producer(self._properties(needed, preferred))
            return made

    @contextmanager
    def speaking(self, *, ignoring: str = "") -> Iterator[None]:
        """Within, the driver's errors become ours; one of the name `ignoring` passes for success."""
        driver = _driver()
        self._complaints.clear()
        try:
            yield
        except driver.KafkaException as error:
            if error.args[0].name() != ignoring:
                raise self.error(error.args[0]) from error

    def error(self, error: Any) -> SourceError:
        """What a `KafkaError` means, told as ours. That nobody answered is told by the reason librdkafka gave."""
        if category_of(error.name()) is Category.NETWORK:
            error = next((c for c in self._complaints if category_of(c.name()) is Category.AUTHENTICATION), error)
        category = category_of(error.name())
        if category is Category.MISSING:
            return self._missing()
        reasons = [error.str()]
        if category is Category.NETWORK:
            reasons = [c.str() for c in self._complaints if c.name() != "_ALL_BROKERS_DOWN"][-1:] or reasons
        return SourceError.unreachable("kafka", where=self.address.brokers, reason=reasons[0], category=category)

    def no_answer(self, seconds: float) -> SourceError:
        """The error for brokers that have been silent for so long."""
        for complaint in self._complaints:
            return self.error(complaint)
        reason = f"no answer for {seconds:.0f} s"
        return SourceError.unreachable("kafka", where=self.address.brokers, reason=reason)

    def close(self) -> None:
        # The driver ends its threads when the last reference goes.
        self._made_admin = None

    def _missing(self) -> SourceError:
        driver = _driver()
        copies = self._replication()
        try:
            cluster = self._admin().list_topics(timeout=self._timeout)
            known, copies = list(cluster.topics), min(copies, len(cluster.brokers))
        except driver.KafkaException:
            # Near names are a courtesy; that the topic is missing is known already.
            known = []
        return SourceError.missing_topic(
            self.address.topic,
            brokers=self.address.brokers,
            partitions=self._partitions(),
            replication=copies,
            known=known,
        )

    def _admin(self) -> AdminClient:
        if self._made_admin is None:
            _driver()
            from confluent_kafka.admin import AdminClient

            self._made_admin = AdminClient(self._properties({}, {}))
        return self._made_admin

    def _answer(self, future: Future[Any]) -> Any:
        """What the brokers answer; gives up early when none can be reached or one refuses us."""
        admin = self._admin()
        started = time.monotonic()
        while not future.done():
            admin.poll(0.01)
            waited = time.monotonic() - started
            for complaint in list(self._complaints):
                refused = category_of(complaint.name()) is Category.AUTHENTICATION
                if refused or (complaint.name() == "_ALL_BROKERS_DOWN" and waited > _DOWN_SECONDS):
                    raise self.error(complaint)
            if waited > self._timeout + 1:
                raise self.no_answer(waited)
        return future.result()

    def _properties(self, needed: Mapping[str, Any], preferred: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: self._options.text(name) for name in self._options}
        said = {name.removeprefix("kafka."): value for name, value in given.items() if name.startswith("kafka.")}
        said |= {name: value for name, value in given.items() if name in _PASSED_ON or name.startswith("ssl.")}
        return {
            "client.id": "velostream",
            "log_level": 0,
            "socket.connection.setup.timeout.ms": max(1000, round(self._timeout * 1000)),
            "reconnect.backoff.max.ms": 1000,
            **preferred,
            **said,
            **needed,
            "bootstrap.servers": self.address.brokers,
            "error_cb": self._complaints.append,
        }

    def _partitions(self) -> int:
        found = self._options.integer("topic.partitions")
        return found or _number_of("VELOSTREAM_DEFAULT_PARTITIONS", _DEFAULT_PARTITIONS)

    def _replication(self) -> int:
        found = self._options.integer("topic.replication")
        return found or _number_of("VELOSTREAM_DEFAULT_REPLICATION_FACTOR", _DEFAULT_REPLICATION)


def _number_of(variable: str, default: int) -> int:
    value = os.environ.get(variable, "").strip()
    if value and not (value.isdigit() and int(value)):
        raise OptionError.value(variable, value, expected="a whole number above 0")
    return int(value) if value else default


def _driver() -> ModuleType:
    try:
        import confluent_kafka
    except ImportError as error:
        raise StoreError.missing_driver("kafka", module=_DRIVER, extra="kafka") from error
    return confluent_kafka
