import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from velostream.errors import Category, OptionError, SourceError
from velostream.model.schema import Schema
from velostream.sources import followed_files
from velostream.sources.base import Emits, SourceSpec
from velostream.sources.files import FileSource


def source_of(uri, columns=None, **options):
    values = {name.replace("_", "."): value for name, value in options.items()}
    return FileSource(SourceSpec("file", str(uri), values, columns))


def read_range(source, start, end, schema=None):
    bad = []
    reader = pickle.loads(pickle.dumps(source))
    rows = [
        row
        for partition in source.partitions(start, end)
        for batch in reader.read(pickle.loads(pickle.dumps(partition)), schema or source.schema(), bad.append)
        for row in batch.to_pylist()
    ]
    return rows, bad


def read_all(source):
    start = source.initial_offset()
    return read_range(source, start, json.loads(json.dumps(source.latest_offset(start))))


def types(source):
    return {column.name: column.sql_type for column in source.schema().columns}


@pytest.fixture
def orders(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_text('id,user,amount,at\n1,ann,12.50,2024-01-01T10:00:00Z\n2,,3.1,2024-01-02 00:00:00\n3,"",100,\n')
    return path


def test_a_csv_file_is_read_with_its_types(orders):  # B10
    source = source_of(f"file://{orders}")
    assert types(source) == {"id": "BIGINT", "user": "STRING", "amount": "DECIMAL(18,2)", "at": "TIMESTAMP"}
    rows, bad = read_all(source)
    assert rows == [
        {"id": 1, "user": "ann", "amount": Decimal("12.50"), "at": datetime(2024, 1, 1, 10, tzinfo=UTC)},
        {"id": 2, "user": None, "amount": Decimal("3.10"), "at": datetime(2024, 1, 2, tzinfo=UTC)},
        {"id": 3, "user": "", "amount": Decimal("100.00"), "at": None},
    ]
    assert bad == []
    assert source.capabilities.emits is Emits.APPENDS
    assert not source.capabilities.follows


def test_a_bounded_source_is_read_once(orders):
    source = source_of(orders)
    end = source.latest_offset(source.initial_offset())
    with orders.open("a") as file:
        file.write("4,x,1.00,\n")
    assert source.latest_offset(end) == end
    assert len(read_range(source, source.initial_offset(), end)[0]) == 3


def test_the_last_line_needs_no_newline(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n3,4")
    assert read_all(source_of(path))[0] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]


@pytest.mark.parametrize(
    "write",
    [lambda folder: f"file://{folder}/x.csv", lambda folder: f"file:{folder}/x.csv", lambda folder: f"{folder}/x.csv"],
)
def test_every_way_to_write_a_path(tmp_path, write):
    (tmp_path / "x.csv").write_text("a\n1\n")
    assert read_all(source_of(write(tmp_path)))[0] == [{"a": 1}]


@pytest.mark.parametrize("uri", ["file://./x y.csv", "file://./x%20y.csv", "file:x y.csv", "x y.csv", "./x y.csv"])
def test_relative_paths(tmp_path, monkeypatch, uri):
    (tmp_path / "x y.csv").write_text("a\n1\n")
    monkeypatch.chdir(tmp_path)
    source = source_of(uri)
    start = source.initial_offset()
    end = source.latest_offset(start)
    schema = source.schema()
    monkeypatch.chdir("/")
    assert read_range(source, start, end, schema)[0] == [{"a": 1}]


def test_parameters_in_the_uri_are_options(tmp_path):
    (tmp_path / "x.txt").write_text("1;2\n")
    source = source_of(f"file://{tmp_path}/x.txt?format=csv&delimiter=;&header=false")
    assert read_all(source)[0] == [{"_c0": 1, "_c1": 2}]
    assert read_all(source_of(f"file://{tmp_path}/x.txt?delimiter=|", delimiter=";", header="false"))[0] == [
        {"_c0": 1, "_c1": 2}
    ]


def test_patterns_are_sorted_by_name(tmp_path):  # B7
    for name, value in (("b.csv", 2), ("a.csv", 1), ("c.txt", 9), ("sub/d.csv", 3), (".hidden.csv", 8), ("_x.csv", 7)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"n\n{value}\n")

    def numbers(pattern):
        return [row["n"] for row in read_all(source_of(f"file://{tmp_path}/{pattern}"))[0]]

    assert numbers("*.csv") == [1, 2]
    assert numbers("**/*.csv") == [1, 2, 3]
    assert numbers("?.csv") == [1, 2]
    assert numbers("{b,c}.{csv,txt}") == [2, 9]
    assert numbers("sub/") == [3]
    assert numbers("sub") == [3]


def test_brackets_in_a_name_are_just_that(tmp_path):
    (tmp_path / "a[1].csv").write_text("n\n1\n")
    assert read_all(source_of(tmp_path / "a[1].csv"))[0] == [{"n": 1}]
    assert read_all(source_of(tmp_path / "a[1]*.csv"))[0] == [{"n": 1}]


def test_files_with_columns_in_another_order(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,x\n")
    (tmp_path / "b.csv").write_text("B,A,c\ny,2,z\n")
    source = source_of(tmp_path / "*.csv", Schema.of(("a", "BIGINT"), ("b", "STRING")))
    assert read_all(source)[0] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_json_lines_keep_nesting_and_digits(tmp_path):  # B10
    path = tmp_path / "x.json"
    path.write_text(
        '{"id": 1, "price": 123.45, "who": {"name": "a", "tags": ["x"]}, "day": "2024-01-01",'
        ' "at": "2024-01-01T00:00:00Z"}\n'
        '{"id": 2, "price": 7, "who": null, "extra": true, "day": null}\n\n'
    )
    source = source_of(path)
    assert types(source) == {
        "id": "BIGINT",
        "price": "DECIMAL(18,2)",
        "who": "STRUCT<name: STRING, tags: ARRAY<STRING>>",
        "day": "DATE",
        "at": "TIMESTAMP",
        "extra": "BOOLEAN",
    }
    rows, bad = read_all(source)
    assert rows[0]["price"] == Decimal("123.45")
    assert rows[0]["who"] == {"name": "a", "tags": ["x"]}
    assert rows[0]["day"] == date(2024, 1, 1)
    assert rows[1]["price"] == Decimal("7.00")
    assert bad == []


@pytest.mark.parametrize("text", ['[{"a": 1.50},\n {"a": 2}]', '\n  [\n{"a": 1.50}, {"a": 2}\n]\n'])
def test_json_arrays(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    source = source_of(path)
    assert types(source) == {"a": "DECIMAL(18,2)"}
    assert read_all(source)[0] == [{"a": Decimal("1.50")}, {"a": Decimal("2.00")}]


def test_a_single_json_document(tmp_path):
    path = tmp_path / "x.json"
    path.write_text('{\n  "a": 1,\n  "b": {"c": 2.5}\n}\n')
    assert read_all(source_of(path))[0] == [{"a": 1, "b": {"c": Decimal("2.50")}}]


def test_parquet(tmp_path):
    table = pa.table({"id": list(range(10)), "price": pa.array([Decimal("1.5")] * 10, pa.decimal128(10, 1))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    pq.write_table(table, tmp_path / "b.parquet")
    source = source_of(tmp_path / "*.parquet")
    assert types(source) == {"id": "BIGINT", "price": "DECIMAL(10,1)"}
    assert [row["id"] for row in read_all(source)[0]] == list(range(10)) * 2


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_any_limit_gives_the_same_rows(tmp_path, limit, suffix):
    for name, numbers in (("a", range(5)), ("b", range(5, 6)), ("c", range(6, 11))):
        table = pa.table({"n": list(numbers)})
        if suffix == "parquet":
            pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=2)
        elif suffix == "csv":
            (tmp_path / f"{name}.csv").write_text("n\n" + "".join(f"{n}\n" for n in numbers))
        else:
            (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in numbers))
    source = source_of(tmp_path / f"*.{suffix}")
    position, rows = source.initial_offset(), []
    while (end := source.latest_offset(position, max_rows=limit)) != position:
        step, _ = read_range(source, position, end)
        assert 0 < len(step) <= max(limit, 2 if suffix == "parquet" else 0) + (suffix == "parquet")
        assert source.reached(end, position)
        assert not source.reached(position, end)
        rows += step
        position = end
    assert [row["n"] for row in rows] == list(range(11))


def test_large_files_are_cut_between_records(tmp_path, monkeypatch):
    monkeypatch.setattr(followed_files, "PART_BYTES", 64)
    plain = tmp_path / "plain.csv"
    plain.write_text("id,text\n" + "".join(f"{n},word{n}\n" for n in range(100)))
    quoted = tmp_path / "quoted.csv"
    quoted.write_text("id,text\n" + "".join(f'{n},"line {n}\nand ""more"""\n' for n in range(100)))
    for path in (plain, quoted):
        source = source_of(path)
        start = source.initial_offset()
        end = source.latest_offset(start)
        if path is plain:
            assert len(source.partitions(start, end)) > 10
        rows, bad = read_range(source, start, end)
        assert [row["id"] for row in rows] == list(range(100))
        assert bad == []
    assert rows[7]["text"] == 'line 7\nand "more"'


def test_a_few_megabytes_are_cut_into_parts_for_several_workers(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"n,text\n" + b"1234567,abcdefgh\n" * 700_000)
    source = source_of(path)
    start = source.initial_offset()
    parts = source.partitions(start, source.latest_offset(start, max_rows=600_000))
    weights = [piece["weight"] for part in parts for piece in part.payload["pieces"]]
    assert 4 <= len(parts) == len(weights)
    assert sum(weights) == 600_000 * 17 + 7
    assert max(weights) < 2 * min(weights)


def test_small_files_share_a_partition(tmp_path):
    for n in range(50):
        (tmp_path / f"{n:02}.csv").write_text(f"n\n{n}\n")
    source = source_of(tmp_path)
    start = source.initial_offset()
    assert len(source.partitions(start, source.latest_offset(start))) == 1


def test_bad_records_are_set_aside_with_line_and_reason(tmp_path):  # B57
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "1,x\n" * 20_000 + 'oops,y\n2,z,w\n3\n4,"open\n5,q\n')
    source = source_of(path, Schema.of(("a", "BIGINT"), ("b", "STRING")))
    rows, bad = read_all(source)
    assert len(rows) == 20_001
    assert rows[-1] == {"a": 5, "b": "q"}
    assert [(record.position.rpartition(":")[2], record.raw) for record in sorted(bad, key=lambda r: r.position)] == [
        ("20002", b"oops,y"),
        ("20003", b"2,z,w"),
        ("20004", b"3"),
        ("20005", b'4,"open'),
    ]
    reasons = {record.raw: record.reason for record in bad}
    assert "BIGINT" in reasons[b"oops,y"]
    assert "fields" in reasons[b"3"]
    assert "quote" in reasons[b'4,"open']


def test_bad_json_is_set_aside(tmp_path):
    path = tmp_path / "x.jsonl"
    lines = ['{"a": 1}'] * 3000 + ["[1]", '{"a": "x"}', '{"a":', "\x00\x01", '{"a": 1.0}', '{"A": "7"}', "", '{"b": 1}']
    path.write_text("\n".join(lines) + "\n")
    source = source_of(path, Schema.of(("a", "BIGINT")))
    rows, bad = read_all(source)
    assert [row["a"] for row in rows[3000:]] == [1, 7, None]
    assert [record.position.rpartition(":")[2] for record in bad] == ["3001", "3003", "3004", "3002"]


@pytest.mark.parametrize(
    ("content", "rows", "bad"),
    [
        (b"\xef\xbb\xbfa,b\r\n1,x\r\n2,y\r\n", [(1, "x"), (2, "y")], 0),
        (b"a,b\n1,\xff\xfe\n2,y\n", [(2, "y")], 1),
        (b"a,b\n1,x\x00\n2,y\n", [(2, "y")], 1),
        (b"a,b\n\n\n1,x\n\n", [(1, "x")], 0),
        (b'a,b\n1,in"ch"\n2,y\n', [(1, 'in"ch"'), (2, "y")], 0),
        (b'a,b\n1,"x"y"\n2,y\n', [(2, "y")], 1),
        (b'"a","b"\n"1","x, y"\n"","z"\n', [(1, "x, y"), (None, "z")], 0),
        (b"a,b\n 1 ,x\n2,y\n", [(1, "x"), (2, "y")], 0),
        (b"a,b\n" + b"9" * 40 + b",x\n2,y\n", [(2, "y")], 1),
    ],
)
def test_nasty_bytes_never_crash(tmp_path, content, rows, bad):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    found, rejected = read_all(source_of(path, Schema.of(("a", "BIGINT"), ("b", "STRING"))))
    assert ([(row["a"], row["b"]) for row in found], len(rejected)) == (rows, bad)


def test_other_encodings(tmp_path):
    path = tmp_path / "x.csv"
    text = "name,n\nMüller,1\nŽižek,x\n"
    path.write_bytes(text.encode("cp1250"))
    source = source_of(path, Schema.of(("name", "STRING"), ("n", "BIGINT")), encoding="cp1250")
    rows, bad = read_all(source)
    assert rows == [{"name": "Müller", "n": 1}]
    assert [record.position for record in bad] == [f"{path}:3"]
    path.write_bytes(text.replace(",x", ",2").encode("utf-16"))
    assert read_all(source_of(path, encoding="utf-16"))[0] == [{"name": "Müller", "n": 1}, {"name": "Žižek", "n": 2}]


def test_skipped_lines_tabs_and_no_quotes(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text('made by x\n\na\tb\n1\t"y\n')
    assert read_all(source_of(path, skip_lines="2", quote=""))[0] == [{"a": 1, "b": '"y'}]


def test_timestamps_by_format_and_zone(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("t\n31.12.2024 12:00\n")
    source = source_of(
        path, Schema.of(("t", "TIMESTAMP")), timestamp_format="dd.MM.yyyy HH:mm", timezone="Europe/Berlin"
    )
    assert read_all(source)[0] == [{"t": datetime(2024, 12, 31, 11, tzinfo=UTC)}]


def test_columns_by_option(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("1,2.5\n")
    source = source_of(path, header="false", record_schema="id STRING, price DECIMAL(10,3)")
    assert read_all(source)[0] == [{"id": "1", "price": Decimal("2.500")}]


def test_a_header_without_any_declared_column_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("1,2\n3,4\n")
    with pytest.raises(SourceError, match="none of the declared columns") as caught:
        source_of(path, Schema.of(("a", "BIGINT"))).schema()
    assert "header" in caught.value.hint
    assert caught.value.category is Category.CONFIGURATION


def test_a_missing_file_says_what_to_do(tmp_path):  # B7
    for uri, pattern in ((tmp_path / "no.csv", False), (tmp_path / "*.csv", True), (tmp_path / "nowhere/x.csv", False)):
        for ask in (lambda s: s.schema(), lambda s: s.latest_offset(s.initial_offset())):
            with pytest.raises(SourceError) as caught:
                ask(source_of(uri))
            assert caught.value.category is Category.MISSING
            assert str(uri) in caught.value.message
            assert ("pattern" in caught.value.message) == pattern
            assert "file.wait.timeout" in caught.value.hint
            assert "watch" in caught.value.hint


def test_a_missing_file_is_created_when_asked(tmp_path):
    source = source_of(tmp_path / "x.csv", file_create_empty="true")
    assert source.schema() is None
    assert (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("content", [b"", b"a,b\n", b"\xef\xbb\xbf"])
def test_an_empty_file_has_no_schema_and_no_rows(tmp_path, content):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    source = source_of(path)
    assert source.schema() is None
    start = source.initial_offset()
    assert source.latest_offset(start) == start


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", bytes(range(256)) * 40),
        ("x.jsonl", bytes(range(256)) * 40),
        ("x.json", b"[" + b"{" * 100),
        ("x.json", b"[" * 100_000),
        ("x.parquet", b"PAR1 not really"),
        ("x.jsonl", b"just words\nand more\n"),
    ],
)
def test_what_is_no_such_file_is_refused_clearly(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as caught:
        source_of(tmp_path / name).schema()
    assert caught.value.category is Category.DATA
    assert caught.value.hint


def test_one_broken_file_among_others(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"broken")
    rows, bad = read_all(source_of(tmp_path / "*.parquet"))
    assert rows == [{"a": 1}]
    assert [record.position for record in bad] == [str(tmp_path / "b.parquet")]


def test_paths_that_are_no_files(tmp_path):
    (tmp_path / "x.bin").write_text("a")
    with pytest.raises(SourceError, match="format of file"):
        source_of(tmp_path / "x.bin").schema()
    with pytest.raises(SourceError, match="not a regular file"):
        source_of("/dev/null").schema()


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_text("a\n1\n")

    def refuse(*_args, **_more):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(SourceError) as caught:
        source_of(path).schema()
    assert caught.value.category is Category.AUTHENTICATION
    assert caught.value.message == SourceError.no_permission(str(path)).message


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("delimiter", "ab"),
        ("quote", "'''"),
        ("encoding", "klingon"),
        ("format", "xls"),
        ("watch.mode", "sometimes"),
        ("watch.debounce", "soon"),
        ("header", "perhaps"),
        ("skip.lines", "-1"),
        ("delimitr", ";"),
    ],
)
def test_wrong_options_are_refused_at_once(tmp_path, option, value):
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(OptionError, match=option):
        FileSource(SourceSpec("file", str(tmp_path / "x.csv"), {option: value})).schema()
