"""Our SQL for sqlglot: Spark's dialect with the tokens and the function table that keep a text's meaning.

sqlglot is built to translate between dialects, so it reads many functions into forms of its own and writes them back in
others. We want a tree that says exactly what was written, for Spark to judge. Therefore only functions whose own form
survives the round trip (and that planning asks about) are typed; every other call stays a call by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokenizer_core import TokenType

URI = TokenType.HIVE_TOKEN_STREAM
"""Type of a masked URI's token: one that no rule of sqlglot's asks for, so a URI can stand only where we take it."""

_OF_ONE_ARGUMENT: dict[str, type[exp.Func]] = {
    "SUM": exp.Sum,
    "AVG": exp.Avg,
    "MIN": exp.Min,
    "MAX": exp.Max,
    "LOWER": exp.Lower,
    "UPPER": exp.Upper,
    "ABS": exp.Abs,
}
_OF_NO_ARGUMENT: dict[str, type[exp.Func]] = {
    "CURRENT_TIMESTAMP": exp.CurrentTimestamp,
    # In Spark now() differs between replays of a batch, current_timestamp() does not.
    "NOW": exp.CurrentTimestamp,
    "CURRENT_USER": exp.CurrentUser,
    "ROW_NUMBER": exp.RowNumber,
}
_OF_ANY_NUMBER: dict[str, type[exp.Func]] = {"COUNT": exp.Count, "COALESCE": exp.Coalesce}

_Builder = Callable[[list[exp.Expr]], exp.Expr]


def _builder(name: str, function: type[exp.Func], *, least: int, most: int | None) -> _Builder:
    """Makes the typed call; a wrong number of arguments stays a call by name, for Spark to refuse."""

    def build(arguments: list[exp.Expr]) -> exp.Expr:
        if len(arguments) < least or (most is not None and len(arguments) > most):
            return exp.Anonymous(this=name, expressions=arguments)
        return function.from_arg_list(arguments)

    return build


def _operator(name: str, operator: type[exp.Binary]) -> _Builder:
    """Makes the operator that the function is another spelling of, as sqlglot writes it by the function."""

    def build(arguments: list[exp.Expr]) -> exp.Expr:
        if len(arguments) != 2:
            return exp.Anonymous(this=name, expressions=arguments)
        return operator(this=arguments[0], expression=arguments[1])

    return build


FUNCTIONS: dict[str, _Builder] = {
    "SHIFTLEFT": _operator("SHIFTLEFT", exp.BitwiseLeftShift),
    "SHIFTRIGHT": _operator("SHIFTRIGHT", exp.BitwiseRightShift),
    **{name: _builder(name, function, least=1, most=1) for name, function in _OF_ONE_ARGUMENT.items()},
    **{name: _builder(name, function, least=0, most=0) for name, function in _OF_NO_ARGUMENT.items()},
    **{name: _builder(name, function, least=1, most=None) for name, function in _OF_ANY_NUMBER.items()},
}

SYNTAX_FUNCTIONS = (
    "CAST",
    "TRY_CAST",
    "EXTRACT",
    "SUBSTRING",
    "SUBSTR",
    "OVERLAY",
)
"""Functions whose arguments have a grammar of their own (`CAST(x AS t)`, `EXTRACT(f FROM x)`)."""

HINTS = (
    "BROADCAST",
    "BROADCASTJOIN",
    "MAPJOIN",
    "MERGE",
    "SHUFFLEMERGE",
    "MERGEJOIN",
    "SHUFFLE_HASH",
    "SHUFFLE_REPLICATE_NL",
)


class Tokenizer(Spark.Tokenizer):
    """Double-quoted words are names, not strings; no statement is swallowed whole as a command."""

    QUOTES: ClassVar[list[Any]] = ["'"]
    IDENTIFIERS: ClassVar[list[Any]] = ["`", '"']
    STRING_ESCAPES: ClassVar[list[str]] = ["'", "\\"]
    RAW_STRINGS: ClassVar[list[Any]] = [("r'", "'"), ("R'", "'")]
    COMMANDS: ClassVar[set[TokenType]] = set()
    KEYWORDS: ClassVar[dict[str, TokenType]] = {
        **Spark.Tokenizer.KEYWORDS,
        "MATCH_CONDITION": TokenType.MATCH_CONDITION,
        "SETMINUS": TokenType.EXCEPT,
    }


class Velostream(Spark):
    """The dialect texts are read in. Trees are written in `spark`."""

    Tokenizer = Tokenizer


def is_keyword(word: str) -> bool:
    """Whether the dialect has another use for a word than as a name."""
    return word.upper() in _KEYWORDS


_KEYWORDS = frozenset(word for phrase in Tokenizer.KEYWORDS for word in phrase.upper().split())
