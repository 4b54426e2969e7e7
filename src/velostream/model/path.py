"""Paths into nested values as plain data, and their little language.

`positions.*.shares`, `**.price`, `orders[-1].amount`, `orders[1:3]`, `orders[price > 100].id`, `a."odd.name"`. A path
may end in a comparison that keeps only some of its values: `positions.*.shares > 100`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from velostream.errors import SqlError

Operand = Decimal | str | bool
"""What a comparison has on its right: a number, text, or a truth value."""


@dataclass(frozen=True, slots=True)
class Field:
    """`.name`: the field of a struct, the entry of a map."""

    name: str


@dataclass(frozen=True, slots=True)
class AnyField:
    """`.*`: every field of a struct, every entry of a map."""


@dataclass(frozen=True, slots=True)
class AnyDepth:
    """`.**`: the value itself and everything below it, through arrays too; at the end of a path without itself."""


@dataclass(frozen=True, slots=True)
class Element:
    """`[n]`: one element of an array; a negative number counts from its end."""

    number: int


@dataclass(frozen=True, slots=True)
class Slice:
    """`[a:b]`: elements from `a` to before `b`, as Python counts; `[*]` is all of them."""

    start: int | None = None
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds for a value that is comparable with the operand and compares so; never for NULL."""

    symbol: str
    operand: Operand

    def holds(self, value: Any) -> bool:
        if isinstance(value, bool) or isinstance(self.operand, bool):
            comparable = isinstance(value, bool) and isinstance(self.operand, bool)
        elif isinstance(self.operand, str):
            comparable = isinstance(value, str)
        else:
            comparable = isinstance(value, int | float | Decimal) and value == value  # noqa: PLR0124 - NaN is not
        return comparable and COMPARISONS[self.symbol](value, self.operand)


@dataclass(frozen=True, slots=True)
class Filter:
    """`[field > 100 AND …]`: elements whose fields compare so, all of the comparisons."""

    comparisons: tuple[tuple[tuple[str, ...], Comparison], ...]
    """Names from the element down to the field, and what must hold for it."""


Step = Field | AnyField | AnyDepth | Element | Slice | Filter


@dataclass(frozen=True, slots=True)
class Path:
    """Steps from a row to values, and what the values must compare to."""

    steps: tuple[Step, ...]
    comparison: Comparison | None = None


COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<symbol><=|>=|<>|!=|==|=|<|>)
      | (?P<stars>\*\*|\*)
      | (?P<number>-?\d+(?:\.\d+)?)
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
      | (?P<name>[^\W\d]\w*)
      | (?P<mark>[.\[\]:])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


def parse_path(text: str, *, offset: int = 0, whole: str | None = None) -> Path:
    """The path of a text; `SqlError` with the place of what isn't one.

    A path inside a longer text is parsed with its `offset` there, so that the place is right in the `whole`.
    """
    return _Parser(text, offset, text if whole is None else whole).path()


def path_text(path: Path) -> str:
    """The path as text, such that `parse_path` gives it back; its first step must be a name or a star."""
    comparison = "" if path.comparison is None else f" {_comparison_text(path.comparison)}"
    return "".join(map(_step_text, path.steps)).removeprefix(".") + comparison


def _step_text(step: Step) -> str:
    match step:
        case Field(name):
            return f".{_quoted(name)}"
        case AnyField():
            return ".*"
        case AnyDepth():
            return ".**"
        case Element(number):
            return f"[{number}]"
        case Slice(None, None):
            return "[*]"
        case Slice(start, stop):
            return f"[{'' if start is None else start}:{'' if stop is None else stop}]"
        case Filter(comparisons):
            parts = (f"{'.'.join(map(_quoted, names))} {_comparison_text(one)}" for names, one in comparisons)
            return f"[{' AND '.join(parts)}]"


