"""Rewrites of a resolved query into SQL that Spark understands and answers as SQL says.

One rule per file, named after what it does; each takes a tree and gives the changed one (it may change it in place).
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from velostream.sql.rules.name_lone_texts import name_lone_texts
from velostream.sql.rules.rename_aggregates import is_renamed, rename_aggregates
from velostream.sql.rules.rewrite_any_all import rewrite_any_all
from velostream.sql.rules.rewrite_in_as_value import rewrite_in_as_value
from velostream.sql.rules.sort_texts_ourselves import is_ordered_text, sort_texts_ourselves

RULES: tuple[Callable[[exp.Expr], exp.Expr], ...] = (
    rename_aggregates,
    sort_texts_ourselves,
    rewrite_any_all,
    rewrite_in_as_value,
    name_lone_texts,
)
"""In this order: `= ANY` becomes IN, which the next rule may still have to rewrite; GROUP_CONCAT becomes LISTAGG."""


def is_rewritten(node: exp.Expr) -> bool:
    """Whether a rule may change a node, and so the text Spark would name a column by."""
    return isinstance(node, exp.Query) or is_renamed(node) or is_ordered_text(node)


def apply_rules(tree: exp.Expr) -> exp.Expr:
    """The tree after all rules; the one given may be changed."""
    for rule in RULES:
        tree = rule(tree)
    return tree
