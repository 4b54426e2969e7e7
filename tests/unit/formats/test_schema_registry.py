"""Schemas kept in a registry, against the stand-in of `velostream.testing.services.schema_registry`."""

import io
import json
from dataclasses import replace

import fastavro
import pyarrow as pa
import pytest

from velostream.errors import Category, SourceError
from velostream.formats.base import FormatSettings, RegistrySettings, SchemaText
from velostream.formats.registry import record_format
from velostream.formats.schema_registry import RegisteredSchema, SchemaRegistry
from velostream.formats.wire import header, message_path, path_bytes, schema_id, without_header
from velostream.model.schema import Schema
from velostream.testing.services.schema_registry import SchemaRegistryService

ROWS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": pa.array(["a", None], pa.string())})
COLUMNS = Schema.from_arrow(ROWS.schema)
PROTO = """
syntax = "proto3"; package shop;
message Outer { string x = 1; message Row { int64 id = 1; optional string name = 2; } }
"""


def binary(*records):
    return pa.array(records, pa.binary())


@pytest.fixture
def registry():
    service = SchemaRegistryService.shared()
    return RegistrySettings(service.url, service.new_database(), service.username, service.password)


def test_the_header_is_the_one_everybody_writes():
    assert header(258) == b"\x00\x00\x00\x01\x02"
    assert schema_id(b"\x00\x00\x00\x01\x02rest") == 258
    assert schema_id(b"\x01\x00\x00\x01\x02") is None
    assert schema_id(b"\x00\x00") is None
    assert without_header(binary(b"\x00\x00\x00\x00\x01{}", b"{}", None)).to_pylist() == [b"{}", b"{}", None]


@pytest.mark.parametrize(("path", "written"), [((0,), b"\x00"), ((1,), b"\x02\x02"), ((2, 70), b"\x04\x04\x8c\x01")])
def test_places_of_messages(path, written):
    assert path_bytes(path) == written
    assert message_path(header(1) + written + b"body") == (path, 5 + len(written))


@pytest.mark.parametrize("name", ["avro", "protobuf", "json"])
def test_records_carry_the_number_of_their_schema(registry, name):
    settings = FormatSettings(registry=registry)
    if name == "protobuf":
        settings = replace(settings, protobuf_schema=SchemaText(PROTO), protobuf_message="Outer.Row")
    records = record_format(name, settings).encode(ROWS)
    if name == "json":
        schema = SchemaRegistry(registry).register(registry.subject, RegisteredSchema("{}", "JSON"))
        records = binary(*(header(schema) + record for record in records.to_pylist()))
    assert all(schema_id(record) for record in records.to_pylist())
    reader = record_format(name, FormatSettings(registry=registry))
    bad = []
    found = reader.decode(pa.concat_arrays([records, binary(None)]), reader.infer(records), bad.append)
    assert found.rows.to_pylist() == ROWS.to_pylist()
    assert bad == []


def test_records_of_several_schemas_are_read_together(registry):
    client = SchemaRegistry(registry)
    older = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}
    newer = {"type": "record", "name": "Row", "fields": [*older["fields"], {"name": "more", "type": "string"}]}
    records = []
    for schema, row in ((older, {"id": 1}), (newer, {"id": 2, "more": "x"}), (older, {"id": 3})):
        out = io.BytesIO()
        out.write(header(client.register(registry.subject, RegisteredSchema(json.dumps(schema)))))
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), row)
        records.append(out.getvalue())
    made = record_format("avro", FormatSettings(registry=registry))
    assert made.infer(binary()).names == ("id", "more")
    nobody = FormatSettings(registry=replace(registry, subject="nobody-has-written-yet"))
    assert record_format("avro", nobody).infer(binary()) is None
    found = made.decode(binary(*records), made.infer(binary(*records)), pytest.fail)
    assert found.rows.to_pylist() == [{"id": 1, "more": None}, {"id": 2, "more": "x"}, {"id": 3, "more": None}]


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_a_schema_nobody_knows_makes_a_bad_record(registry, name):
    settings = FormatSettings(registry=registry)
    writer = replace(settings, protobuf_schema=SchemaText(PROTO), protobuf_message="Outer.Row")
    good = record_format(name, writer if name == "protobuf" else settings).encode(ROWS).to_pylist()
    other = SchemaRegistry(registry).register(registry.subject, RegisteredSchema('{"title": "neither"}', "JSON"))
    records = binary(good[0], header(99_999) + b"\x00", b"no header", header(other) + b"\x00", good[1])
    made = record_format(name, settings)
    assert made.infer(records) == COLUMNS
    bad = []
    found = made.decode(records, COLUMNS, bad.append)
    assert found.records.to_pylist() == [0, 4]
    assert [rejected.place for rejected in bad] == [1, 2, 3]
    assert "schema 99999 is not in the schema registry" in bad[0].reason


def test_protobuf_schemas_import_others(registry):
    client = SchemaRegistry(registry)
    money = 'syntax = "proto3"; message Money { int64 cents = 1; }'
    client.register(f"{registry.subject}-money", RegisteredSchema(money, "PROTOBUF"))
    text = 'syntax = "proto3"; import "shop/money.proto"; message Row { Money price = 1; }'
    imports = (("shop/money.proto", f"{registry.subject}-money", 1),)
    number = client.register(registry.subject, RegisteredSchema(text, "PROTOBUF", imports))
    record = binary(header(number) + b"\x00" + b"\x0a\x02\x08\x07")
    made = record_format("protobuf", FormatSettings(registry=registry))
    found = made.decode(record, made.infer(record), pytest.fail)
    assert found.rows.to_pylist() == [{"price": {"cents": 7}}]


def test_trouble_has_its_category_and_never_the_password(registry):
    wrong = replace(registry, password="wrong-secret")
    with pytest.raises(SourceError) as caught:
        SchemaRegistry(wrong).latest("any")
    assert caught.value.category is Category.AUTHENTICATION
    assert "wrong-secret" not in str(caught.value)
    with pytest.raises(SourceError) as caught:
        SchemaRegistry(registry).latest("nobody-has-this")
    assert (caught.value.code, caught.value.category) == ("unknown-schema", Category.MISSING)
    with pytest.raises(SourceError) as caught:
        SchemaRegistry(registry).register(registry.subject, RegisteredSchema("{broken"))
    assert (caught.value.code, caught.value.category) == ("registry-refused", Category.CONFIGURATION)


def test_a_registry_that_is_away_is_no_bad_record_and_comes_back():
    with SchemaRegistryService() as service:
        made = record_format("avro", FormatSettings(registry=RegistrySettings(service.url, "s")))
        records = made.encode(ROWS)
        with service.stopped():
            # Another user's registry: what this one has fetched is known without asking again.
            away = RegistrySettings(service.url, "s", "user", "hidden")
            with pytest.raises(SourceError) as caught:
                record_format("avro", FormatSettings(registry=away)).decode(records, COLUMNS, pytest.fail)
            assert caught.value.category is Category.NETWORK
            assert "hidden" not in str(caught.value)
        assert made.decode(records, COLUMNS, pytest.fail).rows.to_pylist() == ROWS.to_pylist()
