"""Options of Kafka clients as Java's client knows them, for what Spark's own connector reads and writes.

Ours are those of librdkafka. Where both have a property of one name and meaning it is passed on; what only librdkafka
knows is refused rather than taken and ignored.
"""

from __future__ import annotations

from velostream.errors import Category, UnsupportedError
from velostream.model.options import Options

_PREFIX = "kafka."
_ALIKE = frozenset(
    {
        "acks",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "compression.type",
        "connections.max.idle.ms",
        "delivery.timeout.ms",
        "fetch.max.bytes",
        "fetch.min.bytes",
        "linger.ms",
        "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retry.backoff.ms",
        "sasl.mechanism",
        "security.protocol",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
    }
)
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_properties(brokers: str, options: Options) -> dict[str, str]:
    """Properties of Java's client for the options of a source or sink; `unsupported-trigger` names one it lacks."""
    names = [name for name in options if name.startswith((_PREFIX, "ssl.", "sasl.")) or name == "security.protocol"]
    given = {name.removeprefix(_PREFIX): (name, options.text(name) or "") for name in names}
    user, password = given.pop("sasl.username", None), given.pop("sasl.password", None)
    found: dict[str, str] = {}
    for property_name, (name, value) in given.items():
        if property_name == "ssl.ca.location":
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": value}
        elif property_name == "security.protocol":
            found[property_name] = value.upper()
        elif property_name == "ssl.endpoint.identification.algorithm":
            found[property_name] = "" if value.lower() == "none" else value
        elif property_name in _ALIKE:
            found[property_name] = value
        else:
            raise _unknown(name)
    if user is not None or password is not None:
        mechanism = found.setdefault("sasl.mechanism", "PLAIN").upper()
        module = _LOGIN_MODULES.get(mechanism)
        if module is None:
            raise _unknown("sasl.mechanism")
        login = " ".join(
            f"{word}={_java_string('' if one is None else one[1])}"
            for word, one in (("username", user), ("password", password))
        )
        found["sasl.jaas.config"] = f"{module} required {login};"
    return {**found, "bootstrap.servers": brokers}


def _java_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _unknown(name: str) -> UnsupportedError:
    return UnsupportedError(
        f'option "{name}" can\'t be had in real time',
        detail="in Real-Time Mode Spark's own connector reads and writes topics, by Java's client of Kafka, which has "
        "no property of that name and meaning",
        hint="leave trigger out, and the query runs on librdkafka as fast as it can",
        code="unsupported-trigger",
        category=Category.UNSUPPORTED,
    )