def _comparison_text(comparison: Comparison) -> str:
    operand = comparison.operand
    match operand:
        case bool():
            shown = str(operand).upper()
        case str():
            shown = "'" + operand.replace("'", "''") + "'"
        case _:
            shown = format(operand, "f")
    return f"{comparison.symbol} {shown}"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Parser:
    def __init__(self, text: str, offset: int, whole: str) -> None:
        self._whole = whole
        self._end = offset + len(text)
        self._tokens = self._tokenised(text, offset)
        self._at = 0

    def path(self) -> Path:
        if not self._tokens:
            raise self._error("path is empty")
        steps = [self._first()]
        while (token := self._peek()) is not None and token.text in (".", "[") and token.kind == "mark":
            step = self._bracket() if self._next().text == "[" else self._named()
            if not (isinstance(step, AnyDepth) and isinstance(steps[-1], AnyDepth)):
                steps.append(step)
        comparison = None if self._peek() is None else self._comparison()
        if self._peek() is not None:
            raise self._error(f'"{self._next().text}" is not expected here', back=1)
        return Path(tuple(steps), comparison)

    def _first(self) -> Step:
        if (token := self._tokens[0]).kind == "mark" and token.text == "[":
            raise self._error("a path begins with a column")
        return self._named()

    def _named(self) -> Step:
        token = self._next()
        match token.kind:
            case "stars":
                return AnyDepth() if token.text == "**" else AnyField()
            case "name" | "quoted":
                return Field(_unquoted(token))
        raise self._error("a name, * or ** is expected here", back=1)

    def _bracket(self) -> Step:
        token = self._peek()
        if token is not None and token.kind == "stars" and token.text == "*":
            self._next()
            return self._closed(Slice())
        if token is not None and token.kind in ("name", "quoted"):
            return self._closed(self._filter())
        start = self._integer()
        if self._accept(":"):
            return self._closed(Slice(start, self._integer()))
        if start is None:
            raise self._error("a number, *, a slice or a comparison is expected in brackets")
        return self._closed(Element(start))

    def _filter(self) -> Filter:
        comparisons = [self._field_comparison()]
        while (token := self._peek()) is not None and token.kind == "name" and token.text.upper() == "AND":
            self._next()
            comparisons.append(self._field_comparison())
        return Filter(tuple(comparisons))

    def _field_comparison(self) -> tuple[tuple[str, ...], Comparison]:
        names = [self._field_name()]
        while self._accept("."):
            names.append(self._field_name())
        return tuple(names), self._comparison()

    def _field_name(self) -> str:
        token = self._next()
        if token.kind not in ("name", "quoted"):
            raise self._error("the name of a field is expected here", back=1)
        return _unquoted(token)

    def _comparison(self) -> Comparison:
        symbol = self._next()
        if symbol.kind != "symbol":
            raise self._error(f'a comparison is expected here, not "{symbol.text}"', back=1)
        operand = self._next()
        match operand.kind:
            case "number":
                return Comparison(symbol.text, Decimal(operand.text))
            case "text":
                return Comparison(symbol.text, operand.text[1:-1].replace("''", "'"))
            case "name" if operand.text.upper() in ("TRUE", "FALSE"):
                return Comparison(symbol.text, operand.text.upper() == "TRUE")
        raise self._error(f'"{operand.text}" is neither a number nor quoted text', hint="text is written 'so'", back=1)

    def _integer(self) -> int | None:
        token = self._peek()
        if token is None or token.kind != "number":
            return None
        if "." in token.text:
            raise self._error("an element has a whole number")
        return int(self._next().text)

    def _closed(self, step: Step) -> Step:
        if not self._accept("]"):
            raise self._error('the bracket is not closed: "]" is expected here')
        return step

    def _accept(self, mark: str) -> bool:
        token = self._peek()
        if token is None or token.kind != "mark" or token.text != mark:
            return False
        self._at += 1
        return True

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> _Token:
        token = self._peek()
        if token is None:
            raise self._error("the path ends too early")
        self._at += 1
        return token

    def _error(self, message: str, *, hint: str | None = None, back: int = 0) -> SqlError:
        """An error at the token to come, or `back` tokens before it."""
        at = self._at - back
        token = self._tokens[at] if at < len(self._tokens) else None
        column, width = (self._end + 1, 1) if token is None else (token.column, len(token.text))
        return SqlError(message, column=column, width=width, text=self._whole, hint=hint, code="invalid-path")

    def _tokenised(self, text: str, offset: int) -> list[_Token]:
        tokens = []
        at = 0
        end = len(text.rstrip())
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise SqlError(
                    f'"{text[at]}" has no meaning in a path',
                    column=offset + at + 1,
                    text=self._whole,
                    hint='names with other characters are quoted: a."odd.name"',
                    code="invalid-path",
                )
            kind = str(match.lastgroup)
            tokens.append(_Token(kind, match.group(kind), offset + match.start(kind) + 1))
            at = match.end()
        return tokens


def _unquoted(token: _Token) -> str:
    if token.kind == "name":
        return token.text
    quote = token.text[0]
    return token.text[1:-1].replace(quote * 2, quote)
