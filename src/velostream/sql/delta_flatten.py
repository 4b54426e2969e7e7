"""A subquery in FROM that only filters, joins and projects, written as part of the query that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from velostream.sql.functions import is_generator
from velostream.sql.grouping import bare_item
from velostream.sql.naming import alias as aliased
from velostream.sql.naming import output_name, plain_column
from velostream.sql.outputs import expand_star
from velostream.sql.resolve import Resolution
from velostream.sql.scope import Origin, input_of, origin_of, scope_of, set_origin, set_scope
from velostream.sql.shape import is_aggregated, outermost_select, window_functions

_INNER = ("expressions", "from_", "joins", "where", "hint")
_FROM_EXTRAS = ("pivots", "sample", "joins", "laterals", "limit", "offset", "order", "with_")


class _NotFlat(Exception):  # noqa: N818 - not an error: the query stays as it is
    pass


@dataclass(frozen=True)
class _Item:
    """A column of the inner query and what it stands for."""

    name: str
    expression: exp.Expr


def flattened(tree: exp.Expr, resolution: Resolution) -> exp.Expr:
    """The query without the subqueries that its outermost FROM consists of, or the query as it is; one gives what the
    other gives, under the same names.
    """
    found = tree
    while True:
        try:
            found = _flattened_once(found, resolution)
        except _NotFlat:
            return found


def _flattened_once(tree: exp.Expr, resolution: Resolution) -> exp.Expr:
    copied = tree.copy()
    select = outermost_select(copied)
    scope = scope_of(select) if select is not None else None
    if select is None or scope is None or select.args.get("from_") is None:
        raise _NotFlat
    if select.args.get("joins") or select.args.get("laterals"):
        raise _NotFlat
    inner, name = _inner_of(select)
    items = _inner_items(inner, resolution)
    outer = [part for item in select.expressions for part in _named(item, items)]
    select.set("expressions", outer)
    for clause, value in list(select.args.items()):
        if clause in ("from_", "with_", "hint"):
            continue
        replaced = [_over_inner(part, scope, name, items) for part in (value if isinstance(value, list) else [value])]
        select.set(clause, replaced if isinstance(value, list) else replaced[0])
    inner_scope = scope_of(inner)
    if inner_scope is None:
        raise _NotFlat
    _check_names(select, {column.lower() for column in resolution.frames[inner_scope].names()})
    conditions = [part.args["where"].this for part in (inner, select) if part.args.get("where") is not None]
    for clause in ("from_", "joins"):
        select.set(clause, inner.args.get(clause))
    select.set("where", exp.Where(this=exp.and_(*conditions, copy=False)) if conditions else None)
    set_scope(select, inner_scope)
    return copied


def _inner_of(select: exp.Select) -> tuple[exp.Select, str]:
    """The SELECT that the FROM consists of, written there or in a WITH item read nowhere else; and its alias."""
    item = select.args["from_"].this
    written = item.args.get("alias")
    if any(map(item.args.get, _FROM_EXTRAS)) or (written is not None and written.args.get("columns")):
        raise _NotFlat
    body: exp.Expr | None = None
    if isinstance(item, exp.Subquery):
        body = item.this
    elif isinstance(item, exp.Table) and input_of(item) is None:
        body = _taken_cte(select, str(item.name).lower())
    if not isinstance(body, exp.Select) or any(v for clause, v in body.args.items() if clause not in _INNER):
        raise _NotFlat
    if body.args.get("from_") is None or is_aggregated(body) or next(window_functions(body), None) is not None:
        raise _NotFlat
    return body, str(item.alias_or_name).lower()


def _taken_cte(select: exp.Select, name: str) -> exp.Expr | None:
    clause = select.args.get("with_")
    if clause is None or clause.args.get("recursive"):
        return None
    (cte,) = [cte for cte in clause.expressions if str(cte.alias).lower() == name] or [None]
    reads = [table for table in select.find_all(exp.Table) if str(table.name).lower() == name]
    if cte is None or len(reads) != 1 or cte.args["alias"].args.get("columns"):
        return None
    clause.set("expressions", [other for other in clause.expressions if other is not cte])
    if not clause.expressions:
        select.set("with_", None)
    body: exp.Expr = cte.this
    return body


def _inner_items(inner: exp.Select, resolution: Resolution) -> Mapping[str, _Item]:
    """What the inner query's columns stand for, by lower-case name."""
    scope = scope_of(inner)
    if scope is None:
        raise _NotFlat
    frame = resolution.frames[scope]
    found: dict[str, _Item] = {}
    for item in inner.expressions:
        if not item.is_star:
            pairs = [(output_name(item), bare_item(item))]
        else:
            pairs = []
            for column in expand_star(item, frame) or ():
                if column.source is None:
                    raise _NotFlat
                reference = plain_column(column.name, table=column.source)
                set_origin(reference, Origin(scope, column.source, column.name))
                pairs.append((column.name, reference))
        for name, expression in pairs:
            unknown = any(origin_of(column) is None for column in expression.find_all(exp.Column))
            if name.lower() in found or unknown or any(is_generator(node) for node in expression.walk()):
                raise _NotFlat
            found[name.lower()] = _Item(name, expression)
    return found


def _named(item: exp.Expr, items: Mapping[str, _Item]) -> list[exp.Expr]:
    if not item.is_star:
        return [item if isinstance(item, exp.Alias | exp.Aliases) else aliased(item, output_name(item))]
    star = item.this if isinstance(item, exp.Column) else item
    if any(star.args.get(part) for part in ("except_", "replace", "rename")):
        raise _NotFlat
    return [aliased(inner.expression.copy(), inner.name) for inner in items.values()]


def _over_inner(node: object, scope: int, name: str, items: Mapping[str, _Item]) -> object:
    """A part of the outer query with its columns replaced by what they stand for."""
    if not isinstance(node, exp.Expr):
        return node

    def replaced(part: exp.Expr) -> exp.Expr:
        origin = origin_of(part) if isinstance(part, exp.Column) else None
        if origin is None or origin.scope != scope or origin.source.lower() != name:
            return part
        found = items.get(origin.column.lower())
        if found is None or origin.fields:
            raise _NotFlat
        expression = found.expression
        return expression.copy() if isinstance(expression, exp.Column) else exp.paren(expression.copy(), copy=False)

    return node.transform(replaced, copy=False)


def _check_names(select: exp.Select, known: set[str]) -> None:
    """Names of select items that other clauses use must not now mean columns of the inner tables."""
    for clause, value in select.args.items():
        if clause in ("from_", "with_", "joins"):
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, exp.Expr) and any(
                origin_of(column) is None and str(column.name).lower() in known for column in part.find_all(exp.Column)
            ):
                raise _NotFlat
