"""Files of every format and compression through the file source."""

import gzip
import json
import pickle
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import Category, FurtherColumnsError, OptionError, SourceError
from velostream.formats import whole_text
from velostream.formats.base import FormatSettings
from velostream.formats.compression import compressed, compression_of
from velostream.formats.json import JsonDocumentFormat
from velostream.formats.registry import make_format
from velostream.model.schema import Schema
from velostream.sources.base import SourceSpec
from velostream.sources.files import FileSource

LINES = b"id,name\n1,a\n2,b\n3,c\n"


def source_of(uri, **options):
    values = {name.replace("_", "."): value for name, value in options.items()}
    return FileSource(SourceSpec("file", str(uri), values))


def read_all(source, schema=None):
    bad = []
    start = source.initial_offset()
    reader = pickle.loads(pickle.dumps(source))
    rows = [
        row
        for partition in source.partitions(start, json.loads(json.dumps(source.latest_offset(start))))
        for batch in reader.read(partition, schema or source.schema(), bad.append)
        for row in batch.to_pylist()
    ]
    return rows, bad


@pytest.mark.parametrize(("suffix", "codec"), [("gz", "gzip"), ("zst", "zstd"), ("bz2", "bz2"), ("lz4", "lz4")])
def test_compression_is_known_by_the_name_or_by_the_option(tmp_path, suffix, codec):
    named, unnamed = tmp_path / f"rows.csv.{suffix}", tmp_path / "rows.csv"
    named.write_bytes(compressed(LINES, codec))
    unnamed.write_bytes(compressed(LINES, codec))
    expected = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    assert read_all(source_of(named)) == (expected, [])
    assert read_all(source_of(unnamed, compression=codec)) == (expected, [])
    plain = tmp_path / f"plain.csv.{suffix}"
    plain.write_bytes(LINES)
    assert read_all(source_of(plain, compression="none")) == (expected, [])


def test_a_compressed_file_larger_than_a_block_is_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_text, "_BLOCK_BYTES", 64)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"id": %d, "text": "%s"}\n' % (n, b"x" * n) for n in range(200))))
    rows, bad = read_all(source_of(path))
    assert [row["id"] for row in rows] == list(range(200))
    assert bad == []


def test_a_bad_record_in_a_compressed_file_has_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_text, "_BLOCK_BYTES", 8)
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(LINES + b"many,more,fields\n5,e\n"))
    rows, bad = read_all(source_of(path))
    assert [row["id"] for row in rows] == [1, 2, 3, 5]
    assert [(record.raw, record.position) for record in bad] == [(b"many,more,fields", f"{path} record 4")]


def test_a_compressed_file_that_is_cut_off_keeps_what_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_text, "_BLOCK_BYTES", 1 << 12)
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"id\n" + b"".join(b"%d\n" % (n * n) for n in range(20_000)))[:-100])
    source = source_of(path, record_schema="id BIGINT")
    rows, bad = read_all(source)
    assert 1_000 < len(rows) < 20_000
    assert [row["id"] for row in rows] == [n * n for n in range(len(rows))]
    assert "cut" in bad[0].reason or "Truncated" in bad[0].reason
    with pytest.raises(SourceError) as caught:
        source_of(path).schema()
    assert (caught.value.code, caught.value.category) == ("unreadable-file", Category.DATA)


def test_json_documents_may_be_compressed_and_are_told_from_lines(tmp_path):
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b'[{"id": 1},\n {"id": 2}]'))
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'{"id": 3}\n{"id": 4}\n'))
    assert [row["id"] for row in read_all(source_of(tmp_path / "*.json.gz"))[0]] == [1, 2, 3, 4]


