"""Queries whose columns follow those of their source: which ones can, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from velostream.errors import SqlError, ValidationError
from velostream.sql.copying import is_copy
from velostream.sql.pointing import pointer
from velostream.sql.shape import outermost_select
from velostream.sql.statements import Place, Query

if TYPE_CHECKING:
    from velostream.sql.plan import Relation
    from velostream.sql.resolve import Resolution


def as_grown(relation: Relation, query: Query, *, name: str) -> Relation:
    """What the query reads under that name: one of which nothing is said grows where the query is a copy of it."""
    return replace(relation, grows=True) if relation.may_grow and _passes_all_on(query, name) else relation


def check_growing(query: Query, resolution: Resolution, *, text: str) -> list[SqlError]:
    """Problems for sources whose further columns are to be added by a query that can't give them on."""
    return [
        ValidationError(
            f'columns of "{one.target.name}" that come later can\'t be added to this result',
            detail="schema.evolution = add is for CREATE TABLE … AS SELECT * FROM one source, with or without a WHERE",
            hint="make a table of that form and read it here, or leave 'schema.evolution' = 'add' out",
            code="cannot-add-columns",
            **pointer(Place(), text),
        )
        for one in resolution.inputs
        if one.target.grows
        and not _passes_all_on(query, one.target.name if one.source is None else one.source.relation)
    ]


def _passes_all_on(query: Query, name: str) -> bool:
    """Whether the query makes a table of all columns of what it reads under that name."""
    select = outermost_select(query.tree)
    if query.table_key is None or select is None or not is_copy(query, select, name):
        return False
    items = select.expressions
    return len(items) == 1 and isinstance(items[0], exp.Star) and not any(items[0].args.values())
