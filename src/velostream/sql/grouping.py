"""What a GROUP BY groups by."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.functions import aggregate_calls
from velostream.sql.parentheses import without_parentheses
from velostream.sql.scope import Frame, origin_of


def group_expressions(select: exp.Select, frame: Frame | None) -> list[exp.Expr]:
    """What GROUP BY groups by: expressions, with ordinals and names of select items put in, GROUP BY ALL spelt out.

    Only sources known by `frame` win over a select item of the same name, as in Spark.
    """
    group = select.args.get("group")
    if group is None:
        return []
    if group.args.get("all"):
        return [bare_item(item) for item in select.expressions if not aggregate_calls(item)]
    parts = [part.expressions if isinstance(part, exp.Tuple) else [part] for part in group.expressions]
    return [_meant(without_parentheses(expression), select, frame) for part in parts for expression in part]


def bare_item(item: exp.Expr) -> exp.Expr:
    """A select item without its alias and parentheses."""
    inner: exp.Expr = item.this if isinstance(item, exp.Alias) else item
    return without_parentheses(inner)


def grouping_construct(select: exp.Select) -> str | None:
    """ROLLUP, CUBE or GROUPING SETS if GROUP BY has one of them."""
    group = select.args.get("group")
    if group is None:
        return None
    for name, kind in (("ROLLUP", exp.Rollup), ("CUBE", exp.Cube), ("GROUPING SETS", exp.GroupingSets)):
        if group.find(kind) is not None:
            return name
    return None


def _meant(expression: exp.Expr, select: exp.Select, frame: Frame | None) -> exp.Expr:
    if isinstance(expression, exp.Literal) and not expression.is_string and str(expression.this).isdigit():
        ordinal = int(str(expression.this))
        if 1 <= ordinal <= len(select.expressions) and not select.expressions[ordinal - 1].is_star:
            return bare_item(select.expressions[ordinal - 1])
    if isinstance(expression, exp.Column) and not expression.table and origin_of(expression) is None:
        name = str(expression.name)
        from_source = frame is not None and (frame.having(name) or name.lower() in frame.merged)
        for item in select.expressions:
            if not from_source and isinstance(item, exp.Alias) and str(item.alias).lower() == name.lower():
                return bare_item(item)
    return expression
