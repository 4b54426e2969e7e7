"""Options of librdkafka as properties of Java's client."""

import pytest

from velostream.errors import UnsupportedError
from velostream.model.kafka import CLIENT_OPTIONS
from velostream.model.kafka_java import java_properties
from velostream.model.options import Options


def properties(**given):
    return java_properties(
        "host:9092", Options({name.replace("_", "."): value for name, value in given.items()}, CLIENT_OPTIONS)
    )


def test_what_both_know_is_passed_on():
    assert properties(kafka_client_id="me", connect_timeout="3s") == {
        "client.id": "me",
        "bootstrap.servers": "host:9092",
    }


def test_a_login_is_that_of_java(monkeypatch):
    monkeypatch.setenv("SECRET", 'pass"word')
    found = properties(
        security_protocol="sasl_ssl", sasl_mechanism="SCRAM-SHA-512", sasl_username="u", sasl_password="${SECRET}",
        ssl_ca_location="/ca.pem",
    )  # fmt: skip
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" '
        'password="pass\\"word";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "bootstrap.servers": "host:9092",
    }


@pytest.mark.parametrize(
    "given",
    [
        {"kafka_queued_min_messages": "1"},
        {"ssl_key_location": "/k"},
        {"sasl_username": "u", "sasl_mechanism": "GSSAPI"},
    ],
)
def test_what_only_librdkafka_knows_is_refused(given):
    with pytest.raises(UnsupportedError) as refused:
        properties(**given)
    assert refused.value.code == "unsupported-trigger"
