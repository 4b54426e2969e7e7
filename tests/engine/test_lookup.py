"""The lookup stage gives what Spark's own join gives, for generated data, while the table changes between batches."""

import math
import random
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.engine.lookup import FetchedTable, ReplicatedTable, run_stages
from velostream.engine.relations import arrow_result, run_sql, spark_schema
from velostream.errors import QueryError, SqlError
from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.sql.plan import KeyPair, Lookup, Stages
from velostream.tables.memory import CommitSequence

KEY_VALUES = {
    "BOOLEAN": [True, False],
    "TINYINT": [-1, 0, 1],
    "INT": [-(2**31), 0, 7],
    "BIGINT": [-(2**63), 0, 7],
    "FLOAT": [0.0, -0.0, 1.5, math.nan, math.inf],
    "DOUBLE": [0.0, -0.0, 1.5, math.nan, -math.inf],
    "DECIMAL(38,4)": [Decimal("1.5"), Decimal("-1.5"), Decimal("123456789012345678901234567890.1234")],
    "STRING": ["", "a", "ä", "x" * 300, "x" * 299 + "y", "12345678", "123456789"],
    "BINARY": [b"", b"\0", b"\0\0", b"abc"],
    "DATE": [date(1500, 1, 1), date(2024, 2, 29)],
    "TIMESTAMP": [datetime(1500, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    "TIMESTAMP_NTZ": [datetime.fromisoformat("1969-12-31T23:59:59"), datetime.fromisoformat("2024-01-01")],
    "ARRAY<INT>": [[], [1], [1, None], [None, 1]],
    "STRUCT<a: INT, b: STRING>": [{"a": 1, "b": None}, {"a": 1, "b": "x"}, {"a": None, "b": None}],
}
COLUMNS = [(f"k{number}", sql_type) for number, sql_type in enumerate(KEY_VALUES)]
KEYED = Schema.of(("id", "BIGINT"), *COLUMNS, ("note", "STRING"), key=["id"])
BAG = Schema.of(*COLUMNS, ("note", "STRING"))
STREAM = Schema.of(("n", "BIGINT"), *((f"s{name}", sql_type) for name, sql_type in COLUMNS))


def random_rows(choose, schema, count, *, first=0):
    """Rows with few distinct keys and some NULLs; numbers in the columns that are no keys."""
    rows = []
    for number in range(first, first + count):
        row = {}
        for column in schema.columns:
            values = KEY_VALUES[column.sql_type] if column.name.startswith(("k", "s")) else [number]
            row[column.name] = choose.choice([*values, None]) if len(values) > 1 else values[0]
        if "note" in row:
            row["note"] = f"note {number}"
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=schema.arrow)


def one_lookup(*pairs, columns, outer, prefix="t_"):
    return Lookup("t", outer, tuple(KeyPair(*pair) for pair in pairs), tuple(columns), prefix, "index")


def looked_up(session, publisher, batch, table, lookup, sql, *, at):
    tables = {lookup.prefix: replicated(publisher, table, lookup, at=at)}
    return arrow_result(run_stages(session, batch, Stages((lookup,), sql), tables=tables))


def replicated(publisher, table, lookup, *, at):
    columns = tuple(pair.column for pair in lookup.keys)
    return ReplicatedTable(table.schema, publisher.publish(table, columns=columns, at=at))


def fetched(publisher, table, lookup, *, at):
    """As if the table were in a store."""
    columns = tuple(pair.column for pair in lookup.keys)
    return FetchedTable(table.schema, columns, table.snapshot(at), publisher)


def joined_by_spark(session, relations, batch, table, condition, columns, *, outer, at):
    frames = {"s": batch, "t": relations.frame(session, "t", table.snapshot(at))}
    join = "LEFT JOIN" if outer else "JOIN"
    return arrow_result(run_sql(session, f"SELECT s.n, {columns} FROM s {join} t ON {condition}", frames))


def as_counts(rows):
    return Counter(repr(row) for row in rows.rename_columns([str(i) for i in range(rows.num_columns)]).to_pylist())


@pytest.mark.parametrize("schema", [KEYED, BAG], ids=["keyed", "bag"])
def test_lookups_equal_joins_while_the_table_changes(session, publisher, relations, schema):  # B28 B33
    choose = random.Random(f"lookup {schema.key}")
    sequence = CommitSequence()
    table = sequence.create_table("t", name="t", schema=schema)
    batch = session.createDataFrame(random_rows(choose, STREAM, 120), spark_schema(STREAM)).repartition(2).persist()
    table.commit(Write(Mode.APPEND, random_rows(choose, schema, 60)))
    bases = set()
    for turn, (name, _) in enumerate(COLUMNS if schema.key else COLUMNS[::2]):
        outer = turn % 2 == 0
        pairs = [(f"s{name}", name)]
        if turn % 3 == 0:
            pairs.append((f"s{COLUMNS[1][0]}", COLUMNS[1][0]))
        at = sequence.sequence
        condition = " AND ".join(f"s.{driving} = t.{column}" for driving, column in pairs)
        expected = joined_by_spark(session, relations, batch, table, condition, "t.note, t.k4", outer=outer, at=at)
        lookup = one_lookup(*pairs, columns=("note", "k4"), outer=outer)
        found = looked_up(session, publisher, batch, table, lookup, "SELECT n, t_note, t_k4 FROM stage", at=at)
        assert as_counts(found) == as_counts(expected), (name, outer)
        assert expected.num_rows > (120 if outer else 0)
        bases.add(publisher.publish(table, columns=(name,), at=at).folder)
        _change(choose, table, turn)
    assert len(bases) == 1, "changes were to be published as changes"


def _change(choose, table, turn):
    rows = table.snapshot().scan()
    table.commit(Write(Mode.APPEND, random_rows(choose, table.schema, 4, first=100 + 10 * turn)))
    gone = rows.take(sorted(choose.sample(range(rows.num_rows), 3)))
    if table.schema.key:
        table.commit(Write(Mode.DELETE, gone.select(["id"])))
        renewed = rows.filter(pa.compute.invert(pa.compute.is_in(rows["id"], gone["id"]))).slice(0, 5)
        note = pa.array([f"changed {turn}"] * renewed.num_rows)
        table.commit(Write(Mode.UPSERT, renewed.set_column(renewed.column_names.index("note"), "note", note)))
    else:
        table.commit(Write(Mode.DELETE, gone))


@pytest.fixture
def desk():
    """Three small tables: users, their cities, limits."""
    sequence = CommitSequence()
    users = sequence.create_table(
        "users", name="users", schema=Schema.of(("id", "BIGINT"), ("city", "STRING"), key=["id"])
    )
    cities = sequence.create_table(
        "cities", name="cities", schema=Schema.of(("name", "STRING"), ("country", "STRING"), key=["name"])
    )
    limits = sequence.create_table("limits", name="limits", schema=Schema.of(("user", "BIGINT"), ("most", "INT")))
    users.commit(Write(Mode.APPEND, pa.table({"id": [1, 2, 3], "city": ["oslo", "rome", None]})))
    cities.commit(Write(Mode.APPEND, pa.table({"name": ["oslo", "rome"], "country": ["no", "it"]})))
    limits.commit(Write(Mode.APPEND, pa.table({"user": [1, 1, 2], "most": pa.array([10, 20, 30], pa.int32())})))
    return sequence, {"u_": users, "c_": cities, "l_": limits}


@pytest.fixture(params=[replicated, fetched], ids=["replicated", "fetched"])
def run_desk(request, session, publisher, desk):
    """Lookups in the desk's tables, all of them ours or all of them in a store."""

    def run(batch, lookups, sql):
        sequence, tables = desk
        looked_up_in = {
            lookup.prefix: request.param(publisher, tables[lookup.prefix], lookup, at=sequence.sequence)
            for lookup in lookups
        }
        frame = run_stages(session, batch, Stages(tuple(lookups), sql), tables=looked_up_in)
        return [tuple(row.values()) for row in arrow_result(frame).to_pylist()]

    return run


def batch_of(session, **columns):
    return session.createDataFrame(pa.table(columns)).coalesce(1)


def test_several_lookups_follow_one_another(session, run_desk):  # B29
    users = one_lookup(("user_id", "id"), columns=["city"], outer=True, prefix="u_")
    limits = one_lookup(("user_id", "user"), columns=["most"], outer=False, prefix="l_")
    # The key of this one is what the first one found, so it needs a pass of its own.
    cities = one_lookup(("lower(u_city)", "name"), columns=["country"], outer=True, prefix="c_")
    batch = batch_of(session, n=[0, 1, 2, 3], user_id=[2, 1, 3, 9])
    sql = "SELECT n, u_city, l_most, c_country FROM stage"
    assert run_desk(batch, [users, limits, cities], sql) == [
        (0, "rome", 30, "it"),
        (1, "oslo", 10, "no"),
        (1, "oslo", 20, "no"),
    ]
    limits = one_lookup(("user_id", "user"), columns=["most"], outer=True, prefix="l_")
    assert run_desk(batch, [users, limits, cities], sql) == [
        (0, "rome", 30, "it"),
        (1, "oslo", 10, "no"),
        (1, "oslo", 20, "no"),
        (2, None, None, None),
        (3, None, None, None),
    ]


def test_a_lookup_that_brings_no_columns_still_joins(session, run_desk):
    limits = one_lookup(("user_id", "user"), columns=[], outer=False, prefix="l_")
    batch = batch_of(session, n=[0, 1], user_id=[9, 1])
    assert run_desk(batch, [limits], "SELECT n FROM stage") == [(1,), (1,)]


def test_the_order_of_rows_is_kept(session, run_desk):
    limits = one_lookup(("user_id", "user"), columns=["most"], outer=True, prefix="l_")
    count = 30_000
    batch = batch_of(session, n=list(range(count)), user_id=[number % 5 for number in range(count)])
    rows = run_desk(batch, [limits], "SELECT n, l_most FROM stage")
    assert rows == [
        (number, most) for number in range(count) for most in {1: (10, 20), 2: (30,)}.get(number % 5, (None,))
    ]


def test_empty_batches_and_empty_tables(session, publisher):
    sequence = CommitSequence()
    table = sequence.create_table("t", name="t", schema=KEYED)
    for outer, rows, count in ((True, 3, 3), (False, 3, 0), (True, 0, 0), (False, 0, 0)):
        batch = session.createDataFrame(random_rows(random.Random(1), STREAM, rows), spark_schema(STREAM))
        lookup = one_lookup(("n", "id"), columns=["note"], outer=outer)
        found = looked_up(session, publisher, batch, table, lookup, "SELECT n, t_note FROM stage", at=sequence.sequence)
        assert (found.num_rows, found.schema.names) == (count, ["n", "t_note"])


def test_every_type_comes_through_unharmed(session, publisher):
    types = [
        *COLUMNS,
        ("nested", "MAP<STRING, ARRAY<STRUCT<`odd name`: DECIMAL(10,2), at: TIMESTAMP>>>"),
        ("odd.na me", "STRING"),
        ("große", "INTERVAL"),
    ]
    schema = Schema.of(("id", "BIGINT"), *types, key=["id"])
    values = random_rows(random.Random(2), Schema.of(("id", "BIGINT"), *COLUMNS), 20).to_pylist()
    for row in values:
        row["nested"] = [("a", [{"odd name": Decimal("1.50"), "at": datetime(2024, 1, 1, tzinfo=UTC)}, None])]
        row["odd.na me"] = "é"
    rows = pa.Table.from_pylist(values, schema=schema.arrow)
    sequence = CommitSequence()
    table = sequence.create_table("t", name="t", schema=schema)
    table.commit(Write(Mode.APPEND, rows))
    batch = session.createDataFrame(rows, spark_schema(schema))
    lookup = one_lookup(("id + 0", "id"), columns=schema.names, outer=False)
    found = looked_up(session, publisher, batch, table, lookup, "SELECT * FROM stage", at=sequence.sequence)
    found = found.sort_by("id")
    mine, theirs = found.select(schema.names), found.select([f"t_{name}" for name in schema.names])
    assert mine.schema.equals(schema.arrow)
    for part in (mine, theirs.rename_columns(list(schema.names))):
        assert repr(part.to_pylist()) == repr(rows.to_pylist())


def test_only_what_the_plan_mentions_is_carried_through(session, run_desk):
    limits = one_lookup(("user_id", "user"), columns=["most"], outer=False, prefix="l_")
    batch = batch_of(session, n=[0], user_id=[2], price=[5], ballast=["x" * 1000])
    rows = run_desk(batch, [limits], "SELECT n, price * 2 FROM stage WHERE l_most > 1")
    assert rows == [(0, 10)]


def test_errors_of_the_batch_are_ours(session, run_desk):
    limits = one_lookup(("CAST(word AS BIGINT)", "user"), columns=["most"], outer=False, prefix="l_")
    batch = batch_of(session, n=[0], word=["many"])
    with pytest.raises(QueryError) as failed:
        run_desk(batch, [limits], "SELECT n FROM stage")
    assert failed.value.category == "data"
    assert "'many'" in failed.value.message
    limits = one_lookup(("wort", "user"), columns=["most"], outer=False, prefix="l_")
    with pytest.raises(SqlError, match='column "wort" does not exist'):
        run_desk(batch, [limits], "SELECT n FROM stage")
