"""An expression as Spark writes it when it has to make a column name of it."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from velostream.sql.parentheses import without_parentheses
from velostream.sql.paths import is_wildcard_path, path_as_written

_OPERATORS: dict[type[exp.Expr], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
    exp.IntDiv: "div",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.NullSafeEQ: "<=>",
    exp.And: "AND",
    exp.Or: "OR",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
}


_PLAIN_CALLS = (
    exp.Coalesce,
    exp.Lower,
    exp.Upper,
    exp.Abs,
    exp.Count,
    exp.Sum,
    exp.Avg,
    exp.Min,
    exp.Max,
)


def spark_text(node: exp.Expr) -> str:
    """Spark's text of the common expressions; of the others sqlglot's, which is as stable a name."""
    writer = _WRITERS.get(type(node))
    if writer is not None:
        return writer(node)
    operator = _OPERATORS.get(type(node))
    if operator is not None:
        return f"({spark_text(node.this)} {operator} {spark_text(node.expression)})"
    if isinstance(node, exp.Func) and not isinstance(node, exp.Cast) and _is_plain_call(node):
        return _plain_call(node)
    return str(_unquoted(node).sql(dialect="spark", normalize_functions="lower"))


def _plain_call(node: exp.Expr) -> str:
    name = type(node).sql_names()[0] if isinstance(node, _PLAIN_CALLS) else node.name
    return f"{str(name).lower()}({', '.join(spark_text(argument) for argument in node.iter_expressions())})"


def _is_plain_call(node: exp.Func) -> bool:
    """Whether sqlglot keeps a call's name and its arguments' order, so that they can be written one by one."""
    return isinstance(node, _PLAIN_CALLS)


def _unquoted(node: exp.Expr) -> exp.Expr:
    copied = node.copy()
    for column in list(copied.find_all(exp.Column)):
        for part in ("table", "db", "catalog"):
            column.set(part, None)
    for identifier in copied.find_all(exp.Identifier):
        identifier.set("quoted", False)
    return copied


def _not(node: exp.Expr) -> str:
    inner = without_parentheses(node.this)
    if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
        return f"({spark_text(inner.this)} IS NOT NULL)"
    return f"(NOT {spark_text(inner)})"


def _case(node: exp.Expr) -> str:
    subject = f" {spark_text(node.this)}" if node.this is not None else ""
    branches = "".join(
        f" WHEN {spark_text(branch.this)} THEN {spark_text(branch.args['true'])}" for branch in node.args["ifs"]
    )
    default = node.args.get("default")
    otherwise = f" ELSE {spark_text(default)}" if default is not None else ""
    return f"CASE{subject}{branches}{otherwise} END"


def _in(node: exp.Expr) -> str:
    if node.args.get("query") is not None or not node.expressions:
        return str(_unquoted(node).sql(dialect="spark"))
    return f"({spark_text(node.this)} IN ({', '.join(spark_text(member) for member in node.expressions)}))"


def _distinct(node: exp.Expr) -> str:
    return "DISTINCT " + ", ".join(spark_text(part) for part in node.expressions)


_WRITERS: dict[type[exp.Expr], Callable[[exp.Expr], str]] = {
    exp.Paren: lambda node: spark_text(node.this),
    exp.Alias: lambda node: spark_text(node.this),
    exp.Column: lambda node: "*" if node.is_star else str(node.name),
    exp.Literal: lambda node: str(node.this),
    exp.Star: lambda node: "1" if isinstance(node.parent, exp.Count) else "*",
    exp.Neg: lambda node: f"-{node.this}" if isinstance(node.this, exp.Literal) else f"(- {spark_text(node.this)})",
    exp.Not: _not,
    exp.Is: lambda node: f"({spark_text(node.this)} IS {spark_text(node.expression)})",
    exp.Case: _case,
    exp.In: _in,
    exp.Between: lambda node: (
        f"between({spark_text(node.this)}, {spark_text(node.args['low'])}, {spark_text(node.args['high'])})"
    ),
    exp.Like: lambda node: f"{spark_text(node.this)} LIKE {spark_text(node.expression)}",
    exp.DPipe: lambda node: f"concat({spark_text(node.this)}, {spark_text(node.expression)})",
    exp.Anonymous: lambda node: path_as_written(node) if is_wildcard_path(node) else _plain_call(node),
    exp.Distinct: _distinct,
    exp.Filter: lambda node: f"{spark_text(node.this)} FILTER (WHERE {spark_text(node.expression.this)})",
}
