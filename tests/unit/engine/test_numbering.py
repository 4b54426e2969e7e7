"""Groups by numbers against groups by their values, over random changes."""

from __future__ import annotations

import random
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.engine.maintain.numbering import Numberings
from velostream.engine.maintain.partials import PartialState
from velostream.model.schema import Schema
from velostream.sql.plan import AggregateFunction, Partial

FEED = Schema.of(
    ("g0", "STRING"),
    ("g1", "BIGINT"),
    ("g2", "DECIMAL(5,1)"),
    ("g3", "DATE"),
    ("g4", "BOOLEAN"),
    ("x0", "DECIMAL(38,2)"),
    ("x1", "INT"),
    ("x2", "BIGINT"),
)
PARTIALS = (
    Partial(AggregateFunction.COUNT, None),
    Partial(AggregateFunction.COUNT, "x0"),
    Partial(AggregateFunction.SUM, "x0"),
    Partial(AggregateFunction.AVG, "x1"),
    Partial(AggregateFunction.SUM, "x2"),
)
GROUPS = [("g0",), ("g1",), ("g2",), ("g0", "g1"), ("g3", "g4", "g0"), ("g4", "g2", "g1", "g0")]
SIZES = {"small": 1000, "beyond doubles": 2**60, "beyond 64 bits": 10**30}


def layout(keys):
    results = [(f"a{number}", "DECIMAL(38,6)") for number in range(len(PARTIALS))]
    groups = Schema.of(*((key, FEED.column(key).sql_type) for key in keys), *results)
    return PartialState(tuple(keys), PARTIALS, FEED, groups)


def rows(chosen, count, *, largest=1000, nulls=True):
    def maybe(value):
        return None if nulls and chosen.random() < 0.2 else value

    def number(limit):
        return chosen.randint(-min(largest, limit), min(largest, limit))

    records = [
        {
            "g0": maybe(chosen.choice("ab")),
            "g1": maybe(chosen.randint(-1, 1)),
            "g2": maybe(Decimal(chosen.randint(-1, 1)).scaleb(-1)),
            "g3": maybe(date(2024, 1, chosen.randint(1, 2))),
            "g4": maybe(chosen.random() < 0.5),
            "x0": maybe(Decimal(number(10**30)).scaleb(-2)),
            "x1": maybe(number(2**31 - 1)),
            "x2": maybe(number(2**62)),
        }
        for _ in range(count)
    ]
    return pa.Table.from_pylist(records, schema=FEED.arrow)


def signed(table, signs):
    return table.append_column("_change", pa.array(signs, pa.int8()))


def told(contributions, keys):
    """Contributions by group, in any order of groups and columns."""
    return {tuple(one[key] for key in keys): one for one in contributions.to_pylist()}


@pytest.mark.parametrize("keys", GROUPS, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("nulls", [False, True], ids=["none is NULL", "some are NULL"])
@pytest.mark.parametrize("signs", [(1,), (1, -1)], ids=["all come", "some go"])
def test_contributions_are_those_of_grouping_by_values(keys, size, nulls, signs):
    state = layout(keys)
    chosen = random.Random(f"{keys} {size} {nulls} {signs}")
    for count in (1, 2, 50):
        table = rows(chosen, count, largest=SIZES[size], nulls=nulls)
        changes = signed(table, [chosen.choice(signs) for _ in range(count)])
        for given in (changes, pa.concat_tables([changes.slice(0, 1), changes.slice(1)]), changes.slice(count // 2)):
            by_number = state.gathered(given)
            by_value = state._by_values(given)
            assert told(by_number.groups, keys) == told(by_value, keys)


def test_small_values_are_numbered_and_large_ones_are_not():
    state, chosen = layout(("g0",)), random.Random(1)
    small, large = (signed(rows(chosen, 50, largest=largest), [1] * 50) for largest in (1000, 10**30))
    assert state.gathered(small).key_values is not None
    assert state.gathered(large).key_values is None


def test_the_same_columns_are_numbered_once_whatever_they_are_called():
    changes = signed(rows(random.Random(1), 50), [1] * 50)
    numberings = Numberings()
    first = numberings.of(changes, ["g0", "g1"])
    assert numberings.of(changes.select(["x0", "_change", "g1", "g0"]), ["g0", "g1"]) is first
    renamed = numberings.of(changes.rename_columns([f"{name}_" for name in FEED.names] + ["_change"]), ["g0_", "g1_"])
    assert renamed.numbers is first.numbers
    assert renamed.keys.column_names == ["g0_", "g1_"]


def test_other_columns_rows_and_signs_are_numbered_by_themselves():
    changes = signed(rows(random.Random(1), 50), [1] * 50)
    numberings = Numberings()
    first = numberings.of(changes, ["g0"])
    others = [
        (changes, ["g1"]),
        (changes, ["g0", "g1"]),
        (changes.slice(10), ["g0"]),
        (changes.slice(0, 10), ["g0"]),
        (signed(changes.drop_columns(["_change"]), [-1] * 50), ["g0"]),
        (changes.filter(pa.array([True] * 49 + [False])), ["g0"]),
    ]
    for given, keys in others:
        found = numberings.of(given, keys)
        assert found is not first
        fresh = Numberings().of(given, keys)
        assert found.numbers.tolist() == fresh.numbers.tolist()
        assert found.keys.equals(fresh.keys)
        assert found.rows.tolist() == fresh.rows.tolist()
