"""Kafka topics as a source, against a real broker."""

import itertools
import json
import pickle
import sys
import time

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions

from velostream.errors import Category, FurtherColumnsError, OptionError, SourceError, StoreError, render_text
from velostream.model import kafka as kafka_model
from velostream.model.kafka import TopicAddress, category_of
from velostream.model.schema import Column, Schema
from velostream.sources.base import Emits, SourceSpec
from velostream.sources.kafka import KafkaSource
from velostream.testing.kafka_feed import send, settled_end
from velostream.testing.services.kafka import PASSWORD, USER, KafkaService


@pytest.fixture(scope="module")
def broker():
    return KafkaService.shared()


@pytest.fixture
def topic(broker):
    return broker.new_topic()


def source_of(url, columns=None, **options):
    values = {name.replace("_", "."): value for name, value in options.items()}
    return KafkaSource(SourceSpec("kafka", url, values, columns))


def read(source, start=None, end=None, schema=None):
    bad = []
    start = source.initial_offset() if start is None else start
    end = source.latest_offset(start) if end is None else end
    schema = schema or source.schema()
    worker = pickle.loads(pickle.dumps(source))
    rows = [
        row
        for partition in source.partitions(start, end)
        for batch in worker.read(partition, schema, bad.append)
        for row in batch.to_pylist()
    ]
    worker.close()
    return rows, bad


def transaction(url, values, *, commit):
    brokers, _, topic = url.removeprefix("kafka://").rpartition("/")
    producer = confluent_kafka.Producer({"bootstrap.servers": brokers, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, json.dumps({"n": value}))
    if commit:
        producer.commit_transaction(30)
    else:
        producer.flush(30)
        producer.abort_transaction(30)


class TestTransactions:
    def test_records_of_aborted_transactions_are_never_seen_however_a_range_is_cut(self, topic):
        transaction(topic, [1, 2], commit=True)
        transaction(topic, [3, 4, 5], commit=False)
        transaction(topic, [6], commit=True)
        transaction(topic, [7], commit=False)
        source = source_of(topic)
        start, end = source.initial_offset(), settled_end(topic)
        assert [row["n"] for row in read(source, start, end)[0]] == [1, 2, 6]
        last = end["partitions"]["0"]
        assert last == 7 + 4  # a marker after each transaction
        for cut in range(last + 1):
            middle = {"topic": end["topic"], "partitions": {"0": cut}}
            halves = read(source, start, middle)[0] + read(source, middle, end)[0]
            assert [row["n"] for row in halves] == [1, 2, 6], cut
        everything = source_of(topic, isolation_level="read_uncommitted")
        assert [row["n"] for row in read(everything)[0]] == [1, 2, 3, 4, 5, 6, 7]

    def test_an_open_transaction_holds_the_end_back(self, broker, topic):
        send(topic, [(None, '{"n": 1}')])
        name = topic.rpartition("/")[2]
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.brokers, "transactional.id": "open " + name})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(name, '{"n": 2}')
        producer.flush(30)
        source = source_of(topic)
        start = source.initial_offset()
        before = source.latest_offset(start)
        assert [row["n"] for row in read(source, start, before)[0]] == [1]
        producer.commit_transaction(30)
        assert [row["n"] for row in read(source, before, settled_end(topic))[0]] == [2]


