import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from velostream.errors import UnsupportedError, VelostreamError
from velostream.model.change import Epoch
from velostream.model.schema import Schema
from velostream.sinks import files
from velostream.sinks.base import SinkSpec
from velostream.sinks.files import FileSink


def sink_of(uri, **options):
    return FileSink(SinkSpec("file", str(uri), options))


def rows(*numbers):
    return pa.table({"n": pa.array(numbers, pa.int64()), "price": pa.array([Decimal("1.50")] * len(numbers))})


def test_csv_grows_with_one_header(tmp_path):
    path = tmp_path / "out.csv"
    sink = sink_of(f"file://{path}")
    sink.open(Schema.from_arrow(rows().schema))
    sink.write(rows(1), Epoch("q", 1))
    sink.write(rows(), Epoch("q", 2))
    sink.write(rows(2, 3), Epoch("q", 3))
    assert path.read_text() == "n,price\n1,1.50\n2,1.50\n3,1.50\n"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_text_that_grows_tells_its_byte_order_once(tmp_path, encoding):
    path = tmp_path / "out.csv"
    for number in (1, 2):
        sink_of(path, encoding=encoding).write(rows(number), Epoch("q", number))
    assert path.read_bytes().decode(encoding) == "n,price\n1,1.50\n2,1.50\n"


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_writers_of_one_file_wait_for_each_other(tmp_path, name):
    path = tmp_path / name
    all_ready = threading.Barrier(4)

    def write(writer):
        all_ready.wait(30)
        for number in range(1, 11):
            sink_of(path).write(rows(number), Epoch(writer, number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    written = pq.read_table(path) if name.endswith("parquet") else csv.read_csv(path)
    assert sorted(written["n"].to_pylist()) == sorted(list(range(1, 11)) * 4)


def test_null_and_the_empty_string_stay_apart(tmp_path):
    path = tmp_path / "out.csv"
    sink_of(path).write(pa.table({"a": [None, "", 'say "hi"\n'], "b": [[1], None, []]}), Epoch("q", 1))
    assert path.read_text() == 'a,b\n,"[1]"\n"",\n"say ""hi""\n","[]"\n'


def test_json_lines_keep_digits_and_nesting(tmp_path):
    path = tmp_path / "out.json"
    table = pa.table(
        {
            "d": pa.array([Decimal("12.50")]),
            "at": pa.array([datetime(2024, 1, 1, tzinfo=UTC)]),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([{"x": None}]),
        }
    )
    sink_of(path).write(table, Epoch("q", 1))
    assert path.read_text() == '{"d":12.50,"at":"2024-01-01T00:00:00Z","m":{"k":1},"s":{"x":null}}\n'


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.parquet"])
def test_a_repeated_epoch_leaves_the_same_file(tmp_path, name):
    path = tmp_path / name
    sink_of(path).write(rows(1), Epoch("q", 1))
    sink_of(path).write(rows(2), Epoch("q", 2))
    before = path.read_bytes()
    sink_of(path).write(rows(2), Epoch("q", 2))
    sink_of(path).write(rows(1), Epoch("q", 1))
    assert path.read_bytes() == before
    sink_of(path).write(rows(7), Epoch("another", 1))
    assert path.read_bytes() != before


@pytest.mark.parametrize("torn", [0, 3])
def test_a_torn_batch_is_written_anew(tmp_path, torn, monkeypatch):
    path = tmp_path / "out.csv"
    sink_of(path).write(rows(1), Epoch("q", 1))
    whole = path.stat().st_size
    sink_of(path).write(rows(2, 3), Epoch("q", 2))
    expected = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(whole + torn)
    sink_of(path).write(rows(2, 3), Epoch("q", 2))
    assert path.read_bytes() == expected


def test_another_writer_after_a_torn_batch_begins_a_clean_line(tmp_path):
    path = tmp_path / "out.csv"
    sink_of(path).write(rows(1), Epoch("a", 1))
    whole = path.stat().st_size
    sink_of(path).write(rows(2), Epoch("a", 2))
    with path.open("r+b") as file:
        file.truncate(whole + 2)
    sink_of(path).write(rows(9), Epoch("b", 1))
    sink_of(path).write(rows(2), Epoch("a", 2))
    assert path.read_text() == "n,price\n1,1.50\n9,1.50\n2,1.50\n"


def test_a_crash_before_the_batch_is_written(tmp_path, monkeypatch):
    path = tmp_path / "out.csv"
    sink_of(path).write(rows(1), Epoch("q", 1))

    def crash(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "fsync", crash)
        with pytest.raises(KeyboardInterrupt):
            sink_of(path).write(rows(2), Epoch("q", 2))
    sink_of(path).write(rows(2), Epoch("q", 2))
    assert path.read_text() == "n,price\n1,1.50\n2,1.50\n"


@pytest.mark.parametrize(
    ("format_", "suffix"), [(None, "parquet"), ("csv", "csv"), ("json", "jsonl"), ("json_array", "json")]
)
def test_a_folder_has_one_file_per_batch(tmp_path, format_, suffix):
    options = {"format": format_} if format_ else {}
    sink = sink_of(f"file://{tmp_path}/out", **options)
    sink.open(Schema.from_arrow(rows().schema))
    for _ in range(2):
        sink.write(rows(1), Epoch("q/1", 1))
        sink.write(rows(2), Epoch("q/1", 2))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [f"q%2F1-000000000001.{suffix}", f"q%2F1-000000000002.{suffix}"]


def test_parquet_in_one_file(tmp_path):
    path = tmp_path / "out.parquet"
    sink_of(path).write(rows(1), Epoch("q", 1))
    sink_of(path).write(rows(2), Epoch("q", 2))
    assert pq.read_table(path)["n"].to_pylist() == [1, 2]


def test_a_json_array_is_one_document(tmp_path):
    sink_of(f"{tmp_path}/out/", format="json_array").open(Schema.of(("n", "BIGINT")))
    sink_of(f"{tmp_path}/out/", format="json_array").write(rows(1, 2), Epoch("q", 1))
    (path,) = (tmp_path / "out").iterdir()
    assert [record["n"] for record in json.loads(path.read_text())] == [1, 2]


def test_places_that_can_not_be_written_are_refused_at_create(tmp_path):
    schema = Schema.of(("n", "BIGINT"))
    (tmp_path / "plain").write_text("x")
    (tmp_path / "d.csv").mkdir()
    for uri in (tmp_path / "plain", tmp_path / "d.csv", tmp_path / "plain/x.csv"):
        with pytest.raises(VelostreamError, match="can't be written") as caught:
            sink_of(uri).open(schema)
        assert caught.value.code == "unwritable-path"
    with pytest.raises(UnsupportedError, match="JSON array"):
        sink_of(tmp_path / "x.json", format="json_array").open(schema)


def test_trouble_on_the_way_is_named(tmp_path):
    sink = sink_of(tmp_path / "gone/out.csv")
    with pytest.raises(VelostreamError, match="can't be written"):
        sink.write(rows(1), Epoch("q", 1))
