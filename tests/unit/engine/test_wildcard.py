"""Wildcard paths over the rows of a table: the same answers from structs, maps and JSON text."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.engine.handle import TableHandle
from velostream.errors import SqlError, TableError
from velostream.model.rows import rows_to_arrow
from velostream.model.schema import Schema
from velostream.tables.base import TableSpec
from velostream.tables.memory.table import MemoryTable

POSITION = "STRUCT<shares: BIGINT, price: DECIMAL(10,2)>"
POSITIONS = {
    "AAPL": {"shares": 150, "price": Decimal("150.25")},
    "MSFT": {"shares": 75, "price": Decimal("330.25")},
    "TSLA": {"shares": 25, "price": Decimal("450.50")},
}
FORMS = {
    "struct": f"STRUCT<AAPL: {POSITION}, MSFT: {POSITION}, TSLA: {POSITION}>",
    "map": f"MAP<STRING, {POSITION}>",
    "json": "STRING",
}


def as_text(value):
    """JSON text in which decimals are written as they are."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)}: {as_text(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(as_text(inner) for inner in value) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def table_with(type_, *values):
    schema = Schema.of(("id", "BIGINT"), ("positions", type_), key=["id"])
    table = TableHandle(MemoryTable.open(TableSpec("t", "t", schema)))
    table.insert([{"id": number, "positions": value} for number, value in enumerate(values)])
    return table


@pytest.fixture(params=FORMS)
def t(request):
    value = as_text(POSITIONS) if request.param == "json" else POSITIONS
    return table_with(FORMS[request.param], value)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("positions.*.shares", [150, 75, 25]),  # B24
        ("positions.*.shares > 100", [150]),
        ("positions.*.shares < 100", [75, 25]),
        ("positions.*.price > 300", [Decimal("330.25"), Decimal("450.50")]),
        ("POSITIONS.MSFT.shares", [75]),
        ("positions.**.MSFT.shares", [75]),
        ('positions."MSFT".price', [Decimal("330.25")]),
        ("positions.*", list(POSITIONS.values())),
        ("**.shares", [150, 75, 25]),
        ("positions.**.shares", [150, 75, 25]),
        ("positions.**.**.shares", [150, 75, 25]),
        ("**.AAPL.**", [150, Decimal("150.25")]),
        ("positions.AAPL.**", [150, Decimal("150.25")]),
        ("positions.nothing.shares", []),  # B25
        ("nothing.*", []),
        ("positions[0].shares", []),
        ("positions.*.shares.deeper", []),
        ("id", [0]),
    ],
)
def test_values(t, path, expected):
    assert t.wildcard_values(path) == expected


def test_decimals_stay_exact(t):  # B24, B27
    assert [str(value) for value in t.wildcard_values("positions.*.price")] == ["150.25", "330.25", "450.50"]
    assert str(t.wildcard_aggregate("SUM(positions.*.price)")) == "931.00"
    assert str(t.wildcard_aggregate("avg(positions.*.price)")) == "310.333333"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("COUNT(positions.*)", 3),
        ("SUM(positions.*.shares)", 250),
        ("AVG(positions.*.shares)", 250 / 3),
        ("MIN(positions.*.price)", Decimal("150.25")),
        ("MAX(positions.*.shares)", 150),
        ("SUM(positions.*.shares > 50)", 225),
        ("COUNT(nothing.*)", 0),
        ("SUM(nothing.*)", None),
        ("MAX(nothing.*)", None),
        ("AVG(nothing.*)", None),
    ],
)
def test_aggregates(t, expression, expected):  # B27
    assert t.wildcard_aggregate(expression) == expected


@pytest.mark.parametrize(
    ("path", "column", "said"),
    [
        ("", 1, "empty"),  # B25
        ("positions[", 11, "brackets"),
        ("positions[1", 12, "not closed"),
        ("positions.*.shares > many", 22, "neither a number"),
        ("positions..shares", 11, "expected"),
        ("positions shares", 11, "comparison"),
        ("pos#itions", 4, "no meaning"),
    ],
)
def test_a_path_that_is_none_is_pointed_at(t, path, column, said):
    with pytest.raises(SqlError, match=said) as caught:
        t.wildcard_values(path)
    assert (caught.value.column, caught.value.code) == (column, "invalid-path")


def test_what_is_no_aggregate_is_an_error_that_lists_them(t):  # B27
    with pytest.raises(SqlError, match="MEDIAN") as caught:
        t.wildcard_aggregate("MEDIAN(positions.*.shares)")
    assert "SUM" in caught.value.hint
    with pytest.raises(SqlError, match="empty") as caught:
        t.wildcard_aggregate("SUM()")
    assert caught.value.column == 5
    with pytest.raises(SqlError, match="aggregate"):
        t.wildcard_aggregate("positions.*.shares")


