import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from velostream.errors import SourceError, UnsupportedError
from velostream.formats import avro
from velostream.formats.avro import AvroFileFormat
from velostream.formats.avro_types import columns_of, schema_of
from velostream.formats.base import FormatSettings, SchemaText
from velostream.formats.registry import record_format


def fields(*pairs):
    return {"type": "record", "name": "Row", "fields": [{"name": name, "type": type_} for name, type_ in pairs]}


def types(schema):
    return {column.name: column.sql_type for column in columns_of(schema).columns}


def test_every_avro_type_has_a_column_type():
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]}
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 4}
    schema = fields(
        ("flag", "boolean"),
        ("i", "int"),
        ("l", ["null", "long"]),
        ("f", "float"),
        ("d", "double"),
        ("raw", "bytes"),
        ("s", ["null", "string"]),
        ("money", decimal),
        (
            "fixed_money",
            {"type": "fixed", "name": "M", "size": 8, "logicalType": "decimal", "precision": 18, "scale": 2},
        ),
        ("huge", decimal | {"precision": 60}),
        ("day", {"type": "int", "logicalType": "date"}),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("local", {"type": "long", "logicalType": "local-timestamp-micros"}),
        ("clock", {"type": "int", "logicalType": "time-millis"}),
        ("id", {"type": "string", "logicalType": "uuid"}),
        ("color", {"type": "enum", "name": "Color", "symbols": ["RED"]}),
        ("tags", {"type": "array", "items": "string"}),
        ("by_name", {"type": "map", "values": ["null", "long"]}),
        ("inner", inner),
        ("again", ["null", "Inner"]),
        ("number", ["int", "long", "null"]),
        ("any", ["int", "string"]),
        ("tree", ["null", "Row"]),
    )
    assert types(schema) == {
        "flag": "BOOLEAN",
        "i": "INT",
        "l": "BIGINT",
        "f": "FLOAT",
        "d": "DOUBLE",
        "raw": "BINARY",
        "s": "STRING",
        "money": "DECIMAL(9,4)",
        "fixed_money": "DECIMAL(18,2)",
        "huge": "STRING",
        "day": "DATE",
        "at": "TIMESTAMP",
        "local": "TIMESTAMP_NTZ",
        "clock": "STRING",
        "id": "STRING",
        "color": "STRING",
        "tags": "ARRAY<STRING>",
        "by_name": "MAP<STRING, BIGINT>",
        "inner": "STRUCT<x: INT>",
        "again": "STRUCT<x: INT>",
        "number": "BIGINT",
        "any": "STRING",
        "tree": "STRING",
    }


def test_values_of_foreign_writers_are_exact():
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10}
    schema = fields(
        ("money", decimal),
        ("clock", {"type": "int", "logicalType": "time-millis"}),
        ("id", {"type": "string", "logicalType": "uuid"}),
        ("any", ["long", "string"]),
        ("at", {"type": "long", "logicalType": "timestamp-millis"}),
        ("tree", ["null", "Row"]),
    )
    row = {
        "money": Decimal("-1234567890123456789012345678.0123456789"),
        "clock": time(23, 59, 59),
        "id": UUID(int=7),
        "any": "text",
        "at": datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
        "tree": None,
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row | {"tree": row})
    made = record_format("avro", FormatSettings(avro_schema=SchemaText(json.dumps(schema))))
    records = pa.array([out.getvalue()], pa.binary())
    bad = []
    (found,) = made.decode(records, made.infer(records), bad.append).rows.to_pylist()
    assert bad == []
    assert json.loads(found.pop("tree"))["any"] == "text"
    row.pop("tree")
    assert found == row | {"clock": "23:59:59", "id": str(UUID(int=7))}


def test_a_record_of_another_schema_is_noticed_by_what_is_left_over():
    made = record_format("avro", FormatSettings(avro_schema=SchemaText(json.dumps(fields(("n", "long"))))))
    bad = []
    made.decode(pa.array([b"\x02\x04"], pa.binary()), columns_of(fields(("n", "long"))), bad.append)
    assert "1 bytes are left over" in bad[0].reason


def test_names_and_types_avro_lacks_are_refused_with_what_to_write():
    with pytest.raises(UnsupportedError) as caught:
        schema_of(pa.schema([pa.field("total price", pa.int64())]))
    assert caught.value.hint == "SELECT `total price` AS total_price"
    with pytest.raises(UnsupportedError, match="INTERVAL"):
        schema_of(pa.schema([pa.field("length", pa.duration("us"))]))


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_files_are_cut_into_runs_of_blocks(tmp_path, monkeypatch, codec):
    monkeypatch.setattr(avro, "_ROWS_PER_UNIT", 30)
    monkeypatch.setattr(avro, "_ROWS_PER_TABLE", 7)
    path = tmp_path / "rows.avro"
    rows = [{"n": number, "day": date(2026, 1, 1)} for number in range(100)]
    schema = fields(("n", "long"), ("day", {"type": "int", "logicalType": "date"}))
    with path.open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), rows, codec=codec, sync_interval=64)
    made = AvroFileFormat(FormatSettings())
    columns = made.infer([path])
    units = made.units(path)
    assert sum(units) == 100
    assert len(units) > 2
    read = [
        row
        for unit in range(len(units))
        for table in made.decode(path, unit, unit + 1, columns, pytest.fail)
        for row in table.to_pylist()
    ]
    assert read == rows
    whole = pa.concat_tables(made.decode(path, 0, len(units), columns, pytest.fail))
    assert whole.to_pylist() == rows


def test_a_file_that_is_cut_off_is_an_error_of_its_data(tmp_path):
    path = tmp_path / "rows.avro"
    made = AvroFileFormat(FormatSettings())
    whole = made.encode(pa.table({"n": range(1000)}))
    for content in (whole[:-20], b"not avro", b""):
        path.write_bytes(content)
        with pytest.raises(SourceError) as caught:
            made.units(path)
        assert caught.value.code == "unreadable-file"
