from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velostream.formats.base import FormatSettings, Preamble
from velostream.formats.csv import CsvFormat
from velostream.formats.json import JsonLinesFormat
from velostream.formats.registry import format_name, make_format
from velostream.model.rows import rows_to_arrow
from velostream.model.schema import Schema

PLAIN = Schema.of(
    ("b", "BOOLEAN"),
    ("n", "BIGINT"),
    ("d", "DECIMAL(18,2)"),
    ("f", "DOUBLE"),
    ("s", "STRING"),
    ("day", "DATE"),
    ("at", "TIMESTAMP"),
)
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0\r"), max_size=12)


def _with_time(day):
    return datetime(day.year, day.month, day.day, 23, 59, day.day, day.year * 7, tzinfo=UTC)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "b": st.none() | st.booleans(),
            "n": st.none() | st.integers(-(2**63), 2**63 - 1),
            "d": st.none() | st.decimals(-(10**15), 10**15, places=2),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "s": st.none() | TEXT,
            "day": st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)),
            "at": st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)).map(_with_time),
        }
    ),
    max_size=8,
)


def decoded(line_format, data, schema):
    bad = []
    preamble = line_format.preamble(data, final=True)
    rows = line_format.decode(data[preamble.length :], preamble, schema, bad.append)
    assert rows.schema == schema.arrow
    return rows.to_pylist(), bad


@pytest.mark.parametrize("make", [CsvFormat, JsonLinesFormat])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS)
def test_what_is_written_is_read_back_exactly(make, rows):
    line_format = make(FormatSettings())
    table = rows_to_arrow(rows, PLAIN)
    assert decoded(line_format, line_format.encode(table), PLAIN) == (table.to_pylist(), [])


@pytest.mark.parametrize(
    "schema", [PLAIN, Schema.of(("a", "STRING"), ("b", "STRING")), Schema.of(("n", "DECIMAL(38,5)"))]
)
@pytest.mark.parametrize("make", [CsvFormat, JsonLinesFormat])
@settings(max_examples=80, deadline=None)
@given(data=st.binary(max_size=80) | st.text(alphabet='a1,"\n\r{}[]:. -\\', max_size=80).map(str.encode))
def test_no_bytes_crash_a_format(make, schema, data):
    line_format = make(FormatSettings())
    rows, bad = decoded(line_format, data, schema)
    assert all(record.reason for record in bad)
    assert len(rows) + len(bad) <= data.count(b"\n") + data.count(b"\r") + data.count(b"}") + 2


def test_every_record_is_read_or_rejected():
    good = [f"{number},x{number}" for number in range(5000)]
    lines = list(good)
    for place in (0, 17, 2500, 4999):
        lines[place] = "bad," + lines[place]
    data = ("\n".join(lines) + "\n").encode()
    schema = Schema.of(("n", "BIGINT"), ("s", "STRING"))
    rows, bad = decoded(CsvFormat(FormatSettings(header=False, columns=schema.names)), data, schema)
    assert len(rows) == 4996
    assert [record.raw.decode() for record in bad] == [lines[place] for place in (0, 17, 2500, 4999)]
    assert [data[: record.place].count(b"\n") for record in bad] == [0, 17, 2500, 4999]


def test_json_bends_values_where_nothing_is_lost():
    schema = Schema.of(
        ("n", "BIGINT"), ("d", "DECIMAL(10,2)"), ("s", "STRING"), ("m", "MAP<STRING, BIGINT>"), ("t", "TIMESTAMP")
    )
    line = b'{"n": "5", "d": 1.5, "s": {"x": 1.50}, "m": {"k": 1}, "t": "2024-01-01T00:00:00+01:00"}\n'
    rows, bad = decoded(JsonLinesFormat(FormatSettings()), line, schema)
    assert bad == []
    assert rows == [
        {
            "n": 5,
            "d": Decimal("1.50"),
            "s": '{"x":1.50}',
            "m": [("k", 1)],
            "t": datetime(2023, 12, 31, 23, tzinfo=UTC),
        }
    ]


