"""Rewrites before Spark sees the query; the forms were checked against Spark cell by cell (B34)."""

from __future__ import annotations

import itertools
import operator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from velostream.errors import NotExecutableError
from velostream.sql.parse import parse_statement
from velostream.sql.rules import RULES, apply_rules
from velostream.sql.rules.name_lone_texts import name_lone_texts
from velostream.sql.rules.rename_aggregates import rename_aggregates
from velostream.sql.rules.rewrite_any_all import rewrite_any_all
from velostream.sql.rules.rewrite_in_as_value import rewrite_in_as_value
from velostream.sql.rules.sort_texts_ourselves import sort_texts_ourselves

MEMBER = "(SELECT y FROM s) AS velostream_member(velostream_value)"
VALUE = "velostream_member.velostream_value"


def some(condition: str) -> str:
    return f"EXISTS(SELECT 1 FROM {MEMBER} WHERE {condition})"


def truth(value: str, condition: str) -> str:
    return (
        f"CASE WHEN {some(condition)} THEN TRUE "
        f"WHEN ({value} IS NULL AND EXISTS(SELECT 1 FROM {MEMBER})) OR {some(f'{VALUE} IS NULL')} "
        "THEN CAST(NULL AS BOOLEAN) ELSE FALSE END"
    )


def rewritten(text: str, rule=apply_rules) -> str:
    return rule(parse_statement(text).query.tree.copy()).sql(dialect="spark")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("SELECT a FROM t WHERE x = ANY (SELECT y FROM s)", "SELECT a FROM t WHERE x IN (SELECT y FROM s)"),
        ("SELECT a FROM t WHERE x <> ALL (SELECT y FROM s)", "SELECT a FROM t WHERE NOT x IN (SELECT y FROM s)"),
        ("SELECT a FROM t WHERE x > SOME (SELECT y FROM s)", f"SELECT a FROM t WHERE {some(f'x > {VALUE}')}"),
        (
            "SELECT a FROM t WHERE x + 1 >= ANY (SELECT y FROM s) OR b",
            f"SELECT a FROM t WHERE {some(f'(x + 1) >= {VALUE}')} OR b",
        ),
        ("SELECT a FROM t WHERE x > ALL (SELECT y FROM s)", f"SELECT a FROM t WHERE NOT {truth('x', f'x <= {VALUE}')}"),
        ("SELECT x < ANY (SELECT y FROM s) AS v FROM t", f"SELECT {truth('x', f'x < {VALUE}')} AS v FROM t"),
        ("SELECT x >= ALL (SELECT y FROM s) AS v FROM t", f"SELECT NOT {truth('x', f'x < {VALUE}')} AS v FROM t"),
        (
            "SELECT a FROM t HAVING max(x) > ANY (SELECT y FROM s)",
            f"SELECT a FROM t HAVING {some(f'MAX(x) > {VALUE}')}",
        ),
    ],
)
def test_rewrite_any_all(given, expected):
    assert rewritten(given, rewrite_any_all) == expected


def test_any_over_something_else_is_left_alone():
    text = "SELECT ANY(x > 1) AS v FROM t"
    assert rewritten(text) == text


@pytest.mark.parametrize(
    "kept",
    [
        "SELECT a FROM t WHERE x IN (SELECT y FROM s)",
        "SELECT a FROM t WHERE NOT x IN (SELECT y FROM s) AND a > 1",
        "SELECT a FROM t WHERE (x IN (SELECT y FROM s) OR a > 1)",
        "SELECT a FROM t GROUP BY a HAVING a IN (SELECT y FROM s)",
        "SELECT a FROM t JOIN u ON t.k = u.k AND x IN (SELECT y FROM s)",
        "SELECT x IN (1, 2) AS v FROM t",
        "SELECT (a, b) IN (SELECT y, z FROM s) AS v FROM t",
    ],
)
def test_in_stays_where_it_only_chooses_rows(kept):
    assert rewritten(kept) == kept


