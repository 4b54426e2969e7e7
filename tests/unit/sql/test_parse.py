"""Text to statements: what the dataclasses hold, and where things stand."""

from __future__ import annotations

import pytest
from sqlglot import exp

from velostream.errors import ParseError
from velostream.sql import parse_expression, parse_script, parse_statement, place_of
from velostream.sql.statements import (
    Create,
    Emit,
    Explain,
    Insert,
    Name,
    OptionValue,
    Place,
    Query,
    Select,
    Show,
    SourceRef,
    Update,
    Window,
    WindowKind,
)


def query(text: str) -> Query:
    statement = parse_statement(text)
    assert isinstance(statement, Select)
    return statement.query


def spark(text: str) -> str:
    return query(text).tree.sql(dialect="spark")


def test_a_script_is_split_where_statements_end_and_nowhere_else():
    script = """
    SELECT ';' AS ";", `;` -- ; no end
    FROM file:///d/*.csv?delimiter=;&x=";" /* ; /* ; */ */ ;;
    ; SHOW TABLES;
    """
    first, second = parse_script(script)
    assert isinstance(first, Select)
    assert first.query.sources[0].uri == 'file:///d/*.csv?delimiter=;&x=";"'
    assert second == Show(second.what)
    assert (first.place, second.place) == (Place(2, 5), Place(4, 7))
    assert first.text == second.text == script


@pytest.mark.parametrize("text", ["", "   \n", ";", ";;;", "-- only a comment", "/* so is this */;"])
def test_a_text_without_statements_gives_none(text):
    assert parse_script(text) == ()
    with pytest.raises(ParseError, match="no statement"):
        parse_statement(text)


def test_places_count_from_the_beginning_of_the_script():
    _, statement = parse_script(
        "SELECT 1;\r\n\r\nCREATE TABLE t AS\n\tSELECT o.id, price\n  FROM memory://orders o\n JOIN prices ON TRUE"
    )
    assert isinstance(statement, Create)
    assert statement.query is not None
    assert statement.place == Place(3, 1)
    assert statement.name.place == Place(3, 14)
    tree = statement.query.tree
    places = {node.sql(): (node.meta["line"], node.meta["col"]) for node in tree.find_all(exp.Column, exp.Table)}
    assert places == {"o.id": (4, 9), "price": (4, 15), "source_0 AS o": (5, 8), "prices": (6, 7)}
    assert statement.query.sources[0].place == Place(5, 8)


def test_every_column_and_table_knows_its_place():
    text = (
        "WITH c AS (SELECT a.b.c, x[0].y FROM s.t) SELECT f(`q`), CASE WHEN z THEN 1 END FROM c, LATERAL (SELECT w) l"
    )
    for node in query(text).tree.find_all(exp.Column, exp.Table):
        word = node.parts[0].name if node.parts else node.name
        start = node.meta["col"] - 1
        assert text[start:].lstrip("`").startswith(word)


def test_the_place_of_a_node_without_one_is_that_of_its_first_part():
    tree = query("SELECT 1,\n  upper(a || b) AS c FROM t").tree
    assert place_of(tree.expressions[1]) == Place(2, 3)
    assert place_of(tree.find(exp.DPipe)) == Place(2, 9)
    assert place_of(exp.Null()) == Place()


def test_errors_carry_the_whole_script_and_point_into_it():
    with pytest.raises(ParseError) as caught:
        parse_script("SELECT 1;\nSELECT *\n  FROM a\n  JOIN b;\nSELECT 2")
    error = caught.value
    assert (error.line, error.column) == (4, 3)
    assert error.caret() == "  JOIN b;\n  ^^^^"
    assert error.hint is not None


def test_options_have_lower_case_names_and_text_values():
    statement = parse_statement(
        "SELECT a FROM t WHERE b WITH ('Auto.Offset.Reset' = \"Latest\", watch = TRUE, n = 1_000)"
    )
    assert isinstance(statement, Select)
    assert statement.options == (
        OptionValue("auto.offset.reset", "Latest"),
        OptionValue("watch", "TRUE"),
        OptionValue("n", "1_000"),
    )
    assert [option.place.column for option in statement.options] == [31, 63, 77]


def test_options_after_a_relation_belong_to_it_and_after_the_statement_to_all():
    statement = parse_statement("SELECT * FROM memory://a WITH (x = 1) JOIN t WITH (y = 2) ON a.i = t.i WITH (z = 3)")
    assert isinstance(statement, Select)
    assert statement.query.sources[0].options == (OptionValue("x", "1"),)
    assert statement.query.relation_options == {"t": (OptionValue("y", "2"),)}
    assert statement.options == (OptionValue("z", "3"),)


