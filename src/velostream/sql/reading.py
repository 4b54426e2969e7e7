"""What every rule of our grammar is made of: places, errors, names, options and durations over sqlglot's parser."""

from __future__ import annotations

from typing import NoReturn

from sqlglot import exp
from sqlglot.errors import ParseError as SqlglotParseError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from velostream.errors import ParseError
from velostream.sql.dialect import URI, Velostream
from velostream.sql.statements import Name, OptionValue, Place
from velostream.sql.uris import MaskedText

_QUOTED = frozenset((TokenType.STRING, TokenType.RAW_STRING, TokenType.IDENTIFIER))
_UNITS = frozenset(
    (
        *("MS", "MILLIS", "MILLISECOND", "MILLISECONDS"),
        *("S", "SEC", "SECS", "SECOND", "SECONDS"),
        *("M", "MIN", "MINS", "MINUTE", "MINUTES"),
        *("H", "HR", "HRS", "HOUR", "HOURS"),
        *("D", "DAY", "DAYS"),
    )
)


def shortened(text: str, *, limit: int = 40) -> str:
    """A text fit for a message of one line."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


class UnreadableError(SqlglotParseError):
    """What sqlglot can't parse, before it is known whether another way of reading succeeds."""

    def __init__(self, message: str, token: Token, *, at_end: bool) -> None:
        super().__init__(message)
        self.message = message
        self.token = token
        self.at_end = at_end


class Reader(SparkParser):
    """sqlglot's parser over the tokens of one statement; `text` is the whole script they come from.

    Methods named `_parse…` belong to sqlglot and are called by it; our own are named after what they read.
    """

    def __init__(self, text: MaskedText, tokens: list[Token]) -> None:
        super().__init__(dialect=Velostream())
        self.text = text
        self.sql = text.original
        self._chunks = [tokens]
        self._advance_chunk()

    def raise_error(self, message: str, token: Token | None = None) -> NoReturn:
        raise UnreadableError(message, token or self.reached, at_end=not token and not self._curr)

    @property
    def reached(self) -> Token:
        """The token that is read next, at the end the last one."""
        return self._curr or self._prev

    def refuse(self, message: str, *, token: Token | None = None, hint: str | None = None) -> ParseError:
        """The error for something of ours that is wrong at a token, the next one by default.

        It is no error of sqlglot's: no other way of reading is tried.
        """
        at = token or self._curr
        if not at:
            return self.text.error(message, offset=self._prev.end + 1, hint=hint)
        return self.text.error(message, offset=at.start, width=at.end - at.start + 1, hint=hint)

    def unexpected(self, token: Token) -> ParseError:
        """The error for a token that fits nowhere."""
        if token.token_type == URI:
            return self.refuse("a source can't stand here", token=token, hint="name it after FROM, JOIN, USING or INTO")
        return self.refuse(f'unexpected "{shortened(self._written(token, token))}"', token=token)

    def place(self, token: Token | None = None) -> Place:
        return self.text.positions.place((token or self.reached).start)

    def _written(self, first: Token, last: Token) -> str:
        return self.text.original[first.start : last.end + 1]

    def _at_words(self, *words: str) -> bool:
        return bool(self._match_text_seq(*words, advance=False))

    def column_name(self) -> Name:
        """A column that is set, perhaps qualified by its table."""
        if self._next.token_type == TokenType.DOT:
            self._advance(2)
        return self.name("a column")

    def name(self, what: str) -> Name:
        token = self._curr
        identifier = self._parse_id_var(any_token=False)
        if not isinstance(identifier, exp.Identifier):
            raise self.refuse(f"expected the name of {what}")
        if not identifier.name.strip():
            raise self.refuse("a name is empty", token=token)
        if self._match(TokenType.DOT):
            raise self.refuse("a name has one part only", token=token, hint='quote a name with dots: "a.b"')
        return Name(identifier.name, self.place(token))

    def _at_options(self) -> bool:
        return bool(self._match_pair(TokenType.WITH, TokenType.L_PAREN, advance=False))

    def _options(self) -> tuple[OptionValue, ...]:
        """WITH ('name' = 'value', …); names and values quoted with ' or " or not at all."""
        self._advance(2)
        return self._option_list(TokenType.EQ, example="WITH ('name' = 'value', …)")

    def _option_list(self, assign: TokenType, *, example: str) -> tuple[OptionValue, ...]:
        """Options up to the closing bracket."""
        options: dict[str, OptionValue] = {}
        while not self._match(TokenType.R_PAREN):
            token = self._curr
            option = self._option(assign, example)
            if option.name in options:
                raise self.refuse(f'option "{option.name}" is given twice', token=token)
            options[option.name] = option
            if not self._match(TokenType.R_PAREN, advance=False) and not self._match(TokenType.COMMA):
                raise self.refuse('expected "," or ")" after an option', hint=f"write {example}")
        return tuple(options.values())

    def refuse_duplicates(self, options: tuple[OptionValue, ...]) -> None:
        """An option given twice for one source or sink, be it in two places."""
        names: set[str] = set()
        for option in options:
            if option.name in names:
                raise self.text.error_at(f'option "{option.name}" is given twice', place=option.place)
            names.add(option.name)

    def _option(self, assign: TokenType, example: str) -> OptionValue:
        first = self._curr
        name = self._option_text().lower()
        if not name or not self._match(assign):
            raise self.refuse("expected the name of an option and its value", hint=f"write {example}")
        quoted = self._curr.token_type in _QUOTED
        value = self._option_text()
        if not value and not quoted:
            raise self.refuse(f'option "{name}" has no value', token=first)
        return OptionValue(name, value, self.place(first))

    def _option_text(self) -> str:
        """A quoted word, or everything up to what ends it, as written."""
        if self._match_set(_QUOTED):
            return str(self._prev.text)
        ends = (TokenType.COMMA, TokenType.R_PAREN, TokenType.L_PAREN, TokenType.EQ, TokenType.FARROW)
        first = self._curr
        while self._curr and self._curr.token_type not in ends:
            self._advance()
        return self._written(first, self._prev) if self._curr is not first else ""

    def _at_duration(self) -> bool:
        if self._curr.token_type in (TokenType.NUMBER, TokenType.STRING, TokenType.INTERVAL):
            return True
        if self._curr.text.upper() == "SIZE":
            return self._next.text[:1].isdigit() or self._next.token_type in (TokenType.STRING, TokenType.INTERVAL)
        return self._curr.token_type == TokenType.VAR and self._curr.text[:1].isdigit()

    def _duration(self) -> str:
        """A duration as written: `10m`, `10 minutes`, `'10m'`, `INTERVAL '5' MINUTE`."""
        first = self._curr
        if self._match(TokenType.STRING):
            return str(first.text)
        if self._match(TokenType.INTERVAL):
            if not self._match_set((TokenType.STRING, TokenType.NUMBER)):
                raise self.refuse("expected a duration after INTERVAL", hint="write INTERVAL '5' MINUTE")
        elif first.text[:1].isdigit():
            self._advance()
            while self._curr and self._curr.start == first.start:
                self._advance()
        else:
            raise self.refuse("expected a duration", hint="write 500ms, 30s, 5m, 1h, 7d or INTERVAL '5' MINUTE")
        if self._curr.text.upper() in _UNITS and self._curr.token_type != TokenType.STRING:
            self._advance()
        return self._written(first, self._prev)
