"""ORDER BY … LIMIT taken off a query: what is left can be followed, and its first rows are the view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from velostream.errors import present
from velostream.sql.canonical import canonical
from velostream.sql.delta_steps import NotDelta
from velostream.sql.grouping import bare_item
from velostream.sql.naming import output_name
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import without_parentheses
from velostream.sql.plan import Order, TopPlan
from velostream.sql.resolve import Resolution
from velostream.sql.scope import Frame, input_of, origin_of, scope_of
from velostream.sql.shape import from_items, outermost_select


def cut_top(tree: exp.Expr, resolution: Resolution) -> tuple[exp.Expr, TopPlan | None]:
    """The query without its LIMIT, and what the LIMIT says; `NotDelta` when the order isn't one of selected columns."""
    copied = tree.copy()
    select = outermost_select(copied)
    limit = select.args.get("limit") if select is not None else None
    if select is None or limit is None:
        return tree, None
    value = limit.expression if isinstance(limit, exp.Limit) else None
    if not isinstance(value, exp.Literal) or value.is_string or not str(value.this).isdigit():
        raise NotDelta("LIMIT is no plain number")
    scope = scope_of(select)
    offset = select.args.get("offset")
    skipped = offset.expression if isinstance(offset, exp.Offset) else None
    if scope is None or (offset is not None and not _reads_few(select, resolution)):
        raise NotDelta("OFFSET sees all rows at once")
    if skipped is not None and (not isinstance(skipped, exp.Literal) or not str(skipped.this).isdigit()):
        raise NotDelta("OFFSET is no plain number")
    order = select.args.get("order")
    parts = order.expressions if order is not None else ()
    outputs = list(_outputs(select, resolution.frames[scope]))
    passed_over = 0 if skipped is None else int(str(skipped.this))
    top = TopPlan(tuple(_order(part, outputs) for part in parts), int(str(value.this)), passed_over)
    select.set("offset", None)
    select.set("order", None)
    select.set("limit", None)
    return copied, top


def _reads_few(select: exp.Select, resolution: Resolution) -> bool:
    """Whether all it reads is a part of the query that ends with the last row wanted."""
    relations = [input_of(item) for item in from_items(select)]
    parts = [resolution.input(relation).part for relation in relations if relation is not None]
    return len(parts) == len(relations) == 1 and parts[0] is not None and present(parts[0].delta).top is not None


def _outputs(select: exp.Select, frame: Frame) -> Iterator[tuple[str, object]]:
    """Names of the columns, each with the form of what it is."""
    for item in select.expressions:
        if not item.is_star:
            yield output_name(item), canonical(bare_item(item))
            continue
        for column in expand_star(item, frame) or ():
            yield column.name, (column.source, column.name)


def _order(part: exp.Expr, outputs: Sequence[tuple[str, object]]) -> Order:
    if not isinstance(part, exp.Ordered) or part.args.get("with_fill"):
        raise NotDelta("ORDER BY sees all rows at once")
    name = _ordered_name(without_parentheses(part.this), outputs)
    if name is None:
        raise NotDelta(f"ORDER BY {part.this.sql(dialect='spark')} is not selected, and LIMIT sees all rows at once")
    return Order(name, bool(part.args.get("desc")), bool(part.args.get("nulls_first")))


def _ordered_name(node: exp.Expr, outputs: Sequence[tuple[str, object]]) -> str | None:
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit():
        ordinal = int(str(node.this))
        return outputs[ordinal - 1][0] if 1 <= ordinal <= len(outputs) else None
    origin = origin_of(node) if isinstance(node, exp.Column) else None
    wanted: list[object] = [canonical(node)]
    if origin is not None and not origin.fields:
        wanted.append((origin.source, origin.column))
    if isinstance(node, exp.Column) and not node.table:
        named = [name for name, _ in outputs if name.lower() == str(node.name).lower()]
        if len(named) == 1 and origin is None:
            return named[0]
    return next((name for name, form in outputs if form in wanted), None)
