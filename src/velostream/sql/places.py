"""Where a node of a tree stands in the text."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from velostream.sql.statements import Place


def place_of(node: exp.Expr) -> Place:
    """The place of a node: its own, else that of the first part of it that has one."""
    if node.meta_get("line") is not None:
        return _place(node)
    places = [_place(part) for part in node.walk() if part.meta_get("line") is not None]
    return min(places, key=lambda place: (place.line, place.column), default=Place())


def mark_places(nodes: Iterable[exp.Expr]) -> None:
    """Give every column and table node the place of its first word: `meta["line"]` and `meta["col"]`, from 1.

    sqlglot knows places of words only, and besides as offsets, which mean nothing once a tree has left its text.
    """
    for node in nodes:
        if node.meta_get("start") is not None:
            del node.meta["start"]
            node.meta.pop("end", None)
        if isinstance(node, exp.Column | exp.Table) and node.meta_get("line") is None:
            place = place_of(node)
            node.meta["line"], node.meta["col"] = place.line, place.column


def _place(node: exp.Expr) -> Place:
    return Place(node.meta["line"], node.meta["col"])