IN = truth("x", f"x = {VALUE}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("SELECT x IN (SELECT y FROM s) AS v FROM t", f"SELECT {IN} AS v FROM t"),
        ("SELECT NOT x IN (SELECT y FROM s) AS v FROM t", f"SELECT NOT {IN} AS v FROM t"),
        ("SELECT a FROM t WHERE (x IN (SELECT y FROM s)) IS NULL", f"SELECT a FROM t WHERE ({IN}) IS NULL"),
        (
            "SELECT CASE WHEN NOT x IN (SELECT y FROM s) THEN 1 END AS v FROM t",
            f"SELECT CASE WHEN NOT {IN} THEN 1 END AS v FROM t",
        ),
        (
            "SELECT a FROM t LEFT JOIN u ON t.k = u.k AND x IN (SELECT y FROM s)",
            f"SELECT a FROM t LEFT JOIN u ON t.k = u.k AND {IN}",
        ),
        ("SELECT a FROM t WHERE NOT (x IN (SELECT y FROM s) AND b)", f"SELECT a FROM t WHERE NOT ({IN} AND b)"),
        ("SELECT x = ANY (SELECT y FROM s) AS v FROM t", f"SELECT {IN} AS v FROM t"),
        ("SELECT x <> ALL (SELECT y FROM s) AS v FROM t", f"SELECT NOT {IN} AS v FROM t"),
        (
            "SELECT sum(a) FILTER (WHERE x IN (SELECT y FROM s)) AS v FROM t",
            f"SELECT SUM(a) FILTER(WHERE {IN}) AS v FROM t",
        ),
    ],
)
def test_rewrite_in_as_value(given, expected):
    assert rewritten(given) == expected


def test_nested_subqueries_are_rewritten_too():
    text = "SELECT x IN (SELECT y FROM s WHERE y > ANY (SELECT z FROM u)) AS v FROM t"
    result = rewritten(text)
    assert "ANY" not in result
    assert result.count("FROM u") == 3


def test_rules_are_named_after_their_files():
    assert [rule.__module__.rpartition(".")[2] for rule in RULES] == [rule.__name__ for rule in RULES]
    assert (
        rename_aggregates,
        sort_texts_ourselves,
        rewrite_any_all,
        rewrite_in_as_value,
        name_lone_texts,
    ) == RULES


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("SELECT group_concat(a) AS v FROM t", "SELECT LISTAGG(a, ',') AS v FROM t"),
        ("SELECT GROUP_CONCAT(a, '|') AS v FROM t", "SELECT LISTAGG(a, '|') AS v FROM t"),
        ("SELECT count_distinct(a, b) AS v FROM t", "SELECT COUNT(DISTINCT a, b) AS v FROM t"),
        ("SELECT variance_pop(a) + variance_samp(a) AS v FROM t", "SELECT VAR_POP(a) + VAR_SAMP(a) AS v FROM t"),
    ],
)
def test_rename_aggregates(given, expected):
    assert rewritten(given, rename_aggregates) == expected


ORDERED = "STRING_AGG(x, ',') WITHIN GROUP (ORDER BY y DESC NULLS FIRST)"


@pytest.mark.parametrize(
    "others",
    [
        "1 AS one",
        "COUNT(DISTINCT a)",
        "COUNT(DISTINCT a), SUM(DISTINCT a)",
        "(SELECT COUNT(DISTINCT a) + COUNT(DISTINCT b) FROM u)",
    ],
)
def test_ordered_texts_stay_where_spark_computes_them(others):
    text = f"SELECT {ORDERED}, {others} FROM t"
    assert sort_texts_ourselves(parse_statement(text).query.tree.copy()) == parse_statement(text).query.tree


@pytest.mark.parametrize("others", ["COUNT(DISTINCT a), COUNT(DISTINCT b)", "COUNT(DISTINCT a) FILTER (WHERE b)"])
def test_ordered_texts_beside_distinct_aggregates(others):
    text = f"SELECT {ORDERED} FILTER (WHERE z), LISTAGG(DISTINCT x) WITHIN GROUP (ORDER BY x), {others} FROM t"
    ours = rewritten(text, sort_texts_ourselves)
    assert ours.startswith(
        "SELECT ARRAY_JOIN(NULLIF(SORT_ARRAY(COLLECT_LIST(NAMED_STRUCT('n0', (y) IS NULL, 'o0', y, 'v', x)) "
        "FILTER(WHERE (z) AND NOT (x) IS NULL), FALSE).v, ARRAY()), ','), "
        "ARRAY_JOIN(NULLIF(SORT_ARRAY(COLLECT_SET(NAMED_STRUCT('o0', x, 'v', x)) "
        "FILTER(WHERE NOT (x) IS NULL), TRUE).v, ARRAY()), ''), COUNT(DISTINCT a)"
    )


def test_texts_ordered_both_ways_beside_distinct_aggregates_are_refused():
    text = "SELECT LISTAGG(x) WITHIN GROUP (ORDER BY x, y DESC), COUNT(DISTINCT a), COUNT(DISTINCT b) FROM t"
    with pytest.raises(NotExecutableError, match="upwards and downwards"):
        rewritten(text, sort_texts_ourselves)


