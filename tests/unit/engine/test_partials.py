"""Partial results of groups against all rows of the groups, over random changes."""

from __future__ import annotations

import random
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.engine.maintain.partials import PartialState
from velostream.errors import QueryError
from velostream.model.schema import Schema
from velostream.sql.plan import AggregateFunction, Partial

FEED = Schema.of(("g0", "STRING"), ("g1", "DOUBLE"), ("x0", "DECIMAL(10,2)"), ("x1", "BIGINT"))
PARTIALS = (
    Partial(AggregateFunction.COUNT, None),
    Partial(AggregateFunction.COUNT, "x0"),
    Partial(AggregateFunction.SUM, "x0"),
    Partial(AggregateFunction.AVG, "x0"),
    Partial(AggregateFunction.SUM, "x1"),
    Partial(AggregateFunction.AVG, "x1"),
    Partial(AggregateFunction.MIN, "x0"),
    Partial(AggregateFunction.MAX, "x1"),
)
RESULTS = (
    ("a0", "BIGINT"),
    ("a1", "BIGINT"),
    ("a2", "DECIMAL(20,2)"),
    ("a3", "DECIMAL(14,6)"),
    ("a4", "BIGINT"),
    ("a5", "DOUBLE"),
    ("a6", "DECIMAL(10,2)"),
    ("a7", "BIGINT"),
)


def layout(keys):
    groups = Schema.of(*((key, FEED.column(key).sql_type) for key in keys), *RESULTS)
    return PartialState(tuple(keys), PARTIALS, FEED, groups)


def changes(rows, signs=None):
    table = pa.Table.from_pylist(rows, schema=FEED.arrow)
    return table.append_column("_change", pa.array([1] * len(rows) if signs is None else signs, pa.int8()))


def expected(rows, keys):
    found = {}
    for row in rows:
        found.setdefault(tuple(plain(row[key]) for key in keys), []).append(row)
    if not keys:
        found.setdefault((), [])
    return {key: aggregates(group) for key, group in found.items()}


def aggregates(rows):
    amounts = [row["x0"] for row in rows if row["x0"] is not None]
    numbers = [row["x1"] for row in rows if row["x1"] is not None]
    return (
        len(rows),
        len(amounts),
        sum(amounts) if amounts else None,
        (sum(amounts) / len(amounts)).quantize(Decimal("1e-6"), rounding="ROUND_HALF_UP") if amounts else None,
        sum(numbers) if numbers else None,
        sum(numbers) / len(numbers) if numbers else None,
        min(amounts, default=None),
        max(numbers, default=None),
    )


def plain(value):
    """NaN as something that equals itself."""
    return "NaN" if value != value else value  # noqa: PLR0124


def row(chosen):
    return {
        "g0": chosen.choice(["a", "b", None]),
        "g1": chosen.choice([0.0, -0.0, 1.5, float("nan"), None]),
        "x0": chosen.choice([None, Decimal(chosen.randrange(-300, 300)).scaleb(-2)]),
        "x1": chosen.choice([None, chosen.randrange(-5, 5), 2**62]),
    }


