"""What of a query's WHERE the tables it reads can answer for, so that rows that can't matter are never fetched."""

from __future__ import annotations

from functools import reduce

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from velostream.errors import SqlError
from velostream.model.expression import Call, Expression
from velostream.model.schema import Schema
from velostream.sql.lower import NotLowerable, lower

_INNER = ("", "INNER", "CROSS")


def pushed_condition(sql: str, relation: str, schema: Schema) -> Expression | None:
    """A condition that every row of the relation fulfils which the query, plain Spark SQL, can show; None for all rows.

    The query must still be run as it is: the condition only spares it rows. It is taken from the AND-ed parts of the
    outermost WHERE that speak of this relation alone, where the relation stands once and no outer join fills its
    columns with NULLs.
    """
    try:
        tree = sqlglot.parse_one(sql, dialect="spark")
    except SqlglotError:
        return None
    where = tree.args.get("where") if isinstance(tree, exp.Select) else None
    if not isinstance(tree, exp.Select) or where is None or tree.args.get("with_"):
        return None
    named = [table for table in tree.find_all(exp.Table) if table.name.lower() == relation.lower()]
    if len(named) != 1 or not _keeps_its_rows(tree, named[0]):
        return None
    alias, alone = named[0].alias_or_name, not tree.args.get("joins") and not tree.args.get("laterals")
    lowered = [_lowered(part, alias, schema, alone=alone) for part in _conjuncts(where.this)]
    parts = [part for part in lowered if part is not None]
    return reduce(lambda left, right: Call("and", (left, right)), parts) if parts else None


def _keeps_its_rows(select: exp.Select, table: exp.Table) -> bool:
    """Whether the table is joined such that a row of it which WHERE refuses has no effect on others."""
    joins: list[exp.Join] = select.args.get("joins") or []
    if any(join.method or join.side.upper() not in ("", "LEFT") for join in joins):
        return False
    from_ = select.args.get("from_")
    if from_ is not None and from_.this is table:
        return True
    own = next((join for join in joins if join.this is table), None)
    return own is not None and not own.side and own.kind.upper() in _INNER


def _conjuncts(tree: exp.Expr) -> list[exp.Expr]:
    tree = tree.unnest()
    return [*_conjuncts(tree.left), *_conjuncts(tree.right)] if isinstance(tree, exp.And) else [tree]


def _lowered(part: exp.Expr, alias: str, schema: Schema, *, alone: bool) -> Expression | None:
    """The part as the table evaluates it; None when it speaks of others too, or needs Spark."""
    if part.find(exp.Query) is not None:
        return None
    columns = list(part.find_all(exp.Column))
    ours = all(column.table.lower() == alias.lower() if column.table else alone for column in columns)
    if not columns or not ours:
        return None
    try:
        return lower(part, schema, qualifiers=[alias])
    except (NotLowerable, SqlError):
        return None
