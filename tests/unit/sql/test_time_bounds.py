"""What conditions say of the distance of two times, and when rows of joined streams can go."""

from datetime import timedelta

import pytest
import sqlglot

from velostream.sql.explain import explain_rows
from velostream.sql.plan import LateData
from velostream.sql.time_bounds import distances

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
CLOCK = timedelta(hours=2)
"""By how much a day may be longer or shorter where clocks are changed."""


def bounds(condition: str) -> list[tuple[str, str, timedelta | None, timedelta | None]]:
    found = distances(sqlglot.parse_one(condition, dialect="spark"))
    return [(str(one.first), str(one.second), one.low, one.high) for one in found]


@pytest.mark.parametrize(
    ("condition", "low", "high"),
    [
        ("a.t = b.t", timedelta(0), timedelta(0)),
        ("a.t <= b.t", timedelta(0), None),
        ("a.t > b.t", None, timedelta(0)),
        ("a.t + INTERVAL '10' MINUTE >= b.t", None, 10 * MINUTE),
        ("a.t < b.t - INTERVAL 5 MINUTES", 5 * MINUTE, None),
        ("(INTERVAL -5 MINUTES + a.t) < (b.t)", -5 * MINUTE, None),
        ("a.t - INTERVAL '1.5' SECOND >= b.t + INTERVAL 1 MINUTE 30 SECONDS", None, timedelta(seconds=-91.5)),
        ("CAST(a.t AS TIMESTAMP) >= b.t - INTERVAL '2' HOUR", None, 120 * MINUTE),
        ("a.t >= b.t - INTERVAL '3' DAY", None, 3 * DAY + CLOCK),
        ("a.t + INTERVAL '1' MONTH <= b.t", 28 * DAY - CLOCK, None),
        ("a.t + INTERVAL '1' MONTH >= b.t", None, 31 * DAY + CLOCK),
    ],
)
def test_comparisons_bound_the_distance(condition, low, high):
    assert bounds(condition) == [("a.t", "b.t", low, high)]


def test_between_is_two_comparisons():
    assert bounds("b.t BETWEEN a.t AND a.t + INTERVAL '1' HOUR") == [
        ("b.t", "a.t", None, timedelta(0)),
        ("b.t", "a.t", -60 * MINUTE, None),
    ]


@pytest.mark.parametrize(
    "condition",
    [
        "a.t <> b.t",
        "a.t NOT BETWEEN b.t AND b.t",
        "date_trunc('hour', a.t) = b.t",
        "a.t + a.x >= b.t",
        "INTERVAL '1' MINUTE - a.t >= b.t",
        "a.t + INTERVAL '1:30' HOUR TO MINUTE >= b.t",
        "a.t + INTERVAL '1' FORTNIGHT >= b.t",
        "a.t + INTERVAL '99999999999999' DAY >= b.t",
        "a.t >= b.t OR a.x",
        "CAST(a.t AS DATE) = b.t",
    ],
)
def test_anything_else_says_nothing(condition):
    assert bounds(condition) == []


@pytest.fixture
def timed(view, shop):
    """The plan of a view over streams with a watermark of a minute."""
    shop.query_options += ["event.time.field", "watermark", "late.data"]

    def planned(text: str, *, options: str = "'watermark' = '1m'") -> object:
        return view(f"{text} WITH ({options})")

    return planned


RANGE = "a.id = b.id AND b.ts BETWEEN a.ts - INTERVAL '2' MINUTE AND a.ts + INTERVAL '10' MINUTE"


def test_rows_of_an_inner_join_stay_until_nothing_can_meet_them(timed):
    expiry = timed(f"SELECT a.id FROM orders a JOIN memory://x b ON {RANGE}").delta.expiry
    assert (expiry.meeting.low, expiry.meeting.high) == (-2 * MINUTE, 10 * MINUTE)
    assert (expiry.meeting.left_stay, expiry.meeting.right_stay) == (10 * MINUTE, 2 * MINUTE)
    assert (expiry.watermark, expiry.late) == (MINUTE, LateData.DROP)


@pytest.mark.parametrize("join", ["LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "ANTI JOIN", "SEMI JOIN"])
def test_where_it_matters_whom_a_row_has_met_these_stay_as_long(timed, join):
    shown = "b.id" if join == "RIGHT JOIN" else "a.id"
    plan = timed(f"SELECT {shown} FROM orders a {join} memory://x b ON {RANGE}").delta
    meeting = plan.expiry.meeting
    assert (meeting.left_stay, meeting.right_stay) == (12 * MINUTE, 12 * MINUTE)
    assert plan.partitioned is None or plan.partitioned.outputs is None


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"SELECT a.id FROM orders a JOIN memory://x b ON {RANGE}", "'event.time.field' = 'ts'"),
        (f"SELECT a.id FROM orders a JOIN memory://x b ON {RANGE}", "'watermark' = '1m', 'late.data' = 'update'"),
        (f"SELECT a.id FROM orders a JOIN memory://x b ON {RANGE} ORDER BY a.id LIMIT 3", "'watermark' = '1m'"),
        (f"SELECT a.id FROM orders a JOIN memory://x b ON {RANGE} JOIN users u ON u.id = a.id", "'watermark' = '1m'"),
        (
            f"SELECT a.id, MAX(b.sku) AS m FROM orders a JOIN memory://x b ON {RANGE} GROUP BY a.id",
            "'watermark' = '1m'",
        ),
    ],
)
def test_else_all_rows_are_kept_and_it_is_said(timed, text, options):
    plan = timed(text, options=options)
    assert plan.delta is None or plan.delta.expiry is None
    assert "warning-endless-state" in [warning.code for warning in plan.warnings]


def test_explain_says_how_long_rows_are_kept(timed):
    rows = explain_rows(timed(f"SELECT a.id FROM orders a JOIN memory://x b ON {RANGE}"), extended=False)
    kept = [value for name, value in rows if name == "kept rows"]
    assert kept == [
        'of stream "orders", kept 10m beyond the watermark, which follows ts',
        'of stream "memory://x", kept 2m beyond the watermark, which follows ts',
    ]
    assert dict(rows)["state"] == "the rows of both streams that may still meet others"
