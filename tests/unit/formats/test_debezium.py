"""Debezium's envelopes, with and without schema, in its three ways of writing decimals.  # B44."""

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import SourceError, UnsupportedError
from velostream.formats.base import FormatSettings
from velostream.formats.debezium import DebeziumRecords
from velostream.model.conform import TimeRules
from velostream.model.schema import Column, Schema

DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE = {
    "field": "free",
    "type": "struct",
    "name": "io.debezium.data.VariableScaleDecimal",
    "fields": [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}],
}
PRICE = {
    "field": "price",
    "type": "bytes",
    "name": DECIMAL,
    "parameters": {"scale": "2", "connect.decimal.precision": "12"},
}
ID = {"field": "id", "type": "int64"}


def base64_of(number):
    return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)).decode()


def event(operation, before, after, *fields, compact=True):
    payload = {"before": before, "after": after, "source": {"table": "t"}, "op": operation, "ts_ms": 1}
    if fields:
        row = {"type": "struct", "fields": list(fields), "optional": True}
        sides = [row | {"field": "before"}, row | {"field": "after"}, {"field": "op", "type": "string"}]
        payload = {"schema": {"type": "struct", "fields": sides}, "payload": payload}
    return json.dumps(payload, separators=(",", ":") if compact else None).encode()


def read(records, schema=None, **settings):
    made = DebeziumRecords(FormatSettings(**settings))
    array = pa.array(records, pa.binary())
    bad = []
    found = made.decode(array, schema or made.infer(array), bad.append)
    rows = [(row.pop("_change"), row) for row in found.rows.to_pylist()]
    return rows, found.records.to_pylist(), bad


@pytest.mark.parametrize("compact", [True, False])
def test_inserts_updates_and_deletes_with_precise_decimals(compact):
    first = {"id": 1, "price": base64_of(-12345)}
    second = {"id": 1, "price": base64_of(99999999999)}
    rows, places, bad = read(
        [
            event("r", None, first, ID, PRICE, compact=compact),
            event("u", first, second, ID, PRICE, compact=compact),
            event("d", second, None, ID, PRICE, compact=compact),
            None,
        ]
    )
    before, after = {"id": 1, "price": Decimal("-123.45")}, {"id": 1, "price": Decimal("999999999.99")}
    assert rows == [(1, before), (-1, before), (1, after), (-1, after)]
    assert places == [0, 1, 1, 2]
    assert bad == []


def test_a_decimal_with_a_scale_of_its_own_is_exact():
    values = [(123456789012345678901, 4), (-5, 0), (7, 6), (0, 0)]
    events = [
        event("c", None, {"id": number, "free": {"scale": scale, "value": base64_of(value)}}, ID, VARIABLE)
        for number, (value, scale) in enumerate(values)
    ]
    made = DebeziumRecords(FormatSettings())
    assert made.infer(pa.array(events, pa.binary())).column("free").sql_type == "DECIMAL(38,6)"
    rows, _, bad = read(events)
    assert [row["free"] for _, row in rows] == [
        Decimal("12345678901234567.8901"),
        Decimal(-5),
        Decimal("0.000007"),
        Decimal(0),
    ]
    assert bad == []


def test_decimals_as_text_and_as_doubles():
    declared = Schema.of(("id", "BIGINT"), ("price", "DECIMAL(20,4)"))
    text = event("c", None, {"id": 1, "price": "12.3400"}, ID, {"field": "price", "type": "string"})
    double = b'{"before":null,"after":{"id":2,"price":0.1},"op":"c"}'
    rows, _, bad = read([text, double], declared)
    assert [row["price"] for _, row in rows] == [Decimal("12.3400"), Decimal("0.1000")]
    assert bad == []
    assert DebeziumRecords(FormatSettings()).infer(pa.array([double], pa.binary())) == Schema.of(
        ("id", "BIGINT"), ("price", "DECIMAL(18,2)")
    )