class TestPositions:
    def test_a_partition_that_is_added_is_read_from_its_beginning(self, broker, topic, eventually):
        send(topic, [(None, '{"n": 1}')])
        source = source_of(topic, auto_offset_reset="latest")
        start = source.initial_offset()
        admin = broker.admin()
        for made in admin.create_partitions([NewPartitions(topic.rpartition("/")[2], 2)]).values():
            made.result()
        send(topic, [(None, '{"n": 2}')], partition=1)
        eventually(lambda: source.latest_offset(start) != start, what="the new partition")
        schema = Schema.of(("n", "BIGINT"))
        assert read(source, start, schema=schema)[0] == [{"n": 2}]
        assert source.reached(source.latest_offset(start), start)

    def test_limits_are_shared_out_between_partitions(self, broker):
        url = broker.new_topic(partitions=3)
        for partition, count in ((0, 10), (1, 2), (2, 10)):
            send(url, [(None, '{"n": 1}')] * count, partition=partition)
        source = source_of(url)
        position = source.initial_offset()
        steps = []
        while (end := source.latest_offset(position, max_rows=9)) != position:
            assert source.expected_rows(position, end) <= 9
            steps.append(len(read(source, position, end)[0]))
            position = end
        assert steps == [9, 9, 4]

    def test_a_topic_made_anew_is_not_read_on(self, broker, topic, eventually):
        name = topic.rpartition("/")[2]
        send(topic, [(None, '{"n": 1}')])
        source = source_of(topic)
        end = source.latest_offset(source.initial_offset())
        admin = broker.admin()
        for gone in admin.delete_topics([name]).values():
            gone.result()

        def created():
            try:
                broker.create_topic(name)
            except confluent_kafka.KafkaException:
                return False
            return True

        eventually(created, what="the topic's deletion")
        with pytest.raises(SourceError) as caught:
            source_of(topic).latest_offset(end)
        assert caught.value.code == "topic-replaced"

    def test_records_that_expired_unread_are_missed(self, broker, topic):
        send(topic, [(None, f'{{"n": {n}}}') for n in range(5)])
        source = source_of(topic)
        start = source.initial_offset()
        admin = broker.admin()
        place = TopicPartition(topic.rpartition("/")[2], 0, 3)
        for deleted in admin.delete_records([place]).values():
            deleted.result()
        with pytest.raises(SourceError) as caught:
            read(source, start)
        assert caught.value.code == "records-expired"
        assert [row["n"] for row in read(source_of(topic))[0]] == [3, 4]

    def test_where_reading_begins(self, topic):  # B8
        send(topic, [(None, '{"n": 1}')])
        latest = source_of(topic, auto_offset_reset="Latest")
        start = latest.initial_offset()
        assert latest.latest_offset(start) == start
        assert latest.warnings == ()
        odd = source_of(topic, auto_offset_reset="yesterday")
        assert read(odd)[0] == [{"n": 1}]
        assert '"yesterday"' in odd.warnings[0]

    def test_how_many_messages_are_still_to_be_read_is_known(self, topic):
        send(topic, [(None, f'{{"id": {number}}}') for number in range(10)])
        source = source_of(topic)
        start = source.initial_offset()
        assert (source.lag(start).rows, source.lag(start).seconds) == (10, None)
        assert source.lag(source.latest_offset(start, max_rows=4)).rows == 6
        assert source.lag(source.latest_offset(start)).rows == 0
        source.close()


