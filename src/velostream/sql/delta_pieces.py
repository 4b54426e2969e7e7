"""Pieces of a query under names of their own, and how what is left of the query reads them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from velostream.sql.naming import plain_column
from velostream.sql.resolve import Resolution
from velostream.sql.scope import input_of

VALUE = "value"


@dataclass(frozen=True)
class Piece:
    """A part of a query under the name that what is left reads it by."""

    name: str
    tree: exp.Expr


@dataclass(frozen=True)
class Cut:
    """What is left of a query, and the pieces it reads, each of which may read those before it."""

    tree: exp.Expr
    pieces: tuple[Piece, ...]


class Pieces:
    """Pieces of one cut, under names that nothing else in the query has."""

    def __init__(self, tree: exp.Expr) -> None:
        tables = list(tree.find_all(exp.Table))
        self._taken = {str(name).lower() for table in tables for name in (table.name, table.alias)}
        self.found: list[Piece] = []

    def add(self, tree: exp.Expr) -> str:
        number = len(self.found)
        while f"part_{number}" in self._taken:
            number += 1
        name = f"part_{number}"
        self._taken.add(name)
        self.found.append(Piece(name, tree))
        return name

    def cut(self, tree: exp.Expr) -> Cut | None:
        return Cut(tree, tuple(self.found)) if self.found else None


def is_piece(item: exp.Expr, resolution: Resolution) -> bool:
    """Whether an item of a FROM is what was cut before."""
    relation = input_of(item)
    return relation is not None and resolution.input(relation).part is not None


def value_of(name: str, column: str = VALUE) -> exp.Subquery:
    """The column of a piece that has one row."""
    return exp.Subquery(this=exp.Select(expressions=[plain_column(column)], from_=from_piece(name)))


def from_piece(name: str) -> exp.From:
    return exp.From(this=piece_table(name, name))


def piece_table(name: str, called: str) -> exp.Table:
    """A piece as an item of a FROM, under an alias."""
    return exp.Table(this=exp.to_identifier(name), alias=exp.TableAlias(this=exp.to_identifier(called)))