def test_options_that_end_a_statement_with_one_relation_are_the_statements():
    statement = parse_statement("CREATE TABLE t AS SELECT * FROM memory://a WITH ('key' = 'id')")
    assert isinstance(statement, Create)
    assert statement.options == (OptionValue("key", "id"),)
    assert statement.query is not None
    assert statement.query.sources[0].options == ()


@pytest.mark.parametrize(
    ("text", "kind", "uri"),
    [
        ("memory://orders", "memory", "memory://orders"),
        ("kafka_topic('orders')", "kafka", "kafka://orders"),
        ("KAFKA://h:9092/t", "kafka", "KAFKA://h:9092/t"),
        ("postgresql://h/db", "postgres", "postgresql://h/db"),
        ("postgresql+psycopg://h/db", "postgres", "postgresql+psycopg://h/db"),
        ("https://h/p", "http", "https://h/p"),
        ("'memory://with space'", "memory", "memory://with space"),
        ("./a/b.csv", "file", "file://./a/b.csv"),
        ("/a/*.csv", "file", "file:///a/*.csv"),
        ("a/b.parquet", "file", "file://a/b.parquet"),
        ("'b.csv'", "file", "file://b.csv"),
        ("file('/d/x.csv')", "file", "file:///d/x.csv"),
        ("sql('sqlite:///x.db')", "sql", "sqlite:///x.db"),
        ("rate()", "rate", "rate://"),
    ],
)
def test_sources_have_one_form(text, kind, uri):
    assert query(f"SELECT * FROM {text}").sources == (SourceRef("source_0", kind, uri),)
    assert query(f"SELECT * FROM t WHERE x IN (SELECT y FROM {text})").sources == (SourceRef("source_0", kind, uri),)
    target = parse_statement(f"INSERT INTO {text} SELECT 1")
    assert isinstance(target, Insert)
    assert target.target == SourceRef("target", kind, uri)


def test_a_source_without_an_alias_answers_to_the_last_word_of_its_address():
    assert spark("SELECT orders.id FROM memory://orders") == "SELECT orders.id FROM source_0 AS orders"
    assert spark("SELECT * FROM kafka://h/my-topic") == "SELECT * FROM source_0 AS `my-topic`"
    assert spark("SELECT * FROM memory://order") == "SELECT * FROM source_0 AS `order`"
    assert spark("SELECT * FROM file:///d/*.csv") == "SELECT * FROM source_0"
    assert spark("SELECT * FROM memory://orders o") == "SELECT * FROM source_0 AS o"


def test_sources_are_numbered_in_the_order_of_the_text_and_never_like_a_table():
    found = query(
        "SELECT (SELECT MAX(x) FROM memory://a) FROM source_0, memory://b WHERE y IN (SELECT z FROM memory://c)"
    )
    assert [(source.relation, source.uri) for source in found.sources] == [
        ("source_1", "memory://a"),
        ("source_2", "memory://b"),
        ("source_3", "memory://c"),
    ]


def test_sources_in_expressions_of_a_statement_are_kept():
    statement = parse_statement(
        "UPDATE t SET a = (SELECT 1 FROM memory://x) FROM memory://y WHERE b IN (SELECT 1 FROM memory://z)"
    )
    assert isinstance(statement, Update)
    assert statement.source is not None
    assert [source.uri for source in statement.source.sources] == ["memory://y"]
    assert [(source.relation, source.uri) for source in statement.sources] == [
        ("source_0", "memory://x"),
        ("source_2", "memory://z"),
    ]


def test_key_items_window_and_emit_leave_the_tree():
    text = "SELECT a PRIMARY KEY, COUNT(*) AS n PRIMARY KEY FROM s GROUP BY a WINDOW SLIDING(ts, 10m, 1m) EMIT FINAL"
    found = query(text)
    assert found.key_items == ("a", "n")
    assert found.window == Window(WindowKind.SLIDING, "ts", "10m", "1m")
    assert found.emit is Emit.FINAL
    assert found.tree == query("SELECT a, COUNT(*) AS n FROM s GROUP BY a").tree


def test_limit_may_follow_emit():
    assert query("SELECT a FROM s EMIT CHANGES LIMIT 5").tree == query("SELECT a FROM s LIMIT 5").tree


def test_within_is_kept_on_the_join():
    for text in (
        "a JOIN b WITHIN 10m ON a.x = b.x",
        "a JOIN b ON a.x = b.x WITHIN 10m",
        "a JOIN b WITHIN '10m' ON a.x = b.x",
    ):
        join = query(f"SELECT * FROM {text}").tree.args["joins"][0]
        assert join.args["within"].name == "10m"