def test_aggregates_need_values_they_can_take():
    table = table_with("STRING", '{"a": "x", "b": 1}')
    with pytest.raises(TableError, match="'x' is not a number"):
        table.wildcard_aggregate("SUM(positions.*)")
    with pytest.raises(TableError, match="no common order"):
        table.wildcard_aggregate("MAX(positions.*)")


ORDERS = [{"id": 1, "amount": Decimal("9.50")}, {"id": 2, "amount": Decimal("20.00")}, {"id": 3, "amount": None}]


@pytest.mark.parametrize("form", ["ARRAY<STRUCT<id: BIGINT, amount: DECIMAL(10,2)>>", "STRING"])
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("positions[*].id", [1, 2, 3, 7]),  # B26
        ("positions[1].amount", [Decimal("20.00")]),
        ("positions[-1].id", [3, 7]),
        ("positions[0:2].id", [1, 2, 7]),
        ("positions[-2:].id", [2, 3, 7]),
        ("positions[9].id", []),
        ("positions[amount > 10].id", [2]),
        ("positions[amount > 5 AND id < 2].id", [1]),
        ("positions[*].amount", [Decimal("9.50"), Decimal("20.00")]),
        ("**.id", [0, 1, 2, 3, 1, 7, 2, 3]),
        ("positions.**.id", [1, 2, 3, 7]),
    ],
)
def test_arrays(form, path, expected):
    values = [ORDERS, [{"id": 7, "amount": None}], [], None]
    table = table_with(form, *(as_text(v) if form == "STRING" and v is not None else v for v in values))
    assert table.wildcard_values(path) == expected


def test_fields_of_structs_are_found_in_any_case_of_letters_and_keys_as_they_are():
    fields = table_with("ARRAY<STRUCT<Name: STRING, size: STRUCT<Width: INT>>>", [{"Name": "a", "size": {"Width": 3}}])
    assert fields.wildcard_values("positions[*].name") == ["a"]
    assert fields.wildcard_values("**.WIDTH") == [3]
    assert fields.wildcard_values("positions[NAME = 'a' AND Size.width > 2].Name") == ["a"]
    for form, value in (("MAP<STRING, INT>", {"Name": 1}), ("STRING", '{"Name": 1}')):
        keys = table_with(form, value)
        assert keys.wildcard_values("positions.Name") == [1]
        assert keys.wildcard_values("positions.name") == []


def test_text_that_is_no_document_has_nothing_below_it():
    table = table_with("STRING", "plain", "{broken", "", "[1, 2]")
    assert table.wildcard_values("positions[*]") == [1, 2]
    assert table.wildcard_values("positions") == ["plain", "{broken", "", "[1, 2]"]


_LEAF = st.integers(-5, 5)
_TREE = st.recursive(
    _LEAF,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=12,
)


def _descendants(value):
    """The reference: everything below a value, in document order."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for child in below:
        yield child
        yield from _descendants(child)


@settings(max_examples=60, deadline=None)
@given(st.lists(_TREE.filter(lambda value: not isinstance(value, int)), max_size=4))
def test_any_depth_is_everything_below_in_document_order(documents):  # B26
    table = table_with("STRING", *map(json.dumps, documents))
    everything = [value for document in documents for value in _descendants(document)]
    assert table.wildcard_values("positions.**") == everything
    named = [v["a"] for d in documents for v in [d, *_descendants(d)] if isinstance(v, dict) and "a" in v]
    assert sorted(map(repr, table.wildcard_values("positions.**.a"))) == sorted(map(repr, named))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.none() | st.dictionaries(st.sampled_from(["x", "y"]), st.lists(st.none() | _LEAF, max_size=3), max_size=2),
        max_size=4,
    )
)
def test_arrow_and_json_give_the_same(rows):
    nested = table_with("MAP<STRING, ARRAY<BIGINT>>", *rows)
    text = table_with("STRING", *(None if row is None else json.dumps(row) for row in rows))
    for path in (
        "positions.*",
        "positions.*[*]",
        "positions.x[-1]",
        "positions.*[1:]",
        "positions.**",
        "positions.*[*] > 0",
    ):
        assert _without_nulls(nested.wildcard_values(path)) == _without_nulls(text.wildcard_values(path)), path


def _without_nulls(values):
    return [[v for v in value if v is not None] if isinstance(value, list) else value for value in values]


def test_rows_of_arrow_are_sliced_right():
    """A scan may give slices whose offsets don't begin at zero."""
    schema = Schema.of(("id", "BIGINT"), ("positions", "MAP<STRING, BIGINT>"), key=["id"])
    table = TableHandle(MemoryTable.open(TableSpec("t", "t", schema)))
    table.insert(rows_to_arrow([{"id": i, "positions": {"k": i}} for i in range(10)], schema))
    table.delete("id < 5")
    assert table.wildcard_values("positions.k") == [5, 6, 7, 8, 9]
    assert table.wildcard_values("positions.*") == [5, 6, 7, 8, 9]