class TestMessages:
    def test_fields_that_come_later_are_told_where_they_are_to_be_added(self, topic):  # B10
        send(topic, [(None, '{"id": 1}')])
        schema = source_of(topic).schema()
        send(topic, [(None, '{"id": 2, "price": 1.50}'), (None, "broken"), (None, '{"id": 3}')])
        assert [row["id"] for row in read(source_of(topic), schema=schema)[0]] == [1, 2, 3]
        with pytest.raises(FurtherColumnsError) as lacking:
            read(source_of(topic, schema_evolution="add"), schema=schema)
        assert lacking.value.columns == [("price", "DECIMAL(18,2)")]

    def test_no_column_is_added_for_a_system_column_or_without_a_value(self, topic):
        send(topic, [("1", '{"id": 1}')])
        by_key = {"schema_evolution": "add", "changelog": "upsert", "key": "_key"}
        schema = source_of(topic, **by_key).schema()
        send(topic, [("2", '{"id": 2, "_key": "x", "_offset": 7, "_change": 5, "price": null, "tags": []}')])
        rows, bad = read(source_of(topic, **by_key), schema=schema)
        assert ([(row["id"], row["_key"]) for row in rows], bad) == ([(1, "1"), (2, "2")], [])
        send(topic, [("3", '{"id": 3, "price": 3.5}')])
        with pytest.raises(FurtherColumnsError) as lacking:
            read(source_of(topic, **by_key), schema=schema)
        assert lacking.value.columns == [("price", "DECIMAL(18,2)")]

    def test_an_empty_topic_has_no_columns_yet(self, topic):
        assert source_of(topic).schema() is None
        send(topic, [("gone", None)])
        assert source_of(topic).schema() is None

    @pytest.mark.parametrize(
        ("format_", "value", "row"),
        [
            ("csv", b"7,a b", {"id": 7, "name": "a b"}),
            ("json", b'{\n  "id": 7,\n  "name": "a b"\n}', {"id": 7, "name": "a b"}),
        ],
    )
    def test_formats(self, topic, format_, value, row):
        send(topic, [(None, value)] * 2)
        source = source_of(topic, format=format_, record_schema="id BIGINT, name STRING")
        assert read(source) == ([row, row], [])

    def test_change_events_are_changes(self, topic):  # B44
        def event(operation, before, after):
            return json.dumps({"before": before, "after": after, "op": operation})

        first, second = {"id": 1, "v": "a"}, {"id": 1, "v": "b"}
        events = [event("c", None, first), event("u", first, second), event("d", second, None), None]
        send(topic, [('{"id": 1}', value) for value in events])
        source = source_of(topic, format="debezium")
        assert source.capabilities.emits is Emits.CHANGES
        rows, bad = read(source)
        assert [(row["v"], row["_change"]) for row in rows] == [("a", 1), ("a", -1), ("b", 1), ("b", -1)]
        assert bad == []
        newest, _ = read(source_of(topic, format="debezium", changelog="upsert", key="id"))
        assert newest[-1]["_change"] == -1

    def test_change_events_without_the_row_before_go_by_the_key(self, topic):  # B44
        events = [
            {"op": "c", "before": None, "after": {"id": 1, "v": "a"}},
            {"op": "u", "before": None, "after": {"id": 1, "v": "b"}},
            {"op": "d", "before": {"id": 1, "v": None}, "after": None},
        ]
        values = [json.dumps(event) for event in events]
        send(topic, [('{"id": 1}', value) for value in values])
        for declared in ({}, {"record_schema": "id BIGINT, v STRING"}, {"copied": "v"}, {"key": "id"}):
            source = source_of(topic, format="debezium", **declared)
            assert source.schema().key == ("id",)
            rows, bad = read(source)
            assert [(row["id"], row["_change"]) for row in rows] == [(1, 1), (1, 1), (1, -1)]
            assert bad == []
        _, bad = read(source_of(topic, format="debezium"), schema=Schema.of(("id", "BIGINT"), ("v", "STRING")))
        assert [record.raw for record in bad] == [values[1].encode()]
        assert "'key'" in bad[0].reason

    def test_text_is_a_column(self, topic):
        send(topic, [(None, "one\ntwo")])
        rows, _ = read(source_of(topic, format="string"))
        assert list(rows[0].values()) == ["one\ntwo"]

    def test_bad_records_tell_where_they_are(self, topic):  # B57
        send(topic, [(None, '{"n": 1}'), (None, "{"), (None, '{"n": "x"}'), (None, '{"n": 2}')])
        rows, bad = read(source_of(topic, record_schema="n BIGINT"))
        assert [row["n"] for row in rows] == [1, 2]
        name = topic.rpartition("/")[2]
        assert [(record.position, record.raw) for record in bad] == [
            (f"{name}/0@1", b"{"),
            (f"{name}/0@2", b'{"n": "x"}'),
        ]

    def test_system_columns_are_there_when_asked_for(self, broker, topic):
        name = topic.rpartition("/")[2]
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.brokers})
        headers = [("trace", b"1"), ("trace", b"2"), ("raw", b"\xff")]
        producer.produce(name, '{"n": 1, "_key": "mine"}', "k", headers=headers, timestamp=1_700_000_000_123)
        producer.produce(name, '{"n": 2}', b"\xff\x00")
        producer.flush(30)
        plain = source_of(topic)
        assert (plain.schema().names, plain.system_columns) == (("n", "_key"), ())
        assert [row["_key"] for row in read(plain)[0]] == ["mine", None]
        asked = "_headers,_key,_offset,_partition,_timestamp,_topic,_unknown"
        source = source_of(topic, system_columns=asked)
        assert source.schema().names == ("n", "_topic", "_partition", "_offset", "_timestamp", "_key", "_headers")
        first, second = read(source)[0]
        assert (first["_topic"], first["_partition"], first["_offset"], first["_key"]) == (name, 0, 0, "k")
        assert first["_timestamp"].timestamp() == 1_700_000_000.123
        assert first["_headers"] == [("trace", "2"), ("raw", "\\xff")]
        assert (second["_key"], second["_headers"]) == ("\\xff00", None)

    def test_declared_system_columns_are_columns_like_others(self, topic):
        send(topic, [("7", '{"n": 1}')])
        source = source_of(topic, Schema.of(("n", "BIGINT"), ("_key", "BIGINT"), ("_offset", "BIGINT")))
        assert read(source)[0] == [{"n": 1, "_key": 7, "_offset": 0}]
        assert source.system_columns == ()


