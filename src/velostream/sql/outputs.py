"""The columns a SELECT gives."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.naming import is_named, output_name
from velostream.sql.scope import Columns, Frame, StarColumn


def outputs_of(select: exp.Select, frame: Frame) -> Columns:
    names: list[str] = []
    complete = True
    for item in select.expressions:
        if isinstance(item, exp.Aliases):
            names += [str(part.name) for part in item.expressions]
        elif item.is_star:
            expanded = expand_star(item, frame)
            complete = complete and expanded is not None
            names += [column.name for column in expanded or ()]
        else:
            names.append(output_name(item))
            complete = complete and is_named(item)
    return Columns(tuple(names), complete=complete)


def labels_of(select: exp.Select) -> frozenset[str]:
    labels = {str(item.alias).lower() for item in select.expressions if isinstance(item, exp.Alias)}
    for item in select.expressions:
        if isinstance(item, exp.Aliases):
            labels |= {str(part.name).lower() for part in item.expressions}
    return frozenset(labels)


def expand_star(item: exp.Expr, frame: Frame) -> tuple[StarColumn, ...] | None:
    """What `*`, `t.*` or `* EXCEPT (…)` stands for; None when only Spark can tell."""
    star = item.this if isinstance(item, exp.Column) else item
    if not isinstance(star, exp.Star) or star.args.get("replace") or star.args.get("rename"):
        return None
    columns = frame.star
    if isinstance(item, exp.Column):
        columns = None if item.args.get("db") else _columns_of(str(item.table), frame)
    if columns is None:
        return None
    dropped = {str(part.name).lower() for part in star.args.get("except_") or ()}
    return tuple(column for column in columns if column.name.lower() not in dropped)


def _columns_of(alias: str, frame: Frame) -> tuple[StarColumn, ...] | None:
    """What `alias.*` stands for; its columns of USING come first, as Spark has it."""
    source = frame.source(alias)
    if source is None or not source.columns.complete or (frame.merged and frame.star is None):
        return None
    if not frame.merged:
        return tuple(StarColumn(source.alias, name) for name in source.columns.starred)
    return tuple(column for column in (*frame.hidden, *(frame.star or ())) if column.source == source.alias)