@pytest.mark.parametrize("text", ["SELECT a INTO t FROM s", "SELECT a FROM s INTO t", "SELECT a FROM s INSERT INTO t"])
def test_a_select_with_a_target_is_an_insert(text):
    statement = parse_statement(text)
    assert statement == parse_statement("INSERT INTO t SELECT a FROM s")
    assert isinstance(statement, Insert)
    assert statement.target == Name("t")


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("positions.*.shares", "positions.*.shares"),
        ("a.**.b", "a.**.b"),
        ("**.b", "**.b"),
        ("t.orders[*].amount", "t.orders[*].amount"),
        ("x[1:3]", "x[1:3]"),
        ("x[-2:]", "x[-2:]"),
        ("x[price > 100].y", "x[price > 100].y"),
        ('a."odd.name".*.b', 'a."odd.name".*.b'),
    ],
)
def test_a_wildcard_path_is_one_call_with_its_text(path, written):
    for text in (f"SELECT {path} FROM t", f"SELECT SUM({path}) FROM t", f"SELECT 1 FROM t WHERE 2 * {path} > 1"):
        call = query(text).tree.find(exp.Anonymous)
        assert call.name == "wildcard_path"
        assert call.expressions == [exp.Literal.string(written)]
        assert place_of(call) == Place(1, text.index(path) + 1)


@pytest.mark.parametrize("path", ["t.*", "a.b.c", "x[0].y", "x[-1]", "m['k']", "a * b", "a.b * c.d", "x[:p]", "x[i]"])
def test_what_sql_can_read_itself_is_no_wildcard_path(path):
    assert query(f"SELECT {path} FROM t").tree.find(exp.Anonymous) is None


def test_double_quotes_are_names_but_strings_in_options():
    statement = parse_statement('SELECT "a" FROM "t" WHERE "b" = \'b\' WITH ("x" = "y")')
    assert isinstance(statement, Select)
    assert statement.query.tree.sql(dialect="spark") == "SELECT `a` FROM `t` WHERE `b` = 'b'"
    assert statement.options == (OptionValue("x", "y"),)


def test_now_is_current_timestamp():
    assert (
        query("SELECT now()").tree == query("SELECT current_timestamp()").tree == query("SELECT CURRENT_TIMESTAMP").tree
    )


def test_explain_holds_the_statement_with_its_own_place():
    statement = parse_statement("EXPLAIN EXTENDED\nDELETE FROM t")
    assert isinstance(statement, Explain)
    assert statement.extended
    assert statement.statement.kind == "DELETE"
    assert statement.statement.place == Place(2, 1)


def test_expressions_by_themselves():
    assert parse_expression("a > 1 AND b IN ('x', 'y')").sql(dialect="spark") == "a > 1 AND b IN ('x', 'y')"
    assert parse_expression("SUM(amount)") == exp.Sum(this=exp.column("amount"))
    assert parse_expression("x = ? OR y = :name").find(exp.Placeholder) is not None


@pytest.mark.parametrize(
    "text", ["", "a >", "a > 1; b", "a > 1 garbage", "SELECT", "a IN (SELECT b FROM memory://x)", "a AS b"]
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(ParseError):
        parse_expression(text)


@pytest.mark.parametrize("depth", [100, 10_000])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT {o}1{c}",
        "SELECT * FROM {o}t{c}",
        "{o}SELECT 1{c}",
        "SELECT a{o}0{c}",
        "INSERT INTO t VALUES {o}1{c}",
        "CREATE TABLE t (a {o}INT{c})",
    ],
)
def test_deep_nesting_is_refused_not_suffered(text, depth):
    opening, closing = ("[", "]") if "a{o}" in text else ("(", ")")
    with pytest.raises(ParseError, match="nested"):
        parse_statement(text.format(o=opening * depth, c=closing * depth))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "NOT " * 10_000 + "a",
        "SELECT " + "- " * 10_000 + "a",
        "SELECT a" + "[1]" * 10_000,
        "SELECT " + ".".join("a" * 10_000),
        "SELECT a" + "::int" * 10_000,
        "SELECT " + "CASE WHEN " * 1_000 + "a" + " THEN 1 END" * 1_000,
        "SELECT a" + " IN (1)" * 10_000,
    ],
)
def test_chains_without_brackets_are_bounded_too(text):
    with pytest.raises(ParseError, match="nested"):
        parse_statement(text)


def test_what_is_accepted_at_the_limit_can_be_written_again():
    for text in (
        "SELECT " + "(" * 39 + "1" + ")" * 39,
        "SELECT " + "+".join("a" * 2_000),
        "SELECT " + " AND ".join("a" * 2_000),
    ):
        assert query(query(text).tree.sql(dialect="spark")) == query(text)