class TestTombstones:  # B43
    MESSAGES = (("1", '{"id": 1, "v": "a"}'), ("2", '{"id": 2, "v": "b"}'), ("1", None), ("1", '{"id": 1, "v": "c"}'))

    def test_an_event_without_a_value_is_none(self, topic):
        send(topic, self.MESSAGES)
        assert [row["v"] for row in read(source_of(topic))[0]] == ["a", "b", "c"]

    def test_a_tombstone_stands_for_its_key(self, topic):
        send(topic, self.MESSAGES)
        rows, bad = read(source_of(topic, changelog="upsert", key="id"))
        assert [(row["id"], row["v"], row["_change"]) for row in rows] == [
            (1, "a", 1),
            (2, "b", 1),
            (1, None, -1),
            (1, "c", 1),
        ]
        assert bad == []

    def test_a_key_of_several_columns_is_an_object(self, topic):
        gone = ['{"b": "x", "A": 1}', "1", '{"a": 1}', None]
        send(topic, [(None, '{"a": 1, "b": "x", "v": 1}'), *((key, None) for key in gone)])
        rows, bad = read(source_of(topic, changelog="upsert", key="a,b"))
        assert [(row["a"], row["b"], row["_change"]) for row in rows] == [(1, "x", 1), (1, "x", -1)]
        assert [record.position[-2:] for record in bad] == ["@2", "@3", "@4"]

    def test_a_copied_topic_is_known_by_the_keys_of_its_messages(self, topic):
        send(topic, [("k", '{"v": 1}'), (None, '{"v": 2}'), (None, '{"v": 2}'), ("k", None)])
        source = source_of(topic, copied="")
        assert source.capabilities.emits is Emits.UPSERTS
        rows, _ = read(source)
        assert [row["_change"] for row in rows] == [1, 1, 1, -1]
        origins = [row["_origin"] for row in rows]
        assert origins[0] == origins[3]
        assert len(set(origins)) == 3

    def test_keys_that_are_no_text_are_known_beside_others(self, topic):
        send(topic, [(b"\xff", '{"v": 1}'), ("k", '{"v": 2}'), (None, '{"v": 3}'), (b"\xff", None), ("k", None)])
        rows, _ = read(source_of(topic, copied=""))
        told = [(row["v"], row["_change"], row["_origin"]) for row in rows]
        assert told == [(1, 1, "=\\xff"), (2, 1, "=k"), (3, 1, "0@2"), (None, -1, "=\\xff"), (None, -1, "=k")]

    def test_a_copied_topic_with_a_key_of_its_own_still_tells_whose_value_a_message_is(self, topic):
        send(topic, [("k", '{"id": 1}'), (None, '{"id": 2}'), ("k", None), ("1", None), (None, None)])
        rows, bad = read(source_of(topic, copied="id"))
        told = [(row["id"], row["_change"], row["_origin"]) for row in rows]
        assert told == [(1, 1, "=k"), (2, 1, None), (None, -1, "=k"), (1, -1, "=1")]
        assert len(bad) == 1

    def test_a_tombstone_has_no_other_columns_even_where_they_are_not_null(self, topic):
        send(topic, [("1", None)])
        columns = Schema((Column("id", pa.int64(), nullable=False), Column("v", pa.string(), nullable=False)))
        rows, _ = read(source_of(topic, columns, changelog="upsert", key="id"), schema=columns.with_key(["id"]))
        assert rows == [{"id": 1, "v": None, "_change": -1}]

    def test_what_is_said_wins_over_what_is_guessed(self, topic):
        assert source_of(topic, copied="", changelog="append").capabilities.emits is Emits.APPENDS
        assert source_of(topic, copied="id").capabilities.emits is Emits.UPSERTS

    def test_the_messages_key_can_be_the_tables_key(self, topic):
        send(topic, [("k", '{"v": 1}'), ("k", None)])
        rows, _ = read(source_of(topic, copied="_key", system_columns="_key"))
        assert [(row["_key"], row["_change"]) for row in rows] == [("k", 1), ("k", -1)]