def test_a_rewritten_item_keeps_its_name(view):
    assert view("SELECT b, group_concat(a) FROM bag GROUP BY b").sql == (
        "SELECT b, LISTAGG(a, ',') AS `group_concat(a)` FROM in_0 AS bag GROUP BY b"
    )


COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
MAYBE = st.none() | st.integers(0, 2)


def three_valued(comparison: str, left: int | None, right: int | None) -> bool | None:
    return None if left is None or right is None else COMPARISONS[comparison](left, right)


def by_the_book(quantifier: str, outcomes: list[bool | None]) -> bool | None:
    decisive = quantifier == "ANY"
    if decisive in outcomes:
        return decisive
    return None if None in outcomes else not decisive


def evaluate(node: exp.Expression, row: dict[str, int | None], members: list[int | None]) -> bool | int | None:
    """A tiny evaluator of the forms the rules produce, with SQL's three-valued logic."""
    match node:
        case exp.Paren():
            return evaluate(node.this, row, members)
        case exp.Boolean():
            return bool(node.this)
        case exp.Null() | exp.Cast():
            return None
        case exp.Column():
            return row[node.name]
        case exp.Not():
            inner = evaluate(node.this, row, members)
            return None if inner is None else not inner
        case exp.And() | exp.Or():
            sides = [evaluate(side, row, members) for side in (node.this, node.expression)]
            return by_the_book("ANY" if isinstance(node, exp.Or) else "ALL", sides)
        case exp.Is():
            return evaluate(node.this, row, members) is None
        case exp.Case():
            for branch in node.args["ifs"]:
                if evaluate(branch.this, row, members) is True:
                    return evaluate(branch.args["true"], row, members)
            return evaluate(node.args["default"], row, members)
        case exp.Exists():
            where = node.this.args.get("where")
            rows = [row | {"velostream_value": member} for member in members]
            return any(where is None or evaluate(where.this, one, members) is True for one in rows)
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
            symbol = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}[type(node).__name__]
            return three_valued(symbol, evaluate(node.this, row, members), evaluate(node.expression, row, members))
    raise AssertionError(node)


def rewritten_item(text: str) -> exp.Expression:
    (item,) = apply_rules(parse_statement(f"SELECT {text}").query.tree.copy()).expressions
    return item


QUANTIFIED = {
    (comparison, quantifier): rewritten_item(f"x {comparison} {quantifier} (SELECT y FROM s)")
    for comparison, quantifier in itertools.product(COMPARISONS, ("ANY", "ALL"))
}
MEMBERSHIP = {text: rewritten_item(text) for text in ("x IN (SELECT y FROM s)", "NOT x IN (SELECT y FROM s)")}


@settings(deadline=None)
@given(x=MAYBE, members=st.lists(MAYBE, max_size=3))
def test_the_truth_table_of_any_and_all(x, members):  # B34
    for (comparison, quantifier), item in QUANTIFIED.items():
        outcomes = [three_valued(comparison, x, member) for member in members]
        assert evaluate(item, {"x": x}, members) is by_the_book(quantifier, outcomes)


@settings(deadline=None)
@given(x=MAYBE, members=st.lists(MAYBE, max_size=3))
def test_the_truth_table_of_in(x, members):  # B34
    inside = by_the_book("ANY", [three_valued("=", x, member) for member in members])
    outside = None if inside is None else not inside
    for item, expected in zip(MEMBERSHIP.values(), (inside, outside), strict=True):
        assert evaluate(item, {"x": x}, members) is expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("SELECT * FROM t WHERE a IN (SELECT 'x')", "SELECT * FROM t WHERE a IN (SELECT 'x' AS value)"),
        ("SELECT (SELECT 'x') AS b", "SELECT (SELECT 'x' AS value) AS b"),
        ("SELECT * FROM t WHERE a IN (SELECT 'x' FROM u)", "SELECT * FROM t WHERE a IN (SELECT 'x' FROM u)"),
        ("SELECT * FROM (SELECT 'x')", "SELECT * FROM (SELECT 'x')"),
        ("SELECT 'x'", "SELECT 'x'"),
        ("WITH c AS (SELECT 'x') SELECT * FROM c", "WITH c AS (SELECT 'x') SELECT * FROM c"),
        ("SELECT * FROM (SELECT 'x' UNION SELECT 'y')", "SELECT * FROM (SELECT 'x' UNION SELECT 'y')"),
    ],
)
def test_name_lone_texts(given, expected):
    assert name_lone_texts(parse_statement(given).query.tree).sql(dialect="spark") == expected