@pytest.mark.parametrize("keys", [(), ("g0",), ("g0", "g1"), ("g1",)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_partial_results_stand_for_all_rows_of_the_groups(keys, seed):
    chosen = random.Random(seed)
    state = layout(keys)
    held, groups = [], state.of_rows(changes([], []))
    for _ in range(30):
        gone = chosen.sample(held, chosen.randint(0, len(held)))
        came = [row(chosen) for _ in range(chosen.randint(0, 6))]
        held = [one for one in held if not any(one is other for other in gone)] + came
        merged, others = merge(state, groups, changes(gone + came, [-1] * len(gone) + [1] * len(came)))
        groups = pa.concat_tables([others, merged.state])
        if merged.open is not None:
            groups = state.with_extremes(groups, changes(held_by(merged.open, held, keys)))
        right = expected(held, keys)
        if any(not -(2**63) <= (group[4] or 0) < 2**63 for group in right.values()):
            with pytest.raises(QueryError, match="out of the range of BIGINT"):
                state.results(groups)
            continue
        results = state.results(groups).to_pylist()
        found = {tuple(plain(one[key]) for key in keys): tuple(one[name] for name, _ in RESULTS) for one in results}
        assert found == right


def merge(state, groups, rows):
    """What rows make of their groups, and the groups that they don't touch."""
    gathered = state.gathered(rows).groups
    places = {tuple(map(plain, key)): at for at, key in enumerate(keys_of(groups, state.keys))}
    touched = [places.get(tuple(map(plain, key))) for key in keys_of(gathered, state.keys)]
    others = [at for at in range(groups.num_rows) if at not in touched]
    return state.merged(groups.take(pa.array(touched, pa.int64())), gathered), groups.take(pa.array(others, pa.int64()))


def keys_of(groups, keys):
    return [tuple(one[key] for key in keys) for one in groups.to_pylist()]


def held_by(groups, held, keys):
    wanted = {tuple(plain(one[key]) for key in keys) for one in groups.to_pylist()} if keys else {()}
    return [one for one in held if tuple(plain(one[key]) for key in keys) in wanted]


def test_a_sum_beyond_its_type_is_an_error_until_it_fits_again():
    state = layout(("g0",))
    big = {"g0": "a", "g1": None, "x0": None, "x1": 2**62}
    groups = state.of_rows(changes([big, big], [1, 1]))
    with pytest.raises(QueryError) as failure:
        state.results(groups)
    assert failure.value.code == "overflow"
    less = state.merged(groups, state.gathered(changes([big], [-1])).groups).state
    assert state.results(less).column("a4").to_pylist() == [2**62]


def test_a_group_whose_smallest_value_stays_is_not_looked_at_again():
    state = layout(("g0",))
    rows = [{"g0": "a", "g1": None, "x0": Decimal(amount), "x1": None} for amount in (1, 2, 3)]
    groups = state.of_rows(changes(rows, [1, 1, 1]))
    assert state.merged(groups, state.gathered(changes([rows[2]], [-1])).groups).open is None
    assert state.merged(groups, state.gathered(changes([rows[0], rows[0]], [-1, 1])).groups).open is None
    lost = state.merged(groups, state.gathered(changes([rows[0]], [-1])).groups).open
    assert lost.to_pylist() == [{"g0": "a"}]


@pytest.mark.parametrize("keys", [(), ("g0",)], ids=str)
def test_rows_are_counted_where_nothing_else_is(keys):
    groups = Schema.of(*((key, FEED.column(key).sql_type) for key in keys), ("a0", "BIGINT"))
    state = PartialState(tuple(keys), (Partial(AggregateFunction.COUNT, None),), FEED, groups)
    one = {"g0": "a", "g1": None, "x0": None, "x1": None}
    assert state.results(state.of_rows(changes([one, one]))).column("a0").to_pylist() == [2]


@pytest.mark.parametrize(
    "type_", ["DOUBLE", "FLOAT", "STRUCT<x: DOUBLE>", "ARRAY<DOUBLE>", "STRUCT<x: ARRAY<STRUCT<y: FLOAT>>>"]
)
def test_a_group_of_zeros_is_shown_by_the_one_without_a_sign_as_in_spark(type_):
    within = {
        "STRUCT<x: DOUBLE>": lambda zero: {"x": zero},
        "ARRAY<DOUBLE>": lambda zero: [None, zero],
        "STRUCT<x: ARRAY<STRUCT<y: FLOAT>>>": lambda zero: {"x": [{"y": zero}, None]},
    }.get(type_, lambda zero: zero)
    feed = Schema.of(("g", type_))
    state = PartialState(
        ("g",), (Partial(AggregateFunction.COUNT, None),), feed, Schema.of(("g", type_), ("a0", "BIGINT"))
    )
    values = [within(-0.0), None, within(0.0), within(1.5), within(-0.0)]
    rows = pa.table({"g": pa.array(values, feed.arrow.field("g").type), "_change": pa.array([1] * 5, pa.int8())})
    found = state.results(state.of_rows(rows))
    assert str(found.column("g").to_pylist()) == str([within(0.0), None, within(1.5)])
    assert found.column("a0").to_pylist() == [3, 1, 1]
