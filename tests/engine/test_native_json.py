"""JSON read and written by Spark's own expressions gives what the format `json` gives, or says that it can't tell."""

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.formats.base import FormatSettings
from velostream.formats.registry import record_format
from velostream.model.schema import Column, Schema
from velostream.sources.common import parse_columns
from velostream.sql import native_json

COLUMNS = parse_columns(
    "id BIGINT, small TINYINT, price DECIMAL(10,2), wide DECIMAL(38,6), ok BOOLEAN, name STRING, ratio DOUBLE, "
    "day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, place STRUCT<lat: DOUBLE, tags: ARRAY<STRING>>, "
    "sums ARRAY<DECIMAL(6,3)>, half FLOAT, must INT NOT NULL"
)
CLEAR = {
    "id": ["1", "-7", "0", "9223372036854775807", "9223372036854775808", "10.0", "1.5", '"12"', '" 12 "', '"+5"', '"x"',
           '"1.50"', '"3."', "true", "null", "[1]", '{"a": 1}', '""'],
    "small": ["127", "128", "-128", '"-129"'],
    "price": ["1.50", "1.555", "1.5000", "12345678.90", "123456789.00", "7", "-0.01", '"2.25"', '" 2.25 "', '"abc"',
              '"1.239"', '".5"', '"00012.30"', "true", "null", "{}", "[]", '"NaN"'],
    "wide": ["12345678901234567890123456789012.123456", "0.0000001", "0.000001", "-1",
             "12345678901234567890123456789012345"],
    "ok": ["true", "false", '"yes"', '"F"', "1", "0", "2", '"maybe"', "1.0", "null", "[]", '" true "'],
    "name": ['"a"', '"ü€😀"', '"\\u00fc\\n\\"q\\" \\\\ \\u0001"', "7", "true", "null", '""', '"null"', '" padded "'],
    "ratio": ["1", "1.5", "1e3", "-2.5E-3", '"1e2"', '" 4.5 "', '"x"', "true", "null", "[1]", "0.1", "123456789.125"],
    "day": ['"2024-02-29"', '"2023-02-29"', '" 2024-01-01 "', '"soon"', "true", "1.5", "null", '"9999-12-31"'],
    "at": ['"2024-02-29T10:20:30Z"', '"2024-02-29 10:20:30.123456"', '"2024-02-29T10:20:30.123456789+02:00"',
           '"2024-02-29"', '"2024-02-29T10:20"', '"2024-02-29T10:20:30+0530"', '"2024-02-29T10:20:30-05"',
           '"2024-13-01"', '"1969-12-31T23:59:59.999999Z"', '"soon"', "1700000000", "true", "null",
           '"0001-01-01T00:00:00Z"'],
    "local": ['"2024-02-29T10:20:30"', '"2024-02-29 10:20:30.5"', "null", "5"],
    "place": ['{"lat": 1.5, "tags": ["a", null, "ü"]}', '{"LAT": 2}', "{}", "null", '"x"', "5", '{"lat": "far"}',
              '{"lat": 1, "tags": "a"}', '{"lat": null, "tags": []}', '{"lat": 1, "more": {"deep": [1]}}'],
    "sums": ["[1.5, 2, null]", "[]", '["1.250"]', "[1.2345]", '["x"]', "null", "{}", "3"],
    "half": ["1.5", "0.1", "7"],
    "must": ["1", "null", '"x"'],
}  # fmt: skip
"""Values of each column that both must read alike."""
UNCLEAR = {
    "id": ["1e2", '"1_000"', '"1e2"'],
    "price": ["1.5e1", '"1e1"', '"1_0"'],
    "name": ["1.50", "[1]", '{"a": 1}'],
    "ratio": ['"nan"', "NaN", '"1_0"'],
    "day": ["20240101", '"20240101"'],
    "at": ['"20240101T101010"'],
}
"""Values that the format reads in its way, and the expressions don't."""
WHOLE = [
    '{"id": 1, "must": 1} x', '{"id": 1, "must": 1}}', '{"id": 1, "must": 1}]', '{"id": 1, "must": 1},{"id": 2}',
    '[{"id": 1, "must": 1}]', "5", "null", "x", "", "  ", "{", '{"id": 1, "must": 1', "{'id': 1, 'must': 1}",
    '{"ID": 3, "must": 1}', '{"Id": 4, "id": 5, "must": 1}', '{"must": 1, "unknown": {"x": [1, {"y": 2}]}}',
    '{"id": 1,\n "must": 1}', ' {"id": 1, "must": 1} ', '{"id": 01, "must": 1}', '{"id": 1, "must": 1,}',
]  # fmt: skip


@pytest.fixture(scope="module")
def own_session(session):
    """Temporary views and settings of its own; other tests look at those of the session that they share."""
    own = session.newSession()
    own.conf.set("spark.sql.variant.allowDuplicateKeys", "true")
    return own


