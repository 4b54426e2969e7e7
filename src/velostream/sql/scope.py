"""What names mean inside one SELECT: its sources, their columns, and how far that is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

_ORIGIN = "velostream_origin"
_SCOPE = "velostream_scope"
_INPUT = "velostream_input"
_STREAMS = "velostream_streams"


@dataclass(frozen=True)
class Columns:
    """Column names in order. Not `complete`: there may be more, or some are named in a way only Spark knows."""

    names: tuple[str, ...] = ()
    complete: bool = False
    system: tuple[str, ...] = ()
    """Those of the names that `*` leaves out."""

    @property
    def starred(self) -> tuple[str, ...]:
        """What `*` stands for."""
        return tuple(name for name in self.names if name not in self.system)

    def find(self, name: str) -> str | None:
        """The name as it is stored, asked for in any case of letters."""
        lower = name.lower()
        return next((known for known in self.names if known.lower() == lower), None)


@dataclass(frozen=True)
class Origin:
    """What a column reference was found to mean: a column of a source of one scope, maybe a field inside it."""

    scope: int
    source: str
    column: str
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """One relation visible in a FROM, under its alias."""

    alias: str
    columns: Columns
    input: str | None = None
    """Relation name of the `Input` when it is a table or source, None for a subquery, a CTE, a function."""
    hidden: bool = False
    """The right side of a SEMI or ANTI join: only its ON condition sees it."""


@dataclass(frozen=True)
class StarColumn:
    """One column that `*` stands for; no source when USING merged it out of both sides of a FULL join."""

    source: str | None
    name: str


@dataclass(frozen=True)
class Frame:
    """All that the clauses of one SELECT can name."""

    scope: int
    sources: tuple[Source, ...]
    star: tuple[StarColumn, ...] | None
    """What `*` means; None when some source's columns aren't known."""
    merged: Mapping[str, StarColumn] = field(default_factory=dict)
    """Columns of USING by lower-case name: unqualified they mean one value, not two."""
    hidden: tuple[StarColumn, ...] = ()
    """Columns that USING took out of `*`; `t.*` has them, in front."""
    outer: Frame | None = None
    outputs: Columns = field(default_factory=Columns)
    """Names of the select items, which HAVING and ORDER BY prefer."""
    labels: frozenset[str] = frozenset()
    """Lower-case names given with AS, which other select items and GROUP BY may use too."""

    def source(self, alias: str) -> Source | None:
        lower = alias.lower()
        return next((source for source in self.sources if source.alias.lower() == lower), None)

    def having(self, name: str, *, hidden: bool = False) -> list[Source]:
        """The sources that are known to have a column of that name."""
        return [s for s in self.sources if s.columns.find(name) is not None and (hidden or not s.hidden)]

    @property
    def complete(self) -> bool:
        return all(source.columns.complete for source in self.sources)

    def names(self) -> set[str]:
        return {name for source in self.sources for name in source.columns.names}

    def aliases(self) -> set[str]:
        return {source.alias for source in self.sources}


def set_origin(column: exp.Expr, origin: Origin) -> None:
    column.meta[_ORIGIN] = origin


def origin_of(column: exp.Expr) -> Origin | None:
    """What resolving found a column to mean; None when only Spark can tell."""
    found = column.meta.get(_ORIGIN)
    return found if isinstance(found, Origin) else None


def set_scope(select: exp.Expr, scope: int) -> None:
    select.meta[_SCOPE] = scope


def scope_of(select: exp.Expr) -> int | None:
    found = select.meta.get(_SCOPE)
    return found if isinstance(found, int) else None


def set_input(table: exp.Expr, relation: str) -> None:
    table.meta[_INPUT] = relation


def input_of(table: exp.Expr) -> str | None:
    """Relation name of the input a table node reads; None for a CTE's name or a function."""
    found = table.meta.get(_INPUT)
    return found if isinstance(found, str) else None


def set_streams(node: exp.Expr, streams: Iterable[str]) -> None:
    node.meta[_STREAMS] = frozenset(streams)


def without_meaning(tree: exp.Expr) -> exp.Expr:
    """A copy without what resolving has noted, to be resolved anew."""
    copied = tree.copy()
    for node in copied.walk():
        for note in (_ORIGIN, _SCOPE, _INPUT, _STREAMS):
            node.meta.pop(note, None)
    return copied


def streams_in(node: exp.Expr | None) -> frozenset[str]:
    """Relation names of the streams that a part of a query reads, through the names of CTEs too.

    A WITH clause alone reads nothing: its queries count where they are named.
    """
    if node is None:
        return frozenset()
    found: set[str] = set()
    for part in node.walk(prune=lambda n: isinstance(n, exp.With)):
        if isinstance(part, exp.Table):
            found |= part.meta.get(_STREAMS, frozenset())
    return frozenset(found)