def test_plain_and_compressed_files_stand_side_by_side(tmp_path):
    (tmp_path / "2025").mkdir()
    (tmp_path / "2025" / "a.csv").write_bytes(LINES)
    (tmp_path / "2025" / "b.csv.gz").write_bytes(gzip.compress(b"id,name\n4,d\n"))
    (tmp_path / "c.csv").write_bytes(b"id,name\n5,e\n")
    rows, bad = read_all(source_of(f"{tmp_path}/**/*.{{csv,csv.gz}}"))
    assert ([row["id"] for row in rows], bad) == ([1, 2, 3, 4, 5], [])


def test_formats_that_compress_what_is_in_them_need_no_further_compression(tmp_path):
    (tmp_path / "rows.parquet").write_bytes(b"")
    with pytest.raises(OptionError, match="compression"):
        source_of(tmp_path / "rows.parquet", compression="gzip").schema()


def test_text_is_a_line_each(tmp_path):
    path = tmp_path / "app.log"
    path.write_bytes("# comment\nfirst, line\r\n\nsecond ü\nlast".encode())
    rows, bad = read_all(source_of(path, skip_lines="1"))
    assert [row["value"] for row in rows] == ["first, line", "", "second ü", "last"]
    assert bad == []
    path.write_bytes(b"good\n\xff\xfe\nalso good\n")
    rows, bad = read_all(source_of(path))
    assert [row["value"] for row in rows] == ["good", "also good"]
    assert [(record.raw, record.position) for record in bad] == [(b"\xff\xfe", f"{path}:2")]


def test_text_is_followed_line_by_line(tmp_path):  # B42
    path = tmp_path / "app.log"
    path.write_text("one\ntw")
    source = source_of(path, watch_mode="append")
    first = source.latest_offset(source.initial_offset())
    with path.open("a") as file:
        file.write("o\nthree\n")
    later = source.latest_offset(first)
    read = [
        row["value"]
        for start, end in ((source.initial_offset(), first), (first, later))
        for partition in source.partitions(start, end)
        for batch in source.read(partition, source.schema(), pytest.fail)
        for row in batch.to_pylist()
    ]
    assert read == ["one", "two", "three"]


def test_timestamps_of_another_format_are_inferred(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("id;at\n1;31.12.2025 23:00\n2;\n")
    source = source_of(path, delimiter=";", timestamp_format="dd.MM.yyyy HH:mm", timezone="Europe/Berlin")
    assert source.schema().column("at").sql_type == "TIMESTAMP"
    rows, bad = read_all(source)
    assert [row["at"] for row in rows] == [datetime(2025, 12, 31, 22, tzinfo=UTC), None]
    assert bad == []


@pytest.mark.parametrize("name", ["avro", "orc", "parquet"])
def test_a_damaged_file_stops_no_other(tmp_path, name):
    good = source_of(tmp_path)._formats.of(f"x.{name}").encode(pa.table({"id": pa.array([1, 2], pa.int64())}))
    (tmp_path / f"a.{name}").write_bytes(good)
    (tmp_path / f"b.{name}").write_bytes(b"damaged" + good)
    (tmp_path / f"c.{name}").write_bytes(good)
    rows, bad = read_all(source_of(tmp_path))
    assert [row["id"] for row in rows] == [1, 2, 1, 2]
    assert [record.position for record in bad] == [str(tmp_path / f"b.{name}")]
    assert "not a readable" in bad[0].reason


@pytest.mark.parametrize("name", ["csv", "jsonl", "json", "avro", "orc", "parquet"])
def test_fields_that_are_no_columns_are_left_out_or_refused(tmp_path, name):
    plain = source_of(tmp_path)
    encode = plain._formats.of(f"x.{name}").encode if name != "json" else JsonDocumentFormat(FormatSettings()).encode
    (tmp_path / f"a.{name}").write_bytes(encode(pa.table({"id": [1, 2]})))
    schema = plain.schema()
    (tmp_path / f"b.{name}").write_bytes(encode(pa.table({"id": [3, 4], "more": ["x", "y"]})))
    rows, bad = read_all(plain, schema)
    assert ([row["id"] for row in rows], bad) == ([1, 2, 3, 4], [])
    rows, bad = read_all(source_of(tmp_path, schema_evolution="fail"), schema)
    assert [row["id"] for row in rows] == [1, 2]
    assert bad
    assert all('field "more" is no column' in record.reason for record in bad)


@pytest.mark.parametrize("name", ["csv", "csv.gz", "jsonl", "json", "avro", "orc", "parquet"])
def test_fields_that_are_no_columns_are_told_where_they_are_to_be_added(tmp_path, name):  # B10
    plain = source_of(tmp_path)
    kind = name.removesuffix(".gz")
    encode = plain._formats.of(f"x.{kind}").encode if name != "json" else JsonDocumentFormat(FormatSettings()).encode
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / f"a.{name}").write_bytes(pack(encode(pa.table({"id": [1, 2]}))))
    schema = plain.schema()
    (tmp_path / f"b.{name}").write_bytes(pack(encode(pa.table({"id": [3, 4], "more": ["x", "y"], "Rest": [1, 2]}))))
    with pytest.raises(FurtherColumnsError) as lacking:
        read_all(source_of(tmp_path, schema_evolution="add"), schema)
    assert lacking.value.columns == [("more", "STRING"), ("Rest", "BIGINT")]
    rows, bad = read_all(source_of(tmp_path, schema_evolution="add"), source_of(tmp_path).schema())
    assert ([row["more"] for row in rows], bad) == ([None, None, "x", "y"], [])


