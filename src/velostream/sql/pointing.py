"""What an error needs to point at a place of the statement's text."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from velostream.sql.places import place_of
from velostream.sql.statements import Place


def pointer(node: exp.Expr | Place, text: str) -> dict[str, Any]:
    """Keyword arguments of a `SqlError` that points at a node or place of the text."""
    place = node if isinstance(node, Place) else place_of(node)
    return {"line": place.line, "column": place.column, "text": text}
