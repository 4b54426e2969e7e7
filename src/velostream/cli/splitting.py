"""A script cut into its statements, as text."""

from __future__ import annotations

from sqlglot.errors import SqlglotError
from sqlglot.tokens import Token, TokenType

from velostream.errors import SqlError
from velostream.sql.dialect import Velostream
from velostream.sql.uris import mask_uris


def split_script(text: str) -> list[str]:
    """The statements of a script, each preceded by blanks instead of what stands before it.

    So a place in a statement's error counts from the beginning of the script. Text that can't be cut comes back as
    one piece, for the parser to complain about.
    """
    tokens = _tokens(text)
    if tokens is None:
        return [text]
    pieces: list[str] = []
    first: Token | None = None
    for token in tokens:
        if token.token_type is not TokenType.SEMICOLON:
            first = first or token
        elif first is not None:
            pieces.append(_blank(text[: first.start]) + text[first.start : token.start])
            first = None
    if first is not None:
        pieces.append(_blank(text[: first.start]) + text[first.start :])
    return pieces


def is_complete(text: str) -> bool:
    """Whether a text typed so far ends with a `;` that is not within a string, a comment or a URI.

    A text that no further line can mend is complete as well: it is time to hear what is wrong with it.
    """
    try:
        masked = mask_uris(text).masked
    except SqlError as error:
        return "never closed" not in error.message and text.rstrip().endswith(";")
    try:
        tokens = Velostream().tokenize(masked)
    except SqlglotError:
        return text.rstrip().endswith(";")
    return bool(tokens) and tokens[-1].token_type is TokenType.SEMICOLON


def is_blank(text: str) -> bool:
    """Whether there is nothing but white space, comments and semicolons."""
    tokens = _tokens(text)
    return tokens is not None and all(token.token_type is TokenType.SEMICOLON for token in tokens)


def _tokens(text: str) -> list[Token] | None:
    """The tokens of a text, or nothing when it can't be cut into tokens."""
    try:
        return Velostream().tokenize(mask_uris(text).masked)
    except (SqlglotError, SqlError):
        return None


def _blank(text: str) -> str:
    return "".join(character if character in "\n\r\t" else " " for character in text)