@pytest.mark.parametrize("name", ["csv", "jsonl", "json", "avro", "orc", "parquet"])
def test_no_column_is_added_under_a_name_of_the_engines(tmp_path, name):
    encode = make_format("json_array" if name == "json" else name, FormatSettings()).encode
    (tmp_path / f"a.{name}").write_bytes(encode(pa.table({"id": [1]})))
    schema = source_of(tmp_path).schema()
    own = {"_change": [5], "_ORIGIN": ["here"], "_unchanged": ["x"]}
    (tmp_path / f"b.{name}").write_bytes(encode(pa.table({"id": [2], **own})))
    adding = source_of(tmp_path, schema_evolution="add")
    assert read_all(adding, schema) == ([{"id": 1}, {"id": 2}], [])
    (tmp_path / f"c.{name}").write_bytes(encode(pa.table({"id": [3], "more": ["x"], **own})))
    with pytest.raises(FurtherColumnsError) as lacking:
        read_all(adding, schema)
    assert lacking.value.columns == [("more", "STRING")]


_EMPTY = {
    "csv": "id,x\n2,\n3,\n",
    "jsonl": '{"id": 2, "x": null, "y": [], "z": {"in": [null]}}\n{"id": 3, "x": null}\n',
    "json": '[{"id": 2, "x": null, "y": [], "z": {"in": [null]}}, {"id": 3, "x": null}]',
}


@pytest.mark.parametrize("misfit", [False, True])
@pytest.mark.parametrize("name", ["csv", "jsonl", "json", "parquet"])
def test_a_field_without_a_value_is_no_column_yet(tmp_path, name, misfit):
    encode = make_format("json_array" if name == "json" else name, FormatSettings()).encode
    (tmp_path / f"a.{name}").write_bytes(encode(pa.table({"id": [1]})))
    schema = source_of(tmp_path).schema()
    if name == "parquet":
        empty = encode(pa.table({"id": [2, 3], "x": pa.nulls(2), "y": pa.array([[], None], pa.list_(pa.null()))}))
    else:
        empty = _EMPTY[name].encode()
    if misfit and name in ("csv", "jsonl"):
        # Lines that can't be read at once are looked at one by one.
        empty += b"word,\n" if name == "csv" else b'{"id": "word", "x": null}\n'
    (tmp_path / f"b.{name}").write_bytes(empty)
    adding = source_of(tmp_path, schema_evolution="add")
    rows, bad = read_all(adding, schema)
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert len(bad) == (misfit and name in ("csv", "jsonl"))
    (tmp_path / f"c.{name}").write_bytes(encode(pa.table({"id": [4], "x": [Decimal("3.50")]})))
    with pytest.raises(FurtherColumnsError) as lacking:
        read_all(adding, schema)
    assert [(column, type_.split("(")[0]) for column, type_ in lacking.value.columns] == [("x", "DECIMAL")]


