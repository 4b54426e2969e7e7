"""Conditions that stores get wrong, over rows that bring it to light: collations, NaN, NULLs, scales, zones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from velostream.model.expression import Call, ColumnRef, Expression, Literal
from velostream.model.schema import Schema

TRICKY = Schema.of(
    ("id", "BIGINT"),
    ("name", "STRING"),
    ("amount", "DECIMAL(10,2)"),
    ("score", "DOUBLE"),
    ("day", "DATE"),
    ("at", "TIMESTAMP"),
    ("flag", "BOOLEAN"),
    ("data", "BINARY"),
    key=["id"],
)
_VALUES: Mapping[str, Sequence[Any]] = {
    "id": [-1, 0, 1, 2, 3, 2**62],
    "name": ["a", "A", "a ", "", "ä", "Ä", "%", "_", "ab", "O'Reilly", "日本", "😀", "\uffff", "1", "null", "a\nb"],
    "amount": [Decimal("-0.50"), Decimal("0.00"), Decimal("1.50"), Decimal("99999999.99")],
    "score": [-math.inf, -1.5, -0.0, 0.0, 0.1, 1e300, math.inf, math.nan],
    "day": [date(1, 1, 1), date(1969, 12, 31), date(2024, 2, 29), date(9999, 12, 31)],
    "at": [datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 3, 31, 1, 30, 0, 1, tzinfo=UTC)],
    "flag": [True, False],
    "data": [b"", b"\0", b"a", b"\xff\x00"],
}


def tricky_rows() -> pa.Table:
    """Every value of every column, and a NULL in each."""
    columns = {name: [*values, None] for name, values in _VALUES.items() if name != "id"}
    count = max(map(len, columns.values()))
    rows = [
        {"id": number, **{name: values[number % len(values)] for name, values in columns.items()}}
        for number in range(count)
    ]
    rows.append({"id": 2**62, **dict.fromkeys(columns)})
    return pa.Table.from_pylist(rows, TRICKY.arrow)


def _literal(column: str, value: Any) -> Literal:
    return Literal(value, TRICKY.column(column).type)


def _comparisons(column: str) -> st.SearchStrategy[Expression]:
    reference = ColumnRef(column)
    literals = st.sampled_from(_VALUES[column]).map(lambda value: _literal(column, value))
    operators = st.sampled_from(["=", "<>", "<", "<=", ">", ">=", "<=>"])
    compared = st.tuples(operators, literals).map(lambda given: Call(given[0], (reference, given[1])))
    turned = st.tuples(operators, literals).map(lambda given: Call(given[0], (given[1], reference)))
    listed = st.lists(literals, min_size=1, max_size=3).map(lambda items: Call("in", (reference, *items)))
    unknown = st.sampled_from(["=", "<", "<=>"]).map(
        lambda operator: Call(operator, (reference, _literal(column, None)))
    )
    return st.one_of(compared, compared, turned, listed, unknown, st.just(Call("is_null", (reference,))))


_TEXT, _NUMBER = pa.string(), pa.int64()
_NAME, _ID = ColumnRef("NAME"), ColumnRef("id")
_FUNCTIONS: Sequence[Expression] = (
    ColumnRef("flag"),
    *(Call("like", (_NAME, Literal(pattern, _TEXT))) for pattern in ("a%", "%", "_", "%_b", "A_", "", "%'%", "_\n_")),
    *(Call("rlike", (_NAME, Literal(pattern, _TEXT))) for pattern in ("^a", "b", "[A-Z]")),
    *(Call("=", (Call("lower", (_NAME,)), Literal(text, _TEXT))) for text in ("a", "o'reilly")),
    Call(">", (Call("length", (_NAME,)), Literal(1, pa.int32()))),
    Call("=", (Call("coalesce", (_NAME, Literal("none", _TEXT))), Literal("none", _TEXT))),
    Call("<", (Call("+", (_ID, Literal(1, _NUMBER))), Literal(3, _NUMBER))),
    Call("=", (Call("%", (_ID, Literal(2, _NUMBER))), Literal(1, _NUMBER))),
    Call("=", (Call("%", (_ID, Literal(-2, _NUMBER))), Literal(-1, _NUMBER))),
    Call("<", (Call("neg", (_ID,)), Literal(-2, _NUMBER))),
    Call(">", (Call("abs", (ColumnRef("amount"),)), Literal(Decimal("0.49"), pa.decimal128(10, 2)))),
)

CONDITIONS: st.SearchStrategy[Expression] = st.recursive(
    st.one_of(*(_comparisons(name) for name in _VALUES), st.sampled_from(_FUNCTIONS)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), inner, inner).map(lambda given: Call(given[0], given[1:])),
        inner.map(lambda one: Call("not", (one,))),
    ),
    max_leaves=4,
)
