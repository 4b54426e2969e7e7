"""SQL in two wordings: as we are asked, and as Spark is asked for the same, where its grammar or its answer differs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from velostream.testing.fuzz.values import Family


@dataclass(frozen=True)
class Text:
    """A piece of SQL in both wordings, which are mostly the same."""

    ours: str
    sparks: str

    @staticmethod
    def of(text: str | Text) -> Text:
        return text if isinstance(text, Text) else Text(text, text)


def sql(template: str, *parts: str | Text) -> Text:
    """A template with `{}` for each part, filled in both wordings."""
    texts = [Text.of(part) for part in parts]
    return Text(template.format(*(text.ours for text in texts)), template.format(*(text.sparks for text in texts)))


def joined(separator: str, parts: Iterable[str | Text]) -> Text:
    texts = [Text.of(part) for part in parts]
    return Text(separator.join(text.ours for text in texts), separator.join(text.sparks for text in texts))


@dataclass(frozen=True)
class Expression:
    """An expression and what may be done with its value. `wide` decimals have no digits left for arithmetic."""

    text: Text
    family: Family
    wide: bool = False


@dataclass(frozen=True)
class Column:
    """A column of a relation."""

    name: str
    family: Family
    wide: bool = False


@dataclass(frozen=True)
class Relation:
    """Something that a FROM may name: a table, a view, a feed."""

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()


@dataclass(frozen=True)
class QueryText:
    """A whole query and the columns it gives."""

    text: Text
    columns: tuple[Column, ...]
