import base64
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import SourceError, UnsupportedError
from velostream.formats.base import FormatSettings, SchemaText
from velostream.formats.registry import record_format
from velostream.model.schema import Schema

PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
message Other { string x = 1; }
message Row {
  int64 id = 1;
  optional string note = 2;
  google.protobuf.Timestamp at = 3;
  google.protobuf.Duration length = 4;
  google.protobuf.Int64Value maybe = 5;
  repeated int32 tags = 6;
  map<string, Inner> parts = 7;
  enum Color { RED = 0; BLUE = 1; }
  Color color = 8;
  message Inner { bytes raw = 1; double weight = 2; }
  Inner inner = 9;
  uint64 big = 10;
  oneof choice { string text = 11; int32 number = 12; }
  Row parent = 13;
  google.protobuf.Struct free = 14;
}
"""
NAMES = ["id", "note", "at", "length", "maybe", "tags", "parts", "color", "inner", "big", "text", "number"]


def made(text=PROTO, message="Row"):
    return record_format("protobuf", FormatSettings(protobuf_schema=SchemaText(text), protobuf_message=message))


def test_every_protobuf_type_has_a_column_type():
    found = made().infer(pa.array([], pa.binary()))
    assert {column.name: column.sql_type for column in found.columns} == {
        "id": "BIGINT",
        "note": "STRING",
        "at": "TIMESTAMP",
        "length": "INTERVAL DAY TO SECOND",
        "maybe": "BIGINT",
        "tags": "ARRAY<INT>",
        "parts": "MAP<STRING, STRUCT<raw: BINARY, weight: DOUBLE>>",
        "color": "STRING",
        "inner": "STRUCT<raw: BINARY, weight: DOUBLE>",
        "big": "DECIMAL(20,0)",
        "text": "STRING",
        "number": "INT",
        "parent": "STRING",
        "free": "STRING",
    }


def test_values_come_back_and_what_was_not_set_is_null():
    columns = made().infer(pa.array([], pa.binary())).select(NAMES)
    full = {
        "id": -5,
        "note": "",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        "length": timedelta(days=-1, microseconds=7),
        "maybe": 0,
        "tags": [1, 2],
        "parts": [("k", {"raw": b"\xff", "weight": 0.5})],
        "color": "BLUE",
        "inner": {"raw": b"", "weight": 1.0},
        "big": Decimal(2**64 - 1),
        "text": None,
        "number": 7,
    }
    bare = dict.fromkeys(NAMES) | {"id": 1}
    records = made().encode(pa.Table.from_pylist([full, bare], columns.arrow))
    found = made().decode(records, columns, pytest.fail).rows.to_pylist()
    assert found[0] == full
    # Fields that can't tell whether they were set have their defaults.
    assert found[1] == bare | {"tags": [], "parts": [], "color": "RED", "big": Decimal(0)}


def test_what_has_no_fixed_shape_is_json():
    records = pa.array([b"\x6a\x02\x08\x07" + b"\x72\x07\x0a\x05\x0a\x01a\x12\x00"], pa.binary())
    (row,) = made().decode(records, Schema.of(("parent", "STRING"), ("free", "STRING")), pytest.fail).rows.to_pylist()
    assert row == {"parent": '{"id": "7"}', "free": '{"a": null}'}


def test_a_descriptor_set_serves_as_well_as_text(tmp_path):
    (tmp_path / "row.proto").write_text('syntax = "proto3"; message Row { int64 id = 1; }')
    arguments = [f"-I{tmp_path}", "--include_imports", f"--descriptor_set_out={tmp_path}/row.desc", "row.proto"]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *arguments], check=True)
    written = (tmp_path / "row.desc").read_bytes()
    expected = Schema.of(("id", "BIGINT"))
    for schema in (SchemaText(file=f"{tmp_path}/row.desc"), SchemaText(base64.b64encode(written).decode())):
        found = record_format("protobuf", FormatSettings(protobuf_schema=schema))
        assert found.infer(pa.array([], pa.binary())) == expected


def test_a_message_is_named_where_there_are_several():
    assert made(message=None).infer(pa.array([], pa.binary())).names == ("x",)
    assert made(message="shop.Row.Inner").infer(pa.array([], pa.binary())).names == ("raw", "weight")
    with pytest.raises(SourceError) as caught:
        made(message="Rwo").infer(pa.array([], pa.binary()))
    assert caught.value.code == "unknown-schema"
    assert "shop.Row" in caught.value.detail


def test_decimals_in_messages_are_exact_text():
    text = """
    syntax = "proto3"; package confluent.type;
    message Row { Decimal price = 1; }
    message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
    """
    columns = Schema.of(("price", "DECIMAL(38,4)"))
    prices = [Decimal("-12345678901234567890.1234"), Decimal("0.0000"), None]
    rows = pa.table({"price": pa.array(prices, pa.decimal128(38, 4))})
    records = made(text).encode(rows)
    assert made(text).decode(records, columns, pytest.fail).rows.to_pylist() == rows.to_pylist()
    assert made(text).infer(records) == Schema.of(("price", "STRING"))


def test_a_row_that_does_not_fit_its_message_is_refused():
    with pytest.raises(UnsupportedError, match="does not fit"):
        made().encode(pa.table({"color": ["GREEN"]}))
