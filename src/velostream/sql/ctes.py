"""Common table expressions of inner queries, made safe to be moved outward.

sqlglot writes Spark SQL with every WITH at the top, which is the same query only while each name means one thing in all
of it. So an inner name that means something else elsewhere gets another one here, and its uses its old name as alias.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import cast

from sqlglot import exp

from velostream.sql.grammar import SOURCE


def separate_inner_ctes(tree: exp.Expr, nodes: list[exp.Expr]) -> None:
    """Rename inner CTEs whose names are used elsewhere; the nodes are all of the tree, parents first."""
    inner = [node for node in nodes if isinstance(node, exp.With) and node.parent is not tree]
    if not inner:
        return
    ctes = Counter(node.alias.lower() for node in nodes if isinstance(node, exp.CTE))
    tables = Counter(_name(table) for table in _tables(nodes))
    taken = {*ctes, *tables}
    for with_ in reversed(inner):
        for position, cte in enumerate(with_.expressions):
            name = cte.alias.lower()
            uses = list(_uses(with_, position, name))
            if ctes[name] == 1 and tables[name] == len(uses):
                continue
            fresh = _fresh(name, taken)
            taken.add(fresh)
            ctes[name] -= 1
            tables[name] -= len(uses)
            for table in uses:
                if not table.alias:
                    table.set("alias", exp.TableAlias(this=table.this.copy()))
                table.set("this", exp.Identifier(this=fresh, quoted=table.this.args.get("quoted")))
            cte.args["alias"].set("this", exp.Identifier(this=fresh, quoted=cte.args["alias"].this.args.get("quoted")))


def _uses(with_: exp.With, position: int, name: str) -> Iterable[exp.Table]:
    """Tables of a query that mean its CTE at that position: those after it, in itself only when it is recursive."""
    owner = cast("exp.Expr", with_.parent)
    seen_from = position if with_.args.get("recursive") else position + 1
    scopes = [cte.this for cte in with_.expressions[seen_from:]]
    hidden = {id(node) for cte in with_.expressions for node in cte.walk()}
    for table in _tables(owner.walk()):
        if _name(table) == name and id(table) not in hidden:
            yield table
    for scope in scopes:
        yield from (table for table in _tables(scope.walk()) if _name(table) == name)


def _tables(nodes: Iterable[exp.Expr]) -> Iterable[exp.Table]:
    return (
        node
        for node in nodes
        if isinstance(node, exp.Table)
        and isinstance(node.this, exp.Identifier)
        and not node.db
        and node.meta_get(SOURCE) is None
    )


def _name(table: exp.Table) -> str:
    return str(table.name).lower()


def _fresh(name: str, taken: set[str]) -> str:
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"
