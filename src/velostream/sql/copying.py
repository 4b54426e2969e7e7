"""A CREATE TABLE that merely copies a source: a row per record, so a record may be the newest value of its key."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from velostream.sql.naming import output_name
from velostream.sql.shape import from_items, is_aggregated, nested_queries, outermost_select
from velostream.sql.statements import OptionValue, Query


def copied_key(query: Query, options: Sequence[OptionValue], *, relation: str) -> tuple[str, ...] | None:
    """The columns of `relation` by which the rows of a table that copies it are known, none if it declares no key.

    None when the query is no copy of it, or when its key is computed: then each record is an event.
    """
    select = outermost_select(query.tree)
    if query.table_key is None or select is None or not is_copy(query, select, relation):
        return None
    option = next((option.value for option in options if option.name.lower() == "key"), "")
    named = query.key_items or query.table_key or [part.strip() for part in option.split(",") if part.strip()]
    alias = str(from_items(select)[0].alias_or_name).lower()
    found = [_column_behind(name, select, alias) for name in named]
    return tuple(column for column in found if column is not None) if all(found) else None


def is_copy(query: Query, select: exp.Select, relation: str) -> bool:
    """Whether each row of `relation` gives one row or none by itself."""
    items = from_items(select)
    if len(items) != 1 or not isinstance(items[0], exp.Table) or query.window is not None:
        return False
    written = ".".join(str(part.name) for part in items[0].parts)
    reshaped = ("laterals", "distinct", "limit", "offset", "with_", "qualify")
    return (
        written.lower() == relation.lower()
        and not any(map(select.args.get, reshaped))
        and not is_aggregated(select)
        and not any(nested_queries(select))
    )


def _column_behind(output: str, select: exp.Select, alias: str) -> str | None:
    """The source's column that an output passes on as it is."""
    for item in select.expressions:
        if not item.is_star and output_name(item).lower() == output.lower():
            bare = item.this if isinstance(item, exp.Alias) else item
            plain = isinstance(bare, exp.Column) and str(bare.table).lower() in ("", alias) and not bare.args.get("db")
            return str(bare.name) if plain else None
    return output if any(item.is_star for item in select.expressions) else None
