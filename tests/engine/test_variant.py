"""VARIANT columns: the values they hold, wherever they go, and what Spark refuses to do with them."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from pyspark.sql.types import VariantVal

import velostream
from velostream.errors import UnsupportedError, VelostreamError
from velostream.testing.table_cases import content

VALUES = {
    1: {"a": {"b": Decimal("1.50"), "c": [1, 2, {"x": "y"}]}},
    2: None,
    3: [1, None, "x"],
    4: "text",
}


@pytest.fixture
def connection(spark_kept):
    with velostream.connect() as opened:
        opened.execute("CREATE TABLE docs (id INT PRIMARY KEY, v VARIANT)")
        opened.table("docs").insert([{"id": key, "v": value} for key, value in VALUES.items()])
        yield opened


def test_values_are_given_as_python_has_them(connection):
    table = connection.table("docs")
    assert dict(connection.execute("SELECT id, v FROM docs").fetchall()) == VALUES
    assert dict(connection.execute("SELECT id, v FROM docs WHERE rand() >= 0").fetchall()) == VALUES  # through Spark
    assert [table.get(key)["v"] for key in VALUES] == list(VALUES.values()) == table.column_values("v")
    assert [row.as_dict() for row in table.filter("id > 0")] == [{"id": key, "v": v} for key, v in VALUES.items()]
    assert [row["v"] for row in table.query_batch(10, 0).rows] == list(VALUES.values())
    assert [row["v"] for row in table.stream_all()] == list(VALUES.values())
    assert table.df()["v"].tolist() == list(VALUES.values())
    assert table.scalar("v", "id = 3") == VALUES[3]
    assert [row.v for row in table.spark().collect()][3].toPython() == "text"


def test_values_are_changed_by_every_statement(connection):
    connection.execute("""INSERT INTO docs VALUES (5, parse_json('{"n": 1}')), (6, parse_json(?))""", ["[2]"])
    connection.execute("""UPDATE docs SET v = parse_json('{"new": true}') WHERE id = 3""")
    connection.execute("UPSERT INTO docs VALUES (4, NULL)")
    connection.execute("INSERT INTO docs SELECT id + 10, v FROM docs WHERE id IN (1, 5)")
    table = connection.table("docs")
    table.update("id = 6", {"v": {"z": [1]}})
    table.upsert([{"id": 7, "v": table.spark().collect()[0].v}])
    values = dict(connection.execute("SELECT id, v FROM docs").fetchall())
    assert values == {
        1: VALUES[1],
        2: None,
        3: {"new": True},
        4: None,
        5: {"n": 1},
        6: {"z": [1]},
        7: VALUES[1],
        11: VALUES[1],
        15: {"n": 1},
    }
    with pytest.raises(VelostreamError, match='"v" of table "docs" is VARIANT and can\'t hold STRING'):
        connection.execute("INSERT INTO docs VALUES (8, 'text')")


def test_paths_give_the_same_as_over_other_types(connection):  # B27
    inside = "STRUCT<p: INT, q: ARRAY<INT>>"
    connection.execute(f"""
        CREATE TABLE same (id INT PRIMARY KEY, fixed STRUCT<x: {inside}, y: {inside}>, named MAP<STRING, {inside}>,
            v VARIANT, document STRING, deep STRUCT<v: VARIANT>, many ARRAY<VARIANT>)
    """)
    value = {"x": {"p": 1, "q": [1, 2]}, "y": {"p": 30, "q": []}}
    row = {"id": 1, "fixed": value, "named": value, "v": value, "document": json.dumps(value), "deep": {"v": value}}
    connection.table("same").insert([{**row, "many": [value, None, 5]}, {"id": 2}])
    heads = ("fixed", "named", "v", "document", "deep.v")
    for path in ("*.p", "**.p", "x.p", "*.q[*]", "x.q[0]", "*.q[0:1]", "nothing.*"):
        asked = ", ".join(f"SUM({head}.{path}) AS s{number}" for number, head in enumerate(heads))
        sums = connection.execute(f"SELECT {asked} FROM same").fetchone()
        assert len(set(sums)) == 1, (path, sums)
        found = [connection.table("same").wildcard_values(f"{head}.{path}") for head in heads]
        assert found == [found[0]] * len(heads), path
    assert connection.execute(
        "SELECT many[*].x.p, many[0]:y.p::INT, COUNT(many[*]) FROM same WHERE id = 1"
    ).fetchone() == (
        ["1"],
        30,
        2,
    )
    assert connection.execute("SELECT v:x.p::INT, v.y.p, v.x FROM same WHERE id = 1").fetchone() == (
        1,
        "30",
        '{"p":1,"q":[1,2]}',
    )
    assert connection.execute("SELECT id FROM same WHERE ANY(deep.v.*.p) > 29").fetchall() == [(1,)]
    # A path that begins with a star looks into columns of text, and so gives text.
    assert connection.execute("SELECT COUNT(**.p) FROM same").fetchone() == (2 * len(heads) + 2,)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM docs WHERE v = v",
        "SELECT * FROM docs WHERE v > parse_json('1')",
        "SELECT DISTINCT v FROM docs",
        "SELECT v, COUNT(*) FROM docs GROUP BY v",
        "SELECT * FROM docs ORDER BY v",
        "SELECT MIN(v) FROM docs",
        "SELECT COUNT(DISTINCT v) FROM docs",
        "SELECT a.id FROM docs a JOIN docs b ON a.v = b.v",
        "SELECT id FROM docs WHERE v IN (SELECT v FROM docs)",
        "SELECT v FROM docs UNION SELECT v FROM docs",
        "CREATE TABLE grouped AS SELECT v, COUNT(*) AS n FROM docs GROUP BY v",
        "CREATE TABLE joined AS SELECT s.id FROM docs s JOIN docs t ON s.v = t.v",
        "CREATE TABLE keyed (v VARIANT PRIMARY KEY)",
        "CREATE TABLE keyed AS SELECT v PRIMARY KEY FROM docs",
        "CREATE INDEX by_v ON docs (v)",
    ],
)
def test_values_are_not_compared(connection, query):
    with pytest.raises(VelostreamError) as told:
        connection.execute(query).fetchall()
    assert "VARIANT" in str(told.value).upper()


def test_stores_and_formats_that_have_no_such_type_refuse_it(connection, tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    for query in (
        f"CREATE TABLE kept (id INT PRIMARY KEY, v VARIANT) WITH ('extension' = 'sqlite', 'url' = '{url}')",
        f"CREATE TABLE kept AS SELECT id, v FROM docs WITH ('extension' = 'sqlite', 'url' = '{url}', 'key' = 'id')",
        f"INSERT INTO 'file://{tmp_path}/avro/?format=avro' SELECT * FROM docs",
    ):
        with pytest.raises(UnsupportedError, match="VARIANT"):
            connection.execute(query)
    assert connection.execute("SELECT COUNT(v) FROM docs").fetchone() == (3,)


def test_files_hold_what_the_values_are(connection, tmp_path):
    for name in ("out.jsonl", "out.csv", "out.parquet"):
        connection.execute(f"INSERT INTO file://{tmp_path}/{name}/ SELECT * FROM docs")
    (lines,) = (tmp_path / "out.jsonl").glob("*.jsonl")
    assert lines.read_text().splitlines()[2:] == ['{"id":3,"v":[1,null,"x"]}', '{"id":4,"v":"text"}']
    for name in ("out.jsonl", "out.parquet"):
        asked = f"SELECT * FROM file('{tmp_path}/{name}/*') WITH ('record.schema' = 'id INT, v VARIANT')"
        assert dict(connection.execute(asked).fetchall()) == VALUES, name


def test_functions_take_and_give_them(connection):
    connection.create_function(
        "inner_b", lambda v: v["a"]["b"] if isinstance(v, dict) else None, returns="DECIMAL(5,2)"
    )
    connection.create_function("made", lambda key: {"key": [key]}, returns="VARIANT")
    connection.execute("CREATE TABLE computed AS SELECT id, inner_b(v) AS b, made(id) AS m FROM docs WHERE id <= 2")
    connection.drain("computed", timeout=60)
    assert connection.execute("SELECT * FROM computed ORDER BY id").fetchall() == [
        (1, Decimal("1.50"), {"key": [1]}),
        (2, None, {"key": [2]}),
    ]


def test_registered_data_keeps_them(connection):
    connection.register("arrows", connection.table("docs").arrow())
    connection.register("frames", connection.table("docs").spark())
    for name in ("arrows", "frames"):
        assert dict(connection.execute(f"SELECT id, v FROM {name}").fetchall()) == VALUES
        assert connection.execute(f"DESCRIBE {name}").fetchall()[1][:2] == ("v", "VARIANT")


@pytest.mark.parametrize("way", ["fast", "general"])
def test_streams_find_them_and_windows_of_views_keep_them(connection, way):
    connection.execute(f"SET velostream.lookup = {way}")
    feed = connection.memory("asked")
    feed.append([{"id": 1, "j": '{"n": 1}'}, {"id": 9, "j": None}])
    connection.execute("""
        CREATE TABLE found AS
        SELECT s.id, parse_json(s.j) AS own, d.v, (SELECT v FROM docs WHERE docs.id = s.id) AS asked
        FROM memory://asked s LEFT JOIN docs d ON d.id = s.id
    """)
    connection.drain("found", timeout=60)
    connection.execute("CREATE TABLE over AS SELECT f.id, f.v, f.own:n::INT AS n FROM found f")
    connection.drain("over", timeout=60)
    assert connection.execute("SELECT * FROM found ORDER BY id").fetchall() == [
        (1, {"n": 1}, VALUES[1], VALUES[1]),
        (9, None, None, None),
    ]
    assert connection.execute("SELECT * FROM over ORDER BY id").fetchall() == [(1, VALUES[1], 1), (9, None, None)]


def test_they_survive_and_are_told_to_subscribers(spark_kept, tmp_path):
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute("CREATE TABLE docs (id INT PRIMARY KEY, v VARIANT)")
        connection.table("docs").insert([{"id": key, "v": value} for key, value in VALUES.items()])
        told = next(iter(connection.subscribe("docs", since=0))).arrow
        assert content(told.select(["id", "v"])) == content(connection.table("docs").arrow())
    with velostream.connect(tmp_path / "state") as connection:
        assert dict(connection.execute("SELECT id, v FROM docs").fetchall()) == VALUES
        assert isinstance(connection.table("docs").spark().collect()[0].v, VariantVal)