@pytest.mark.parametrize(
    "records",
    [
        ['{"n": 1, "s": {"city": "a"}}', '{"N" : 2, "s": {"city": "b"}}', '{"n": 3, "S": {"City": "c"}}'],
        ['{"N": 1, "S": {"CITY": "a"}}', '{"n": 2, "s": {"city": "b"}}', '{"n": 3, "s": {"city": "c"}}'],
    ],
)
def test_a_field_in_another_case_is_read_whatever_record_comes_first(records):
    schema = Schema.of(("n", "BIGINT"), ("s", "STRUCT<city: STRING>"))
    read, _ = decoded(JsonLinesFormat(FormatSettings()), "\n".join(records).encode(), schema)
    assert [(row["n"], row["s"]["city"]) for row in read] == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("make", [CsvFormat, JsonLinesFormat])
def test_bytes_are_written_in_base64_and_read_back(make):
    schema = Schema.of(("n", "BIGINT"), ("b", "BINARY"), ("s", "STRUCT<b: BINARY>"))
    rows = [
        {"n": 1, "b": b"\xff\0", "s": {"b": b"\xfe"}},
        {"n": 2, "b": None, "s": {"b": None}},
        {"n": 3, "b": b"", "s": None},
    ]
    made = make(FormatSettings())
    data = made.encode(rows_to_arrow(rows, schema))
    assert b"/wA=" in data
    assert decoded(made, data, schema) == (rows, [])
    kept, bad = decoded(made, data.replace(b"/wA=", b"plain text"), schema)
    assert ([row["n"] for row in kept], len(bad)) == ([2, 3], 1)


def test_declared_nested_columns_in_csv_hold_json():
    schema = Schema.of(("n", "BIGINT"), ("tags", "ARRAY<STRING>"))
    rows, bad = decoded(CsvFormat(FormatSettings()), b'n,tags\n1,"[""a"", ""b""]"\n2,\n', schema)
    assert (rows, bad) == ([{"n": 1, "tags": ["a", "b"]}, {"n": 2, "tags": None}], [])


def test_headers_are_made_usable():
    preamble = CsvFormat(FormatSettings()).preamble(b' a ,,"b,c",A\n', final=True)
    assert preamble.names == ("a", "_c1", "b,c", "A_2")


@pytest.mark.parametrize(
    ("path", "option", "name"),
    [
        ("x.csv", None, "csv"),
        ("x.CSV", None, "csv"),
        ("x.tsv", None, "tsv"),
        ("x", "JSON", "json"),
        ("x.pq", None, "parquet"),
    ],
)
def test_the_format_is_known_by_option_or_name(path, option, name):
    assert format_name(path, option) == name


@pytest.mark.parametrize(
    ("head", "made"),
    [
        (b'[{"a": 1}]', "json_array"),
        (b"\xef\xbb\xbf\n [", "json_array"),
        (b'{"a": 1}\n{"a": 2}\n', "jsonl"),
        (b'{\n  "a": 1\n}', "json_array"),
        (b'{"a": {\n', "json_array"),
        (b"", "jsonl"),
    ],
)
def test_json_is_lines_or_a_document_by_its_beginning(head, made):
    assert make_format("json", FormatSettings(), head=head).name == made


def test_rejected_records_of_another_encoding_keep_their_place():
    bad = []
    schema = Schema.of(("s", "STRING"), ("n", "BIGINT"))
    data = "é,1\nü,x\n".encode("cp1252") + b"\x81,2\nz,3\n"
    rows = CsvFormat(FormatSettings(encoding="cp1252")).decode(data, Preamble(0, schema.names), schema, bad.append)
    assert rows.to_pylist() == [{"s": "é", "n": 1}, {"s": "z", "n": 3}]
    assert sorted((record.place, record.raw) for record in bad) == [(4, "ü,x".encode()), (8, b"\x81,2")]


def test_nothing_in_nothing_out():
    for line_format in (CsvFormat(FormatSettings()), JsonLinesFormat(FormatSettings())):
        assert line_format.decode(b"", Preamble(), PLAIN, pytest.fail).num_rows == 0
        assert line_format.encode(pa.table({"a": pa.array([], pa.int64())})) in (b"a\n", b"")


def test_a_piece_without_rows_leaves_nothing_behind():
    rows = pa.table({"name": ["a", "b"]})
    pieces = pa.concat_tables([rows.slice(0, 0), rows, rows.slice(2), rows])
    written = make_format("csv", FormatSettings()).encode(pieces)
    assert written == b'name\n"a"\n"b"\n"a"\n"b"\n'
