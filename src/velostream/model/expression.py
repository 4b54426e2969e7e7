"""Expressions as plain data, so that tables and sources evaluate conditions without parsing text.

`sql` lowers text to this form; a table compiles it once into what its store runs. The operators are a closed
set; an expression outside of it has no such form and is evaluated by Spark instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column of the table, by its stored name."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant: None, bool, int, Decimal, float, str, bytes, date, datetime; with its Arrow type."""

    value: Any
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Call:
    """An operator or function over arguments.

    Operators: `= <> < <= > >= <=> and or not + - * / % neg in like rlike is_null`. `in` takes the value first,
    then the list. Functions carry their lower-case Spark name (`lower`, `upper`, `abs`, `coalesce`, `length`, …).

    Whoever evaluates one must answer as Spark does in ANSI mode:

    - the arguments of a comparison, and of integer or float arithmetic, have one type (casts are explicit);
      `+ - *` of decimals take their own types and give Spark's result type (`DECIMAL(p1+p2+1, s1+s2)` for `*`);
    - NaN equals NaN and is above every number, -0.0 equals 0.0; text compares by its UTF-8 bytes;
    - integer overflow and division by zero are errors, never a wrong number or a NULL;
    - `in` lists hold literals of the value's type without NULLs; `like` knows `%` and `_` only (`_` is one character,
      line ends included); the pattern of `like` and `rlike` is a literal; `rlike` finds anywhere in the text;
    - `and`, `or` follow three-valued logic and take two arguments.
    """

    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    value: Expression
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Case:
    """CASE WHEN condition THEN value … ELSE otherwise END; a simple CASE is lowered to this."""

    branches: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression | None = None


Expression = ColumnRef | Literal | Call | Cast | Case


@dataclass(frozen=True, slots=True)
class SqlText:
    """An expression as its text, where plain text would be a value: `t.update(where, {"a": expr("a * 2")})`."""

    text: str


def expr(text: str) -> SqlText:
    """Mark a text as a SQL expression over the table's columns."""
    return SqlText(text)


def columns_of(expression: Expression) -> frozenset[str]:
    """Names of all columns an expression reads."""
    match expression:
        case ColumnRef(name):
            return frozenset((name,))
        case Literal():
            return frozenset()
        case Call(_, arguments):
            return frozenset().union(*(columns_of(argument) for argument in arguments))
        case Cast(value, _):
            return columns_of(value)
        case Case(branches, otherwise):
            parts = [part for branch in branches for part in branch]
            if otherwise is not None:
                parts.append(otherwise)
            return frozenset().union(*(columns_of(part) for part in parts))


def conjuncts(expression: Expression | None) -> tuple[Expression, ...]:
    """The AND-ed parts of a condition, left to right; none for no condition."""
    if expression is None:
        return ()
    if isinstance(expression, Call) and expression.name == "and":
        return tuple(part for argument in expression.arguments for part in conjuncts(argument))
    return (expression,)
