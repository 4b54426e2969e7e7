"""Records that come one by one, through every format that can hold them."""

import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velostream.errors import OptionError, SourceError, UnsupportedError
from velostream.formats.avro_types import schema_of
from velostream.formats.base import FormatSettings, SchemaText
from velostream.formats.options import RECORD_OPTIONS, format_settings
from velostream.formats.registry import RECORD_NAMES, record_format
from velostream.model.options import Options
from velostream.model.schema import Schema

COLUMNS = Schema.of(("id", "BIGINT"), ("name", "STRING"), ("price", "DECIMAL(18,2)"), ("at", "TIMESTAMP"))
PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Row {
  optional int64 id = 1; optional string name = 2; optional string price = 3; google.protobuf.Timestamp at = 4;
}
"""
AVRO = json.dumps(schema_of(COLUMNS.arrow))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GOOD = [
    {"id": 1, "name": "a", "price": Decimal("1.50"), "at": NOON},
    {"id": 2, "name": None, "price": None, "at": None},
    {"id": 3, "name": 'ü, "quoted"', "price": Decimal("-0.25"), "at": NOON},
]
MAKERS = {
    "json": lambda: record_format("json", FormatSettings()),
    "csv": lambda: record_format("csv", FormatSettings(columns=COLUMNS.names)),
    "tsv": lambda: record_format("tsv", FormatSettings(columns=COLUMNS.names)),
    "avro": lambda: record_format("avro", FormatSettings(avro_schema=SchemaText(AVRO))),
    "protobuf": lambda: record_format("protobuf", FormatSettings(protobuf_schema=SchemaText(PROTO))),
}
BAD = {"json": b"{broken", "csv": b"1,2,3,4,5,6", "tsv": b"x", "avro": b"\x02", "protobuf": b"\xff\xff"}


def binary(*records):
    return pa.array(records, pa.binary())


@pytest.fixture(params=MAKERS)
def made(request):
    return MAKERS[request.param]()


def decode(record_format, records, schema=COLUMNS):
    bad = []
    found = record_format.decode(records, schema, bad.append)
    expected = schema.arrow
    if record_format.gives_changes:
        expected = expected.append(pa.field("_change", pa.int8()))
    assert found.rows.schema == expected
    assert found.records.type == pa.int64()
    assert len(found.records) == found.rows.num_rows
    return found, bad


def test_every_format_is_tried_here():
    assert set(MAKERS) | {"string", "debezium"} == set(RECORD_NAMES)


def test_what_is_written_is_read_back(made):
    found, bad = decode(made, made.encode(pa.Table.from_pylist(GOOD, COLUMNS.arrow)))
    assert found.rows.to_pylist() == GOOD
    assert found.records.to_pylist() == [0, 1, 2]
    assert bad == []


def test_a_bad_record_stops_no_other_and_keeps_its_bytes(made):
    good = made.encode(pa.Table.from_pylist(GOOD, COLUMNS.arrow)).to_pylist()
    raw = BAD[made.name]
    records = binary(good[0], raw, None, good[1], good[2], raw)
    found, bad = decode(made, records)
    assert found.rows.to_pylist() == GOOD
    assert found.records.to_pylist() == [0, 3, 4]
    assert [(rejected.place, rejected.raw) for rejected in bad] == [(1, raw), (5, raw)]
    assert all(rejected.reason for rejected in bad)


def test_a_value_that_does_not_fit_is_a_bad_record(made):
    wanted = Schema.of(("id", "BIGINT"), ("name", "BIGINT"))
    rows = [{**GOOD[0], "name": "7"}, {**GOOD[0], "name": "seven"}]
    if made.name in ("csv", "tsv"):
        wanted = Schema.of(("id", "BIGINT"), ("name", "BIGINT"), ("price", "DECIMAL(18,2)"), ("at", "TIMESTAMP"))
    found, bad = decode(made, made.encode(pa.Table.from_pylist(rows, COLUMNS.arrow)), wanted)
    assert found.rows["name"].to_pylist() == [7]
    assert [rejected.place for rejected in bad] == [1]
    assert '"name" is BIGINT' in bad[0].reason


def test_nothing_at_all_is_no_rows(made):
    for records in (binary(), binary(None, None)):
        found, bad = decode(made, records)
        assert (found.rows.num_rows, bad) == (0, [])


def test_formats_travel_to_workers(made):
    records = made.encode(pa.Table.from_pylist(GOOD, COLUMNS.arrow))
    assert decode(pickle.loads(pickle.dumps(made)), records)[0].rows.to_pylist() == GOOD


@pytest.mark.parametrize("name", ["json", "csv"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            st.none(),
            st.sampled_from(
                [b"", b" ", b"\n", b'"', b'1,"x', b"{}", b'{"id": 1,\n"name": "b"}', b'4,"a\nb",,', b"\xff"]
            ),
            st.integers(0, 2),
        ),
        max_size=150,
    )
)
def test_any_mixture_decodes_as_each_record_would_alone(name, mixture):
    made = MAKERS[name]()
    good = made.encode(pa.Table.from_pylist(GOOD, COLUMNS.arrow)).to_pylist()
    records = [good[item] if isinstance(item, int) else item for item in mixture]
    together, bad = decode(made, binary(*records))
    rows, places, failed = [], [], []
    for place, record in enumerate(records):
        alone, rejected = decode(made, binary(record))
        rows += alone.rows.to_pylist()
        places += [place] * alone.rows.num_rows
        failed += [(place, record)] * len(rejected)
    assert together.rows.to_pylist() == rows
    assert together.records.to_pylist() == places
    assert sorted((rejected.place, rejected.raw) for rejected in bad) == failed


def test_types_are_inferred_from_json_and_csv():
    texts = binary(b'{"id": 1, "price": 1.5, "day": "2026-01-01"}', None, b'{"id": 2, "price": 2, "more": {"x": 1}}')
    found = record_format("json", FormatSettings()).infer(texts)
    assert [(column.name, column.sql_type) for column in found.columns] == [
        ("id", "BIGINT"),
        ("price", "DECIMAL(18,2)"),
        ("day", "DATE"),
        ("more", "STRUCT<x: BIGINT>"),
    ]
    lines = record_format("csv", FormatSettings()).infer(binary(b"1,1.50,x", b"2,2.25,y"))
    assert [(column.name, column.sql_type) for column in lines.columns] == [
        ("_c0", "BIGINT"),
        ("_c1", "DECIMAL(18,2)"),
        ("_c2", "STRING"),
    ]
    assert record_format("json", FormatSettings()).infer(binary()) is None


def test_strings_are_taken_whole():
    made = record_format("string", FormatSettings())
    found, bad = decode(made, binary(b"a,b", None, b"", b"\xff"), made.infer(binary()))
    assert found.rows.to_pylist() == [{"value": "a,b"}, {"value": ""}]
    assert [rejected.place for rejected in bad] == [3]
    assert made.encode(found.rows).to_pylist() == [b"a,b", b""]
    declared, bad = decode(made, binary(b"7", b"x"), Schema.of(("n", "BIGINT")))
    assert (declared.rows.to_pylist(), bad[0].place) == ([{"n": 7}], 1)
    latin = record_format("string", FormatSettings(encoding="iso8859-1"))
    assert decode(latin, binary(b"\xe4"), latin.infer(binary()))[0].rows.to_pylist() == [{"value": "ä"}]
    with pytest.raises(UnsupportedError, match="one column, not 2"):
        made.encode(pa.table({"a": ["x"], "b": ["y"]}))


def test_options_become_settings():
    given_options = {"delimiter": "\\t", "quote": "", "timestamp.format": "dd.MM.yyyy", "avro.schema": "{}"}
    made = format_settings(Options(given_options, RECORD_OPTIONS), declared=COLUMNS)
    assert (made.delimiter, made.quote, made.times.pattern) == ("\t", None, "%d.%m.%Y")
    assert made.columns == COLUMNS.names
    assert made.registry is None
    url = {"schema.registry.url": "http://me:hidden%21@r:1/"}
    registry = format_settings(Options(url, RECORD_OPTIONS), subject="t-value").registry
    assert (registry.url, registry.subject) == ("http://r:1", "t-value")
    assert (registry.username, registry.password) == ("me", "hidden!")
    assert "hidden" not in repr(registry)
    with pytest.raises(OptionError, match="xml"):
        record_format("xml", FormatSettings())


def test_a_format_without_its_schema_says_what_to_write():
    for name in ("avro", "protobuf"):
        with pytest.raises(SourceError) as caught:
            record_format(name, FormatSettings()).infer(binary())
        assert caught.value.code == "missing-schema"
        assert f"{name}.schema" in caught.value.hint


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_a_schema_that_is_none_is_refused(name, tmp_path):
    wrong = SchemaText("message {")
    missing = SchemaText(file=str(tmp_path / "nowhere"))
    for schema in (wrong, missing):
        settings_of = FormatSettings(avro_schema=schema, protobuf_schema=schema)
        with pytest.raises(SourceError) as caught:
            record_format(name, settings_of).infer(binary())
        assert caught.value.code == "unreadable-schema"
        assert caught.value.detail


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("DECIMAL(10,2)", "99999999", "999999999"),
        ("DECIMAL(38,6)", "99999999999999999999999999999999", "12345678901234567890123456789012345"),
        ("DECIMAL(30,18)", "999999999999", "9999999999999999999999"),
        ("ARRAY<DECIMAL(4,2)>", "[99]", "[100]"),
    ],
)
def test_whole_numbers_of_more_digits_than_a_decimal_has_are_bad_records(type_, good, bad):
    format_ = record_format("json", FormatSettings())
    reasons = []
    records = pa.array([f'{{"x": {good}}}'.encode(), f'{{"x": {bad}}}'.encode()])
    decoded = format_.decode(records, Schema.of(("x", type_)), lambda found: reasons.append(found.place))
    assert decoded.rows.num_rows == 1
    assert reasons == [1]