def test_a_field_that_has_its_first_value_late_in_a_document_has_its_type(tmp_path):
    (tmp_path / "a.json").write_text('[{"id": 1}]')
    schema = source_of(tmp_path).schema()
    late = [*({"id": number, "x": None} for number in range(12_000)), {"id": -1, "x": 3}]
    (tmp_path / "b.json").write_text(json.dumps(late))
    with pytest.raises(FurtherColumnsError) as lacking:
        read_all(source_of(tmp_path, schema_evolution="add"), schema)
    assert lacking.value.columns == [("x", "BIGINT")]


def test_a_column_may_first_appear_in_any_file(tmp_path):  # B10
    for number in range(12):
        (tmp_path / f"{number:02}.csv").write_text("id\n1\n" if number < 11 else "id,late\n1,x\n")
    assert source_of(tmp_path).schema().names == ("id", "late")


@pytest.mark.parametrize("name", ["csv", "csv.gz", "json", "avro", "orc", "parquet"])
def test_a_file_that_went_away_is_missing_and_no_bad_record(tmp_path, name):
    path = tmp_path / f"rows.{name}"
    source = source_of(tmp_path)
    plain = name.removesuffix(".gz")
    data = make_format("json_array" if plain == "json" else plain, FormatSettings()).encode(pa.table({"id": [1]}))
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    schema = source.schema()
    start = source.initial_offset()
    parts = source.partitions(start, source.latest_offset(start))
    path.unlink()
    with pytest.raises(SourceError) as caught:
        list(pickle.loads(pickle.dumps(source)).read(parts[0], schema, pytest.fail))
    assert caught.value.category is Category.MISSING


@pytest.mark.parametrize("name", ["csv", "tsv", "jsonl", "json", "parquet", "avro", "orc", "csv.gz", "jsonl.zst"])
def test_the_same_rows_are_the_same_in_every_format(tmp_path, name):
    """2,000 rows with NULLs, decimals, timestamps, booleans and texts of all sorts: equal values and types."""
    texts = ["plain", "ümläut 東京 🚀", 'say "hi", she said', "two\nlines", "", None, " padded ", "007", "null"]
    rows = [
        {
            "id": number,
            "name": texts[number % len(texts)],
            "amount": None if number % 7 == 0 else Decimal(number - 1000) / 4,
            "at": None if number % 11 == 0 else datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number * 1001.5),
            "day": date(2000, 1, 1) + timedelta(days=number),
            "flag": [True, False, None][number % 3],
            "ratio": number * 1.5e-9,
        }
        for number in range(2_000)
    ]
    expected = Schema.of(
        ("id", "BIGINT"),
        ("name", "STRING"),
        ("amount", "DECIMAL(18,2)"),
        ("at", "TIMESTAMP"),
        ("day", "DATE"),
        ("flag", "BOOLEAN"),
        ("ratio", "DOUBLE"),
    )
    plain, _, codec = name.partition(".")
    settings = FormatSettings(compression=compression_of(f"x.{codec}", None))
    written = make_format("json_array" if plain == "json" else plain, settings)
    (tmp_path / f"rows.{name}").write_bytes(written.encode(pa.Table.from_pylist(rows, expected.arrow)))
    source = source_of(tmp_path / f"rows.{name}")
    assert source.schema() == expected
    read, bad = read_all(source)
    assert bad == []
    assert read == rows
