"""The key of a query's result."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from velostream.errors import ResolveError, SqlError
from velostream.sql.canonical import canonical
from velostream.sql.functions import is_generator
from velostream.sql.grouping import bare_item, group_expressions, grouping_construct
from velostream.sql.naming import output_name
from velostream.sql.outputs import expand_star
from velostream.sql.plan import RelationKind
from velostream.sql.pointing import pointer
from velostream.sql.resolve import Resolution
from velostream.sql.scope import Columns, Frame, origin_of, scope_of
from velostream.sql.shape import from_items, is_aggregated, outermost_select, reads_input
from velostream.sql.statements import OptionValue, Place, Query
from velostream.sql.window_calls import START, field_of, is_window_call


def declared_key(query: Query, options: Sequence[OptionValue]) -> tuple[tuple[str, Place], ...]:
    """Names of PRIMARY KEY items, else of the option `key`, with their places."""
    if query.key_items:
        return tuple((name, Place()) for name in query.key_items)
    option = next((option for option in options if option.name.lower() == "key"), None)
    if option is None:
        return ()
    return tuple((name.strip(), option.place) for name in option.value.split(",") if name.strip())


def check_key(declared: Sequence[tuple[str, Place]], outputs: Columns, *, text: str) -> list[SqlError]:
    """Problems for key columns that the result doesn't have."""
    return [
        ResolveError.unknown("column", name, known=outputs.names, **pointer(place, text))
        for name, place in declared
        if outputs.complete and outputs.find(name) is None
    ]


def key_of_result(resolution: Resolution, declared: Sequence[tuple[str, Place]]) -> tuple[str, ...]:
    """The key: declared, else the GROUP BY columns, else the one of the table that is copied, else none."""
    outputs = resolution.outputs
    if declared:
        return tuple(outputs.find(name) or name for name, _ in declared)
    select = outermost_select(resolution.tree)
    scope = scope_of(select) if select is not None else None
    if select is None or scope is None:
        return ()
    frame = resolution.frames[scope]
    if any(is_generator(part) for item in select.expressions for part in item.walk()):
        return ()
    if is_aggregated(select):
        return _group_key(select, frame)
    return _copied_key(select, frame, resolution)


def _group_key(select: exp.Select, frame: Frame) -> tuple[str, ...]:
    if grouping_construct(select) is not None or any(item.is_star for item in select.expressions):
        return ()
    forms = [canonical(bare_item(item)) for item in select.expressions]
    names: list[str] = []
    for group in group_expressions(select, frame):
        form = canonical(group)
        if is_window_call(group) and form not in forms:
            form = canonical(field_of(group, START))
        if form not in forms:
            return ()
        names.append(output_name(select.expressions[forms.index(form)]))
    # A column that is grouped by twice is one.
    return tuple(dict.fromkeys(names))


def _copied_key(select: exp.Select, frame: Frame, resolution: Resolution) -> tuple[str, ...]:
    items = from_items(select)
    if len(items) != 1 or not reads_input(items[0]) or select.args.get("laterals"):
        return ()
    (source,) = frame.sources
    target = resolution.input(source.input or "").target
    if target.kind is RelationKind.STREAM or target.schema is None or not target.schema.key:
        return ()
    names: dict[str, str] = {}
    for item in select.expressions:
        for column, name in _copied_columns(item, frame):
            names.setdefault(column.lower(), name)
    key = [names.get(column.lower()) for column in target.schema.key]
    return tuple(name for name in key if name is not None) if all(key) else ()


def _copied_columns(item: exp.Expr, frame: Frame) -> list[tuple[str, str]]:
    """Stored and output name of the columns an item passes on as they are."""
    if item.is_star:
        return [(column.name, column.name) for column in expand_star(item, frame) or ()]
    bare = bare_item(item)
    origin = origin_of(bare) if isinstance(bare, exp.Column) else None
    if origin is None or origin.fields or origin.scope != frame.scope:
        return []
    return [(origin.column, output_name(item))]
