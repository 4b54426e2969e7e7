"""Text to statements.

`parse_script` reads any number of statements, `parse_statement` exactly one, `parse_expression` a condition or value.
Whatever the text, the outcome is statements or a `SqlError` with its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TypeVar

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from velostream.errors import ParseError
from velostream.sql.dialect import URI, Velostream
from velostream.sql.reading import UnreadableError
from velostream.sql.statement_grammar import StatementGrammar
from velostream.sql.statements import Statement
from velostream.sql.uris import MaskedText, mask_uris

T = TypeVar("T")

MAX_NESTING = 40
"""Brackets within brackets. Far beyond what people write, and well within Python's stack."""

_OPENING = frozenset((TokenType.L_PAREN, TokenType.L_BRACKET))
_CLOSING = {TokenType.R_PAREN: TokenType.L_PAREN, TokenType.R_BRACKET: TokenType.L_BRACKET}
_CLAUSE_STARTS = frozenset(
    (
        TokenType.FROM,
        TokenType.WHERE,
        TokenType.GROUP_BY,
        TokenType.HAVING,
        TokenType.ORDER_BY,
        TokenType.UNION,
        TokenType.INTERSECT,
        TokenType.EXCEPT,
    )
)
_NO_ITEM_AFTER_COMMA = frozenset((TokenType.COMMA, *_CLOSING)) | _CLAUSE_STARTS
_NO_ITEM_BEFORE_COMMA = frozenset((TokenType.SELECT, *_OPENING)) | _CLAUSE_STARTS
_FOREIGN = (AttributeError, TypeError, ValueError, LookupError, ArithmeticError, AssertionError)
"""What sqlglot raises on some texts that are no SQL at all."""


def parse_script(text: str) -> tuple[Statement, ...]:
    """All statements of a text, separated by `;`. Places count from the beginning of the text."""
    masked = mask_uris(text)
    return tuple(_parse(masked, tokens) for tokens in _statements(masked))


def parse_statement(text: str) -> Statement:
    """The one statement of a text; `ParseError` when there is none or more than one."""
    masked = mask_uris(text)
    groups = list(_statements(masked))
    if not groups:
        raise masked.error("there is no statement in the text", offset=0)
    if len(groups) > 1:
        raise masked.error(
            "expected one statement, found another one",
            offset=groups[1][0].start,
            hint="run several statements as a script",
        )
    return _parse(masked, groups[0])


def parse_expression(text: str) -> exp.Expression:
    """A condition or value by itself, such as the `where` of a table's calls."""
    masked = mask_uris(text)
    groups = list(_statements(masked))
    if len(groups) != 1:
        raise masked.error("expected one expression", offset=groups[1][0].start if groups else 0)
    return _read(masked, groups[0], StatementGrammar.lone_expression)


def _parse(masked: MaskedText, tokens: list[Token]) -> Statement:
    return _read(masked, tokens, StatementGrammar.statement)


def _read(masked: MaskedText, tokens: list[Token], reader: Callable[[StatementGrammar], T]) -> T:
    """Let a reader read all the tokens; whatever goes wrong becomes a `ParseError` with its place."""
    _check_brackets(masked, tokens)
    grammar = StatementGrammar(masked, tokens)
    try:
        return reader(grammar)
    except UnreadableError as trouble:
        raise _explained(grammar, trouble) from None
    except RecursionError:
        raise masked.error("the statement is nested too deeply", offset=tokens[0].start) from None
    except (SqlglotError, *_FOREIGN) as error:
        raise grammar.unexpected(grammar.reached) from error


def _statements(masked: MaskedText) -> Iterator[list[Token]]:
    """The tokens of each statement, with places of their own and URIs marked."""
    group: list[Token] = []
    for token in _tokens(masked):
        if token.token_type != TokenType.SEMICOLON:
            group.append(token)
        elif group:
            yield group
            group = []
    if group:
        yield group


def _tokens(masked: MaskedText) -> list[Token]:
    try:
        tokens = Velostream().tokenize(masked.masked)
    except SqlglotError as error:
        raise masked.error("the text can't be read as SQL", offset=0) from error
    for token, following in zip_longest(tokens, tokens[1:]):
        place = masked.positions.place(token.start)
        token.line, token.col = place.line, place.column
        if token.start in masked.uris:
            token.token_type = URI
        elif token.token_type == TokenType.RAW_STRING:
            token.token_type = TokenType.STRING
        elif token.token_type == TokenType.WINDOW and following and following.token_type == TokenType.L_PAREN:
            token.token_type = TokenType.VAR
        elif token.token_type == TokenType.VAR and not token.text.isascii():
            # Spark reads such names in quotes only.
            token.token_type = TokenType.IDENTIFIER
        if token.token_type != TokenType.HINT:
            token.comments = []
    return tokens


def _check_brackets(masked: MaskedText, tokens: list[Token]) -> None:
    """Refuse what a parser that skips gaps lets pass: brackets without partner or too deep, commas without items."""
    open_brackets: list[Token] = []
    previous: Token | None = None
    for token in tokens:
        kind = token.token_type
        if kind in _OPENING:
            open_brackets.append(token)
        elif kind in _CLOSING and (not open_brackets or _CLOSING[kind] != open_brackets.pop().token_type):
            raise masked.error(f'"{token.text}" closes no bracket', offset=token.start)
        if len(open_brackets) > MAX_NESTING:
            raise masked.error(f"brackets are nested more than {MAX_NESTING} deep", offset=token.start)
        if previous is not None and (
            (kind == TokenType.COMMA and previous.token_type in _NO_ITEM_BEFORE_COMMA)
            or (previous.token_type == TokenType.COMMA and kind in _NO_ITEM_AFTER_COMMA)
        ):
            raise masked.error(
                "a comma without an item", offset=previous.start if kind != TokenType.COMMA else token.start
            )
        previous = token
    if open_brackets:
        raise masked.error(f'"{open_brackets[-1].text}" is never closed', offset=open_brackets[-1].start)
    if previous is not None and previous.token_type == TokenType.COMMA:
        raise masked.error("a comma without an item after it", offset=previous.start)


def _explained(grammar: StatementGrammar, trouble: UnreadableError) -> ParseError:
    """A complaint of sqlglot's in our words."""
    if trouble.at_end:
        return grammar.refuse("the statement ends too early")
    return grammar.unexpected(trouble.token)