@pytest.fixture(scope="module")
def read(own_session):
    def read(messages, schema):
        table = pa.table({"n": pa.array(range(len(messages))), "value": pa.array(messages, pa.binary())})
        own_session.createDataFrame(table).createOrReplaceTempView("messages")
        found = own_session.sql(
            f"SELECT n, r.* FROM messages LATERAL VIEW explode({native_json.records_of(schema, 'value')}) AS r"
        ).toArrow()
        return {row.pop("n"): row for row in found.to_pylist()}

    return read


def ours(messages, schema):
    """What the format makes of each message by itself: a row, or None for a bad record."""
    format_ = record_format("json", FormatSettings())
    rows = {}
    for number, message in enumerate(messages):
        decoded = format_.decode(pa.array([message], pa.binary()), schema, lambda _: None)
        rows[number] = next(iter(decoded.rows.to_pylist()), None)
    return rows


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    return left == right and type(left) is type(right)


def test_records_are_read_as_the_format_reads_them(read):
    messages = [
        json.dumps({"must": 1})[:-1].encode() + f', "{name}": {value}}}'.encode()
        if name != "must"
        else f'{{"must": {value}}}'.encode()
        for name, values in CLEAR.items()
        for value in values
    ]
    messages += [text.encode() for text in WHOLE] + [b'{"name": "\xff", "must": 1}', None]
    expected, found = ours(messages, COLUMNS), read(messages, COLUMNS)
    wrong = []
    for number, message in enumerate(messages):
        row, theirs = expected[number], found.get(number)
        if message is None:
            assert theirs is None
            continue
        problem = theirs.pop("problem")
        if row is None:
            good = problem is not None and problem.startswith(native_json.BAD)
        else:
            good = problem is None and all(same(value, theirs[f"c{index}"]) for index, value in enumerate(row.values()))
        if not good:
            wrong.append((message, row, problem, theirs))
    assert not wrong


def test_what_is_not_clear_is_said_not_guessed(read):
    messages = [f'{{"must": 1, "{name}": {value}}}'.encode() for name, values in UNCLEAR.items() for value in values]
    messages.append(b'{"must": 1, "id": 1, "id": 2}')
    found = read(messages, COLUMNS)
    clear = [message for number, message in enumerate(messages) if not (found[number]["problem"] or "").startswith("?")]
    assert not clear
    assert not [row for row in ours(messages, COLUMNS).values() if row is None]


def test_rows_are_written_as_the_format_writes_them(own_session):
    schema = Schema.of(
        ("a", "BIGINT"), ("b", "DECIMAL(12,4)"), ("c", "DECIMAL(38,18)"), ("d", "STRING"), ("e", "BOOLEAN"),
        ("f", "DATE"), ("g", "TIMESTAMP"), ("h", "TIMESTAMP_NTZ"), ("i", "BINARY"), ("j", "ARRAY<DECIMAL(5,2)>"),
        ("k", "STRUCT<x: STRING, `y z`: TIMESTAMP>"), ("l", "MAP<STRING, INT>"), ("m n", "DOUBLE"),
    )  # fmt: skip
    at = datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)
    rows = [
        {
            "a": -5, "b": Decimal("1.5000"), "c": Decimal("0.000000000000000001"), "d": 'ü "q" \\ \n \x01 €', "e": True,
            "f": date(2024, 2, 29), "g": at, "h": at.replace(tzinfo=None, microsecond=120), "i": b"\x00\xff" * 60,
            "j": [Decimal("1.10"), None], "k": {"x": None, "y z": at.replace(microsecond=1)},
            "l": [('k"', 1), ("", None)],
            "m n": 0.1,
        },
        dict.fromkeys(schema.names),
        {
            "a": 0, "b": Decimal(0), "c": Decimal("-0.1"), "d": "", "e": False, "f": date(1, 1, 1),
            "g": datetime(1, 1, 1, tzinfo=UTC), "h": datetime.fromisoformat("1969-12-31T23:59:59.999999"), "i": b"",
            "j": [], "k": {"x": "", "y z": None}, "l": [], "m n": math.nan,
        },
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema.arrow)
    own_session.createDataFrame(table.append_column("n", pa.array(range(3)))).createOrReplaceTempView("written")
    text = native_json.object_text([(c.name, f"`{c.name}`", c.type) for c in schema.columns])
    found = [
        row["text"] for row in own_session.sql(f"SELECT {text} AS text FROM written ORDER BY n").toArrow().to_pylist()
    ]
    expected = [value.decode() for value in record_format("json", FormatSettings()).encode(table).to_pylist()]
    assert found == expected


@pytest.mark.parametrize("type_", ["BINARY", "MAP<STRING, INT>"])
def test_types_that_are_read_otherwise_are_named(type_):
    schema = Schema((Column("x", Schema.of(("x", type_)).columns[0].type),))
    with pytest.raises(native_json.CannotReadError, match='"x"'):
        native_json.records_of(schema, "value")
