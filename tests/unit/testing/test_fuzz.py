"""The parts of the machine of random cases that need no Spark: a machine that sees no difference finds none."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from math import nan

import pyarrow as pa
import pytest

from velostream.testing.fuzz.case import Append, Case, Commit, CreateTable, CreateView, Look, Restart
from velostream.testing.fuzz.changes import Change, Kind, TableSpec
from velostream.testing.fuzz.compare import difference
from velostream.testing.fuzz.generate import generate, generate_lookups
from velostream.testing.fuzz.player import Failure
from velostream.testing.fuzz.shrink import shrink
from velostream.testing.fuzz.timed import TIME
from velostream.testing.fuzz.values import FIRST_INSTANT, TEXT, WHOLE

TABLE = TableSpec("t", {"id": WHOLE, "g": TEXT}, ("id",))
ROWS = [{"id": 1, "g": "a"}, {"id": 2, "g": None}]


def test_a_seed_is_always_the_same_case():
    assert generate(7).script == generate(7).script != generate(8).script


def test_cases_have_every_kind_of_step_and_query():
    cases = [generate(seed) for seed in range(200)]
    steps = Counter(type(step).__name__ for case in cases for step in case.steps)
    assert {"Append", "Commit", "CreateFolded", "CreateView", "Forget", "Look", "LookBack", "Restart"} <= steps.keys()
    scripts = "".join(case.script for case in cases)
    words = ("FULL JOIN", "USING (", "LEFT ANTI", "NOT IN (SELECT", "> ALL (SELECT", "NOT EXISTS", "ROLLUP", "HAVING")
    more = ("INTERSECT ALL", "EXCEPT", "OVER (PARTITION", "WITH cte", "LIMIT", "FILTER (WHERE", "TRUNCATE", "BEGIN;")
    timed = (
        "TUMBLING",
        "SLIDING",
        "SESSION",
        "EMIT FINAL",
        "WITHIN 5m",
        "ASOF LEFT JOIN",
        "LEFT ANTI JOIN memory://e1",
    )
    paths = ("[*]", "`.*", "ANY(", "[0:1]")
    assert [word for word in (*words, *more, *timed, *paths) if word not in scripts] == []
    assert {setting for case in cases for setting in case.settings} == {
        ("velostream.maintain", "refresh"),
        ("velostream.lookup", "general"),
    }


def test_lookups_are_drawn_in_every_form_and_both_ways():
    cases = [generate_lookups(seed) for seed in range(60)]
    assert cases[7].script == generate_lookups(7).script != cases[8].script
    scripts = "".join(case.script for case in cases)
    joins = (" JOIN t0", "LEFT JOIN t0", "RIGHT JOIN t0", "FULL JOIN t0", "JOIN memory://s0", "USING (", "join.missing")
    asked = ("NOT EXISTS", "NOT IN (SELECT", "> ALL (SELECT", "= ANY (SELECT", "SELECT COUNT(*)", "SELECT SUM(")
    assert [word for word in (*joins, *asked, "# restart", "# look") if word not in scripts] == []
    views = [step.view for case in cases for step in case.steps if isinstance(step, CreateView)]
    fast = [view.ours for view in views if view.lookup == "fast"]
    general = [view.ours for view in views if view.lookup in ("narrowed", "general")]
    assert {view.lookup for view in views} == {"fast", "narrowed", "general"}
    assert fast == general
    assert {case.settings for case in cases} == {(), (("velostream.lookup", "general"),)}


@pytest.mark.parametrize(
    ("change", "sql", "after"),
    [
        (
            Change(TABLE, Kind.UPSERT, rows=({"id": 2, "g": "it's"},)),
            "UPSERT INTO t VALUES (2, 'it''s')",
            [{"id": 1, "g": "a"}, {"id": 2, "g": "it's"}],
        ),
        (Change(TABLE, Kind.DELETE, column="g", values=(None,)), "DELETE FROM t WHERE `g` IS NULL", ROWS[:1]),
        (
            Change(TABLE, Kind.UPDATE, column="id", values=(1,), assigned=(("id", 5),)),
            "UPDATE t SET `id` = 5 WHERE `id` IN (1)",
            [{"id": 5, "g": "a"}, {"id": 2, "g": None}],
        ),
    ],
)
def test_a_change_is_the_same_as_sql_and_over_rows(change, sql, after):
    assert change.sql == sql
    assert change.apply(ROWS) == after


@pytest.mark.parametrize(
    ("found", "right", "same"),
    [
        ([1, 2, 2], [2, 1, 2], True),
        ([1, 2, 2], [1, 2], False),
        ([1.0, nan], [nan, 1.0 + 1e-13], True),
        ([1.0, None], [1.0, nan], False),
        ([1.0], [1.0001], False),
        ([Decimal("1.50")], [Decimal("1.51")], False),
        ([{"a": 1}], [{"a": None}], False),
        ([[1, None]], [[1, None]], True),
    ],
)
def test_answers_are_bags_of_rows(found, right, same):
    assert (difference(pa.table({"a": found}), pa.table({"b": right})) is None) is same


def test_answers_of_other_types_differ():
    narrow, wide = (pa.table({"a": pa.array([1], one)}) for one in (pa.int32(), pa.int64()))
    assert "int32" in str(difference(narrow, wide))


def test_a_failure_is_cut_down_to_what_it_needs():
    """Here a case fails as long as it has its table and rows 2 are inserted."""
    needed, other = (Change(TABLE, Kind.INSERT, rows=({"id": number, "g": None},)) for number in (2, 3))
    case = Case(1, (CreateTable(TABLE), Commit((other,)), Restart(), Commit((other, needed)), Look(), Look()))

    def again(tried):
        changes = [change for step in tried.steps if isinstance(step, Commit) for change in step.changes]
        fails = CreateTable(TABLE) in tried.steps and needed in changes
        return Failure(tried, len(tried.steps) - 1, "v", "wrong") if fails else None

    found = shrink(Failure(case, 4, "v", "wrong"), again=again)
    assert found.case == replace(case, steps=(CreateTable(TABLE), Commit((needed,)), Look()))
    assert not any(isinstance(step, CreateView) for step in found.case.steps)


def test_rows_of_timed_feeds_are_never_late():
    """By the watermark of the batches before their own: else what is right would depend on what was read at once."""
    late = []
    for case in map(generate, range(60)):
        newest: dict[str, datetime] = {}
        for step in case.steps:
            if not isinstance(step, Append) or TIME not in step.feed.columns:
                continue
            times = [row[TIME] for row in step.rows if row[TIME] is not None]
            before = newest.get(step.feed.name, FIRST_INSTANT)
            late += [time for time in times if time < before - timedelta(minutes=1)]
            newest[step.feed.name] = max([*times, before])
    assert late == []
