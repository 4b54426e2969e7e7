"""`(SELECT 'a')` as `(SELECT 'a' AS …)`: Spark's grammar takes the first for a literal of the type SELECT."""

from __future__ import annotations

from sqlglot import exp

_NAME = "value"


def name_lone_texts(tree: exp.Expr) -> exp.Expr:
    """Name the text that a subquery without a FROM begins with, where a value or a condition stands.

    There nobody sees the name. A subquery in FROM is read rightly, and its columns are named by the text.
    """
    for select in tree.find_all(exp.Select):
        first = select.expressions[0] if select.expressions else None
        if isinstance(first, exp.Literal) and first.is_string and not select.args.get("from_") and _is_value(select):
            first.replace(exp.alias_(first.copy(), _NAME))
    return tree


def _is_value(select: exp.Select) -> bool:
    around = select.parent
    if isinstance(around, exp.Subquery):
        around = around.parent
    return around is not None and not isinstance(
        around, exp.From | exp.Join | exp.CTE | exp.SetOperation | exp.Subquery
    )
