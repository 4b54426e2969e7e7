"""What the rules share: where a condition stands, and asking a subquery about its one column."""

from __future__ import annotations

from sqlglot import exp

MEMBER = "velostream_member"
VALUE = "velostream_value"


def keeps_only_true(node: exp.Expr) -> bool:
    """Whether NULL and FALSE are the same where a condition stands: it only decides which rows stay.

    So it is under AND and OR alone up to a WHERE, a HAVING or the ON of an inner join.
    """
    child: exp.Expr = node
    parent = node.parent
    while isinstance(parent, exp.And | exp.Or | exp.Paren):
        child, parent = parent, parent.parent
    if isinstance(parent, exp.Where):
        return not isinstance(parent.parent, exp.Filter)
    if isinstance(parent, exp.Join):
        return parent.args.get("on") is child and not parent.args.get("side")
    return isinstance(parent, exp.Having)


def some_member(query: exp.Expr, condition: exp.Expr | None) -> exp.Exists:
    """EXISTS (SELECT 1 FROM (query) AS member(value) [WHERE condition])."""
    inner = query.this if isinstance(query, exp.Subquery) and not query.alias else query
    alias = exp.TableAlias(this=exp.to_identifier(MEMBER), columns=[exp.to_identifier(VALUE)])
    select = exp.Select(
        expressions=[exp.Literal.number(1)], from_=exp.From(this=exp.Subquery(this=inner.copy(), alias=alias))
    )
    if condition is not None:
        select.set("where", exp.Where(this=condition))
    return exp.Exists(this=select)


def member_value() -> exp.Column:
    """The column of the subquery inside `some_member`."""
    return exp.column(VALUE, table=MEMBER)


def is_null(value: exp.Expr) -> exp.Is:
    operand = value if isinstance(value, exp.Column | exp.Literal | exp.Func) else exp.paren(value, copy=False)
    return exp.Is(this=operand, expression=exp.Null())


def truth_of_some(query: exp.Expr, value: exp.Expr, condition: exp.Expr) -> exp.Case:
    """SQL's three-valued answer to "is the condition true for some member".

    TRUE if it is for one; else NULL if a comparison was with NULL, on either side; else FALSE, so for an empty set too.
    """
    unknown = exp.or_(
        exp.and_(is_null(value.copy()), some_member(query, None), copy=False),
        some_member(query, is_null(member_value())),
        copy=False,
    )
    return exp.Case(
        ifs=[
            exp.If(this=some_member(query, condition), true=exp.true()),
            exp.If(this=unknown, true=exp.Cast(this=exp.Null(), to=exp.DataType.build("boolean"))),
        ],
        default=exp.false(),
    )
