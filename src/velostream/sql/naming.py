"""The names of a SELECT's outputs, as Spark gives them."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.functions import is_generator
from velostream.sql.paths import is_wildcard_path, path_name
from velostream.sql.spark_text import spark_text


def output_name(item: exp.Expr) -> str:
    """The name of one select item: its alias, its column's last part, or Spark's text of the expression.

    Text that Spark would spell differently in a detail is still a stable name; the plan writes it down as an alias
    wherever the expression is rewritten, so every way of running the query gives the same names.
    """
    if isinstance(item, exp.Alias):
        return str(item.alias)
    if isinstance(item, exp.Column):
        return str(item.name)
    if isinstance(item, exp.Dot):
        return str(item.expression.name)
    if is_wildcard_path(item):
        return path_name(item)
    if isinstance(item, exp.Paren):
        return output_name(item.this)
    if isinstance(item, exp.Cast) and isinstance(item.this, exp.Column):
        return str(item.this.name)
    return spark_text(item)


def is_named(item: exp.Expr) -> bool:
    """Whether the name is certain: an alias or a column, not text made of an expression."""
    return (isinstance(item, exp.Alias | exp.Column | exp.Dot) and not item.is_star) or is_wildcard_path(item)


def named(item: exp.Expr) -> exp.Expr:
    """The item with its output name written down; stars and generators, whose names are several, as they are."""
    if isinstance(item, exp.Alias | exp.Aliases) or item.is_star or is_generator(item):
        return item
    if isinstance(item, exp.Column) and not item.table:
        return item
    return alias(item, output_name(item))


def alias(node: exp.Expr, name: str) -> exp.Alias:
    """`node AS name`, the name quoted where Spark needs it."""
    return exp.Alias(this=node, alias=identifier(name))


def identifier(name: str) -> exp.Identifier:
    """An identifier that Spark reads as exactly that name."""
    return exp.Identifier(this=name, quoted=True)


def plain_column(name: str, *, table: str | None = None) -> exp.Column:
    """A column by its stored name, of a relation whose name is ours (so never quoted)."""
    return exp.Column(this=identifier(name), table=exp.Identifier(this=table, quoted=False) if table else None)
