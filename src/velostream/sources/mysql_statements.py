"""Statements in MySQL's log, and what they do to the rows of one table.

Rows that are inserted, updated or deleted are told by events of their own. What stands in the log as a statement either
says nothing about rows, empties the table, or changes rows in a way that nobody tells.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

_TOKEN = re.compile(
    r"""/\*(?!M?!).*?\*/ | (?:--\s|\#)[^\n]* | '(?:[^'\\]|\\.|'')*'  # comments and texts say nothing
    | /\*M?!\d* | \*/                                                    # around what only some servers execute
    | `(?P<quoted>(?:[^`]|``)*)` | "(?P<doubly>(?:[^"]|"")*)"
    | (?P<word>[^\W\d][\w$]*|\d+[\w$]*) | (?P<mark>\S)""",
    re.DOTALL | re.VERBOSE,
)
_REWRITING = frozenset({"MODIFY", "CHANGE", "CONVERT", "RENAME", "PARTITION", "DISCARD", "IMPORT", "DROP", "IGNORE"})
"""Words of an ALTER TABLE after which rows may not be what they were."""
_HARMLESS_DROP = frozenset({"INDEX", "KEY", "FOREIGN", "CONSTRAINT", "CHECK", "DEFAULT"})
_BY_STATEMENT = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "RENAME"})


class Effect(StrEnum):
    """What a statement does to the rows of a table."""

    NONE = "none"
    EMPTIED = "emptied"
    UNTOLD = "untold"
    """It may change rows, and no event says which."""


@dataclass(frozen=True, slots=True)
class LoggedTable:
    """A table as the log names it."""

    schema: str
    name: str
    any_case: bool = False
    """Whether the server takes names that differ by case for one."""

    def effect_of(self, statement: str, *, schema: str) -> Effect:
        """What a statement does that was given while `schema` was the current database."""
        tokens = [token for match in _TOKEN.finditer(statement) if (token := _token(match)) is not None]
        words = [token.word for token in tokens]
        if not words:
            return Effect.NONE
        if words[0] == "DROP" and words[1:2] in (["DATABASE"], ["SCHEMA"]):
            dropped = any(self._same(token.name, self.schema) for token in tokens[2:])
            return Effect.UNTOLD if dropped else Effect.NONE
        if not self._is_named(tokens, schema):
            return Effect.NONE
        match words[0]:
            case "TRUNCATE":
                return Effect.EMPTIED
            case "ALTER" if "TABLE" in words[:4]:
                return Effect.UNTOLD if _rewrites(words) else Effect.NONE
            case "CREATE" if words[1:4] == ["OR", "REPLACE", "TABLE"]:
                return Effect.UNTOLD if self._is_named(tokens[4:7], schema) else Effect.NONE
            case "DROP" if words[1:2] == ["TABLE"]:
                return Effect.UNTOLD
            case "SET" if words[1:2] == ["STATEMENT"]:
                # MariaDB's settings for the one statement that follows.
                return Effect.UNTOLD
            case first if first in _BY_STATEMENT:
                return Effect.UNTOLD
        return Effect.NONE

    def _is_named(self, tokens: list[_Token], schema: str) -> bool:
        for at, token in enumerate(tokens):
            if not self._same(token.name, self.name):
                continue
            qualified = at >= 2 and tokens[at - 1].name == "."
            if self._same(tokens[at - 2].name if qualified else schema, self.schema):
                return True
        return False

    def _same(self, one: str, other: str) -> bool:
        return one.lower() == other.lower() if self.any_case else one == other


@dataclass(frozen=True, slots=True)
class _Token:
    name: str
    word: str
    """In capitals; empty for what stands in quotes, which is no word of the language."""


def _token(match: re.Match[str]) -> _Token | None:
    if match["word"] is not None:
        return _Token(match["word"], match["word"].upper())
    if match["mark"] is not None:
        return _Token(match["mark"], match["mark"])
    if match["quoted"] is not None:
        return _Token(match["quoted"].replace("``", "`"), "")
    if match["doubly"] is not None:
        # A name if the session's mode says so, else a text.
        return _Token(match["doubly"].replace('""', '"'), "")
    return None


def _rewrites(words: list[str]) -> bool:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return any(word in _REWRITING and not (word == "DROP" and after in _HARMLESS_DROP) for word, after in pairs)