class TestTrouble:
    def test_a_missing_topic_is_told_with_what_to_type(self, broker, topic):  # B5
        name = topic.rpartition("/")[2]
        with pytest.raises(SourceError) as caught:
            source_of(f"{broker.url}/{name}x", topic_partitions="2").schema()
        error = caught.value
        assert (error.code, error.category) == ("missing-topic", Category.MISSING)
        create = f"kafka-topics --bootstrap-server {broker.brokers} --create --topic {name}x --partitions 2"
        assert create in error.hint
        assert 'WITH ("topic.wait.timeout" = "60s")' in error.hint
        assert f'did you mean "{name}"' in error.hint

    def test_a_wrong_port_is_network_trouble_within_seconds(self):  # B4
        began = time.monotonic()
        with pytest.raises(SourceError) as caught:
            source_of("kafka://127.0.0.1:1/t").schema()
        assert caught.value.category is Category.NETWORK
        assert "refused" in caught.value.detail
        assert time.monotonic() - began < 8

    def test_logging_in(self, broker, topic):
        if broker.login_brokers is None:
            return
        url = f"kafka://{broker.login_brokers}/{topic.rpartition('/')[2]}"
        send(topic, [(None, '{"n": 1}')])
        login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": USER}
        assert read(source_of(url, **login, sasl_password=PASSWORD))[0] == [{"n": 1}]
        with pytest.raises(SourceError) as caught:
            source_of(url, **login, sasl_password="wrong secret").schema()
        assert caught.value.category is Category.AUTHENTICATION
        assert "wrong secret" not in render_text(caught.value)

    def test_a_property_that_is_none_is_a_matter_of_configuration(self, topic):
        with pytest.raises(SourceError) as caught:
            source_of(topic, kafka_no_such="1").schema()
        assert caught.value.category is Category.CONFIGURATION
        with pytest.raises(OptionError):
            source_of(topic, topic_wait_timeuot="1s")
        with pytest.raises(OptionError, match="hold no changes"):
            source_of(topic, changelog="changes")

    def test_a_missing_driver_is_named_with_what_installs_it(self, topic, monkeypatch):
        monkeypatch.setitem(sys.modules, "confluent_kafka", None)
        with pytest.raises(StoreError) as caught:
            source_of(topic).schema()
        assert caught.value.hint == "pip install 'velostream[kafka]'"

    def test_properties_that_reading_depends_on_can_not_be_changed(self, topic):
        send(topic, [(None, '{"n": 1}')])
        odd = {"kafka_enable_partition_eof": "false", "kafka_auto_offset_reset": "latest", "kafka_group_id": "mine"}
        assert read(source_of(topic, **odd))[0] == [{"n": 1}]

    @pytest.mark.parametrize(
        ("code", "category"),
        [
            ("UNKNOWN_TOPIC_OR_PART", Category.MISSING),
            ("_TRANSPORT", Category.NETWORK),
            ("_TIMED_OUT", Category.NETWORK),
            ("_AUTHENTICATION", Category.AUTHENTICATION),
            ("_SSL", Category.AUTHENTICATION),
            ("TOPIC_AUTHORIZATION_FAILED", Category.AUTHENTICATION),
            ("INVALID_CONFIG", Category.CONFIGURATION),
            ("UNSUPPORTED_VERSION", Category.CONFIGURATION),
            ("_VALUE_SERIALIZATION", Category.CONFIGURATION),
            ("UNKNOWN", Category.UNKNOWN),
        ],
    )
    def test_categories(self, code, category):  # B4
        assert category_of(code) is category

    def test_every_code_with_a_category_is_one_of_the_drivers(self):
        known = {confluent_kafka.KafkaError(code).name() for code in [*range(-200, 0), *range(130)]}
        told = set(itertools.chain.from_iterable(codes.split() for codes in kafka_model._CATEGORIES.values()))
        assert told <= known


