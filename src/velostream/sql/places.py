"""Where a node of a tree stands in the text."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.statements import Place


def place_of(node: exp.Expr) -> Place:
    """The place of a node: its own, else that of the first part of it that has one."""
    if "line" in node.meta:
        return _place(node)
    places = [_place(part) for part in node.walk() if "line" in part.meta]
    return min(places, key=lambda place: (place.line, place.column), default=Place())


def mark_places(tree: exp.Expr) -> None:
    """Give every column and table node the place of its first word: `meta["line"]` and `meta["col"]`, from 1.

    sqlglot knows places of words only, and besides as offsets, which mean nothing once a tree has left its text.
    """
    for node in tree.walk():
        node.meta.pop("start", None)
        node.meta.pop("end", None)
    for node in tree.find_all(exp.Column, exp.Table, exp.Dot):
        if "line" not in node.meta:
            place = place_of(node)
            node.meta["line"], node.meta["col"] = place.line, place.column


def _place(node: exp.Expr) -> Place:
    return Place(node.meta["line"], node.meta["col"])