def test_times_and_other_types():
    fields = [
        {"field": "day", "type": "int32", "name": "io.debezium.time.Date"},
        {"field": "millis", "type": "int64", "name": "io.debezium.time.Timestamp"},
        {"field": "micros", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {"field": "zoned", "type": "string", "name": "io.debezium.time.ZonedTimestamp"},
        {"field": "instant", "type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
        {"field": "clock", "type": "int64", "name": "io.debezium.time.MicroTime"},
        {"field": "raw", "type": "bytes"},
        {"field": "tags", "type": "array", "items": {"type": "int32"}},
        {"field": "doc", "type": "string", "name": "io.debezium.data.Json"},
    ]
    row = {
        "day": 20454,
        "millis": 1_767_265_200_123,
        "micros": 1_767_265_200_123_456,
        "zoned": "2026-01-01T12:00:00+01:00",
        "instant": 1_767_265_200_000,
        "clock": 3_600_000_001,
        "raw": base64.b64encode(b"\xff\x00").decode(),
        "tags": [1, None],
        "doc": '{"a": 1}',
    }
    ((_, found),), _, bad = read([event("c", None, row, *fields)], times=TimeRules("Europe/Berlin"))
    assert bad == []
    assert found == {
        "day": date(2026, 1, 1),
        # Without a zone: local to the option `timezone`.
        "millis": datetime(2026, 1, 1, 10, 0, 0, 123000, tzinfo=UTC),
        "micros": datetime(2026, 1, 1, 10, 0, 0, 123456, tzinfo=UTC),
        "zoned": datetime(2026, 1, 1, 11, tzinfo=UTC),
        "instant": datetime(2026, 1, 1, 11, tzinfo=UTC),
        "clock": "01:00:00.000001",
        "raw": b"\xff\x00",
        "tags": [1, None],
        "doc": '{"a": 1}',
    }


def test_a_large_value_that_was_not_sent_is_the_one_before():
    fields = (ID, {"field": "text", "type": "string"})
    unchanged = {"id": 1, "text": "__debezium_unavailable_value"}
    known = event("u", {"id": 1, "text": "long"}, unchanged, *fields)
    unknown = event("u", None, unchanged, *fields)
    rows, _, bad = read([known, unknown])
    assert rows == [(-1, {"id": 1, "text": "long"}), (1, {"id": 1, "text": "long"})]
    assert [rejected.place for rejected in bad] == [1]
    assert "REPLICA IDENTITY FULL" in bad[0].reason


@pytest.mark.parametrize(
    ("field", "long", "unchanged"),
    [
        ({"type": "bytes"}, "bG9uZw==", base64.b64encode(b"__debezium_unavailable_value").decode()),
        ({"type": "array", "items": {"type": "string"}}, ["long"], ["__debezium_unavailable_value"]),
    ],
)
def test_large_bytes_and_lists_that_were_not_sent_are_known_as_such(field, long, unchanged):
    fields = (ID, field | {"field": "x"})
    after = {"id": 1, "x": unchanged}
    rows, _, bad = read(
        [event("u", before, after, *fields) for before in ({"id": 1, "x": long}, {"id": 1, "x": None}, None)]
    )
    assert [(sign, row["x"] in (b"long", ["long"])) for sign, row in rows] == [(-1, True), (1, True)]
    assert [rejected.place for rejected in bad] == [1, 2]


def test_an_update_without_the_row_before_is_the_new_value():
    rows, _, _ = read([event("u", None, {"id": 1})])
    assert rows == [(1, {"id": 1})]


def test_bad_events_stop_no_other_and_take_both_their_rows_along():
    strict = Schema((*Schema.of(("id", "BIGINT")).columns, Column("n", pa.int64(), nullable=False)))
    records = [
        event("c", None, {"id": 1, "n": 1}),
        b"junk",
        b'{"id": 1}',
        event("t", None, None),
        event("d", None, None),
        event("u", {"id": 1, "n": 1}, {"id": 1, "n": "x"}),
        event("u", {"id": 1, "n": 1}, {"id": 1, "n": None}),
        event("m", None, None),
        # A delete may carry the key alone.
        event("d", {"id": 1, "n": None}, None),
    ]
    rows, places, bad = read(records, strict)
    assert rows == [(1, {"id": 1, "n": 1}), (-1, {"id": 1, "n": None})]
    assert places == [0, 8]
    assert sorted(rejected.place for rejected in bad) == [1, 2, 3, 4, 5, 6]
    assert {rejected.place: rejected.raw for rejected in bad} == {place: records[place] for place in range(1, 7)}


def test_keys_tell_the_key_columns():
    made = DebeziumRecords(FormatSettings())
    with_schema = b'{"schema":{"type":"struct"},"payload":{"a":1,"b":2}}'
    assert made.key_columns(pa.array([None, with_schema], pa.binary())) == ("a", "b")
    assert made.key_columns(pa.array([b'{"id":1}'], pa.binary())) == ("id",)
    assert made.key_columns(pa.array([b"7", b"\xff"], pa.binary())) == ()


def test_what_is_no_event_is_said_so():
    with pytest.raises(SourceError) as caught:
        DebeziumRecords(FormatSettings()).infer(pa.array([b'{"id": 1}'], pa.binary()))
    assert caught.value.code == "not-debezium"
    with pytest.raises(UnsupportedError):
        DebeziumRecords(FormatSettings()).encode(pa.table({"id": [1]}))