class TestAddresses:
    @pytest.mark.parametrize(
        ("uri", "options", "brokers", "topic"),
        [
            ("kafka://h:1/t", {"bootstrap.servers": "other:1"}, "h:1", "t"),
            ("kafka://h:1,i:2/a.b-c", {}, "h:1,i:2", "a.b-c"),
            ("kafka://t", {"bootstrap.servers": "other:1"}, "other:1", "t"),
            ("kafka://t", {}, "of-the-environment:9092", "t"),
        ],
    )
    def test_brokers_come_from_the_address_the_options_or_the_environment(
        self, monkeypatch, uri, options, brokers, topic
    ):
        monkeypatch.setenv("VELOSTREAM_KAFKA_BROKERS", "of-the-environment:9092")
        source = source_of(uri, **{name.replace(".", "_"): value for name, value in options.items()})
        assert TopicAddress.of(uri, source.settings) == TopicAddress(brokers, topic)
        monkeypatch.delenv("VELOSTREAM_KAFKA_BROKERS")
        pickle.loads(pickle.dumps(source))

    def test_without_brokers_the_error_says_where_to_name_them(self, monkeypatch):
        monkeypatch.delenv("VELOSTREAM_KAFKA_BROKERS", raising=False)
        with pytest.raises(SourceError) as caught:
            source_of("kafka://t")
        assert caught.value.code == "missing-brokers"
        assert "VELOSTREAM_KAFKA_BROKERS" in caught.value.hint

    @pytest.mark.parametrize("uri", ["kafka://h:1/", "kafka://", "kafka://h:1/a/b"])
    def test_an_address_without_a_topic_is_refused(self, uri):
        with pytest.raises(SourceError) as caught:
            source_of(uri, bootstrap_servers="h:1")
        assert caught.value.category is Category.CONFIGURATION

    def test_a_topic_is_made_when_that_is_asked_for(self, broker, topic, monkeypatch):
        monkeypatch.setenv("VELOSTREAM_DEFAULT_PARTITIONS", "4")
        made = f"{topic}_made"
        source = source_of(made, topic_create_if_missing="true")
        assert source.schema() is None
        assert len(source.initial_offset()["partitions"]) == 4
        monkeypatch.setenv("VELOSTREAM_DEFAULT_PARTITIONS", "many")
        with pytest.raises(OptionError):
            source_of(f"{topic}_odd", topic_create_if_missing="true").schema()
        assert source_of(made, topic_create_if_missing="true", topic_partitions="9").schema() is None
        assert len(source.initial_offset()["partitions"]) == 4
