"""Streams kept as tables: for a view whose query needs all rows of a stream, and so is one over a table."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from velostream.sql.plan import Catalog, Relation, RelationKind
from velostream.sql.statements import OptionValue, SourceRef


class KeptStreams:
    """A catalog in which streams are the tables of their rows so far."""

    def __init__(self, catalog: Catalog, why: str, *, only: frozenset[str] | None = None) -> None:
        """`why` is what of the query needs all rows, for EXPLAIN; `only` names the streams, without it it is all."""
        self._catalog = catalog
        self._why = why
        self._only = only

    def relation(self, name: str) -> Relation | None:
        found = self._catalog.relation(name)
        return None if found is None else self._kept(found)

    def names(self) -> Sequence[str]:
        return self._catalog.names()

    def source(self, reference: SourceRef, options: tuple[OptionValue, ...]) -> Relation:
        return self._kept(self._catalog.source(reference, options))

    def option_names(self, reference: SourceRef | None) -> Sequence[str]:
        return self._catalog.option_names(reference)

    def python_aggregates(self) -> Collection[str]:
        return self._catalog.python_aggregates()

    def _kept(self, relation: Relation) -> Relation:
        if relation.kind is not RelationKind.STREAM or (self._only is not None and relation.name not in self._only):
            return relation
        reason = f"a stream, all of whose rows are kept as a table: {self._why} needs them"
        return replace(relation, kind=RelationKind.TABLE, reason=reason, kept=True)
