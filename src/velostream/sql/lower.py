"""Lower a SQL expression to `model.Expression`, the form that tables evaluate without Spark.

Only what is sure to give Spark's answer is lowered: both sides of an operator get one type by explicit casts as ANSI
mode coerces them, constants are folded exactly, and an operation that can fail stands only where Spark would evaluate
it for every row too (so never behind an AND, an OR or a CASE that might spare it). Anything else is `NotLowerable`,
which is no error: the caller asks Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import pyarrow as pa
from sqlglot import exp

from velostream.model.expression import Expression, Literal
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
        handler = _HANDLERS.get(type(node))
        if handler is None:
            raise NotLowerable(f"{node.key.upper()} is evaluated by Spark")
        return handler(self, node)


_FUNCTIONS = (
    exp.Anonymous,
    exp.Lower,
    exp.Upper,
    exp.Length,
    exp.Trim,
    exp.Abs,
    exp.Concat,
    exp.DPipe,
    exp.Substring,
    exp.Coalesce,
    exp.Nullif,
)
_HANDLERS: dict[type, Callable[..., Expression]] = {
    exp.Literal: _Lowering.literal,
    exp.RawString: lambda _, node: Literal(str(node.this), pa.string()),
    exp.HexString: lambda _, node: Literal(
        bytes.fromhex(str(node.this).zfill(-(-len(str(node.this)) // 2) * 2)), pa.binary()
    ),
    exp.Boolean: lambda _, node: Literal(bool(node.this), pa.bool_()),
    exp.Null: lambda *_: Literal(None, pa.null()),
    exp.Paren: lambda self, node: self.lower(node.this),
    exp.Column: _Lowering.column,
    exp.And: _Lowering.logic,
    exp.Or: _Lowering.logic,
    exp.Not: _Lowering.negation,
    exp.NullSafeNEQ: _Lowering.distinct,
    exp.Between: _Lowering.between,
    exp.In: _Lowering.membership,
    exp.Like: _Lowering.matching,
    exp.RegexpLike: _Lowering.matching,
    exp.Is: _Lowering.being,
    exp.Neg: _Lowering.minus,
    exp.Cast: _Lowering.explicit_cast,
    exp.TryCast: _Lowering.explicit_cast,
    exp.Case: _Lowering.case,
    exp.If: _Lowering.if_function,
    **dict.fromkeys(COMPARISONS, _Lowering.comparison),
    **dict.fromkeys(ARITHMETIC, _Lowering.arithmetic),
    **dict.fromkeys(_FUNCTIONS, _Lowering.function),
}
