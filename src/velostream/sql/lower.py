"""Lower a SQL expression to `model.Expression`, the form that tables evaluate without Spark.

Only what is sure to give Spark's answer is lowered: both sides of an operator get one type by explicit casts as ANSI
mode coerces them, constants are folded exactly, and an operation that can fail stands only where Spark would evaluate
it for every row too (so never behind an AND, an OR or a CASE that might spare it). Anything else is `NotLowerable`,
which is no error: the caller asks Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlglot import exp

from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.sql.coercion import type_of
from velostream.sql.lower_conditions import COMPARISONS
from velostream.sql.lower_core import NotLowerable
from velostream.sql.lower_values import ARITHMETIC, ValueLowering
from velostream.sql.parameters import Parameters, bind

__all__ = ["NotLowerable", "lower", "type_of"]


def lower(
    tree: exp.Expr,
    schema: Schema,
    parameters: Parameters | None = None,
    *,
    text: str = "",
    qualifiers: Collection[str] | None = None,
) -> Expression:
    """The expression over rows of the schema, parameters put in as constants.

    `text` is the statement the tree was read from, for carets. `qualifiers` are the names a column may be qualified
    with (table or alias); None accepts any. Raises `NotLowerable` when Spark has to evaluate it, and a `SqlError` when
    nobody could: an unknown column, a parameter too many, a constant that can't be cast.
    """
    bound = bind(tree, parameters, text=text)
    lowering = _Lowering(schema, text=text, qualifiers=qualifiers)
    lowering.check_columns(bound)
    try:
        lowered = lowering.lower(bound)
        lowering.check_failing(lowered)
    except RecursionError as error:
        raise NotLowerable("it is nested too deeply") from error
    return lowered


class _Lowering(ValueLowering):
    def lower(self, node: exp.Expr) -> Expression:
        form = _FORMS.get(type(node))
        if form is None or not form.covers(node):
            raise NotLowerable(f"{node.key.upper()} is evaluated by Spark")
        return form.handler(self, node)


@dataclass(frozen=True)
class _Form:
    """How a kind of node is lowered, and the parts of it that the handler knows of.

    A node with any other part is left to Spark: sqlglot keeps a meaning in parts that are easily overlooked, such as
    the NOT of NOT LIKE.
    """

    handler: Callable[..., Expression]
    parts: frozenset[str]

    def covers(self, node: exp.Expr) -> bool:
        return all(part in self.parts or value in (None, [], False) for part, value in node.args.items())


def _form(handler: Callable[..., Expression], *parts: str) -> _Form:
    return _Form(handler, frozenset(parts))


_FORMS: dict[type, _Form] = {
    exp.Literal: _form(_Lowering.literal, "this", "is_string"),
    exp.RawString: _form(_Lowering.raw_text, "this"),
    exp.HexString: _form(_Lowering.binary, "this"),
    exp.Boolean: _form(_Lowering.truth, "this"),
    exp.Null: _form(_Lowering.null),
    exp.Paren: _form(lambda self, node: self.lower(node.this), "this"),
    exp.Column: _form(_Lowering.column, "this", "table", "db", "catalog"),
    exp.And: _form(_Lowering.logic, "this", "expression"),
    exp.Or: _form(_Lowering.logic, "this", "expression"),
    exp.Not: _form(_Lowering.negation, "this"),
    exp.NullSafeNEQ: _form(_Lowering.distinct, "this", "expression"),
    exp.Between: _form(_Lowering.between, "this", "low", "high"),
    exp.In: _form(_Lowering.membership, "this", "expressions"),
    exp.Like: _form(_Lowering.matching, "this", "expression", "negate"),
    exp.RegexpLike: _form(_Lowering.matching, "this", "expression"),
    exp.Is: _form(_Lowering.being, "this", "expression"),
    exp.Neg: _form(_Lowering.minus, "this"),
    exp.Cast: _form(_Lowering.explicit_cast, "this", "to", "_type"),
    exp.TryCast: _form(_Lowering.explicit_cast, "this", "to", "_type"),
    exp.Case: _form(_Lowering.case, "this", "ifs", "default"),
    exp.If: _form(_Lowering.if_function, "this", "true", "false"),
    exp.Anonymous: _form(_Lowering.function, "this", "expressions"),
    exp.Lower: _form(_Lowering.function, "this"),
    exp.Upper: _form(_Lowering.function, "this"),
    exp.Length: _form(_Lowering.function, "this"),
    exp.Trim: _form(_Lowering.function, "this"),
    exp.Abs: _form(_Lowering.function, "this"),
    exp.DPipe: _form(_Lowering.function, "this", "expression", "safe"),
    exp.Substring: _form(_Lowering.function, "this", "start", "length"),
    exp.Coalesce: _form(_Lowering.function, "this", "expressions"),
    exp.Extract: _form(_Lowering.extract, "this", "expression"),
    **{node: _form(_Lowering.comparison, "this", "expression") for node in COMPARISONS},
    **{node: _form(_Lowering.arithmetic, "this", "expression", "typed", "safe") for node in ARITHMETIC},
}
