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

_AGGREGATES: dict[str, type[exp.Func]] = {
    "COUNT": exp.Count,
    "SUM": exp.Sum,
    "AVG": exp.Avg,
    "MIN": exp.Min,
    "MAX": exp.Max,
}
_PLAIN: dict[str, type[exp.Func]] = {
    "COALESCE": exp.Coalesce,
    "LOWER": exp.Lower,
    "UPPER": exp.Upper,
    "ABS": exp.Abs,
    "ROW_NUMBER": exp.RowNumber,
}


def _typed(function: type[exp.Func]) -> Callable[[list[exp.Expr]], exp.Expr]:
    return function.from_arg_list


def _current_timestamp(arguments: list[exp.Expr]) -> exp.Expr:
    """`now()` differs between replays of a batch in Spark, `current_timestamp()` does not."""
    return exp.CurrentTimestamp() if not arguments else exp.Anonymous(this="now", expressions=arguments)


FUNCTIONS: dict[str, Callable[[list[exp.Expr]], exp.Expr]] = {
    **{name: _typed(function) for name, function in (_AGGREGATES | _PLAIN).items()},
    "NOW": _current_timestamp,
    "CURRENT_TIMESTAMP": _current_timestamp,
}

SYNTAX_FUNCTIONS = (
    "CAST",
    "TRY_CAST",
    "EXTRACT",
    "TRIM",
    "SUBSTRING",
    "SUBSTR",
    "POSITION",
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
    }


class Velostream(Spark):
    """The dialect texts are read in. Trees are written in `spark`."""

    Tokenizer = Tokenizer


def is_keyword(word: str) -> bool:
    """Whether the dialect has another use for a word than as a name."""
    return word.upper() in _KEYWORDS


_KEYWORDS = frozenset(word for phrase in Tokenizer.KEYWORDS for word in phrase.upper().split())
