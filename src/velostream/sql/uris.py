"""Bare URIs and paths in SQL text: found before anything else reads the text, and masked.

A URI holds what SQL reads otherwise: `/*` opens a comment, `--` another, `;` ends a statement, `?` is a parameter. So
one pass over the raw text that knows only strings, quoted names, comments and URIs comes first; each URI is replaced by
as many letters as it is long, so every position stays what it was. The same pass refuses what no later step could
place: open strings and comments, control characters.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate

from velostream.errors import ParseError
from velostream.sql.statements import Place

_MASK = "u"

_SKIPPED = re.compile(
    r"""
    \s+
    | --[^\n\r]*
    | [rR]'[^']*' | [rR]"[^"]*"
    | '(?:[^'\\]++|\\.|'')*+'
    | "(?:[^"]++|"")*+"
    | `(?:[^`]++|``)*+`
    | \$\{[^{}\n]*\}
    | [0-9]\w*
    """,
    re.VERBOSE | re.DOTALL,
)
_WORD = re.compile(r"[^\W\d]\w*")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]{0,39}://")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_PUNCTUATION = frozenset("()[]&^:,.-=><%!|+;/\\*~?@#$")

_RELATION_WORDS = frozenset(("FROM", "JOIN", "INTO", "USING"))
_PATH_START = re.compile(r"\.{1,2}/|~/|/(?![*/\s])")
_PATH_OF_WORDS = re.compile(
    r"[\w.\-]+/[^\s;,()'\"`]*\.(?:csv|tsv|txt|text|json|jsonl|ndjson|parquet|avro|orc)(?:\.gz)?(?=[\s;,)?]|\Z)",
    re.IGNORECASE,
)

_HOSTS = re.compile(r"[^\s,;()'\"`?/]+(?:,[^\s,;()'\"`?/]+)+/(?!/)")
_QUERY_START = re.compile(r"\?(?=[\w.\-]+=)")
_PATH_RUN = re.compile(r"(?:\$\{[^{}\n]*\}|\{[^\s{}()'\"`;]*\}|[^\s;,(){}'\"`?$]|\?(?![\w.\-]+=)|\$(?!\{))++")
_QUERY_RUN = re.compile(
    r"""
    \$\{[^{}\n]*\}
    | (?<==)"(?:[^"]++|"")*+" | (?<==)'(?:[^']++|'')*+'
    | ;(?=&) | (?<==);(?=;)
    | ,(?=[^\s,;)])(?![A-Za-z][A-Za-z0-9+.\-]{0,39}://)
    | \([^\s()'\"`;]*\)
    | [^\s;,()'\"`$] | \$(?!\{)
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Uri:
    """A bare URI or path as written, by its offsets in the script."""

    start: int
    end: int
    text: str


class Positions:
    """Offsets of a text as lines and columns counted from 1; lines end where `str.splitlines` ends them."""

    def __init__(self, text: str) -> None:
        ends = accumulate(len(line) for line in text.splitlines(keepends=True))
        self._starts = [0, *ends][: -1 if text else None]

    def place(self, offset: int) -> Place:
        line = bisect_right(self._starts, offset)
        return Place(line, offset - self._starts[line - 1] + 1)


@dataclass(frozen=True)
class MaskedText:
    """A script whose URIs are masked by words of the same length, and the URIs by their start."""

    original: str
    masked: str
    uris: dict[int, Uri]
    positions: Positions

    def error(self, message: str, *, offset: int, width: int = 1, hint: str | None = None) -> ParseError:
        return self.error_at(message, place=self.positions.place(offset), width=width, hint=hint)

    def error_at(self, message: str, *, place: Place, width: int = 1, hint: str | None = None) -> ParseError:
        return ParseError(message, line=place.line, column=place.column, text=self.original, width=width, hint=hint)


def mask_uris(text: str) -> MaskedText:
    """Find all bare URIs; `ParseError` for an open string, name or comment and for stray characters."""
    scanner = _Scanner(text)
    scanner.run()
    pieces: list[str] = []
    position = 0
    for uri in scanner.uris:
        pieces += (text[position : uri.start], _MASK * (uri.end - uri.start))
        position = uri.end
    pieces.append(text[position:])
    return MaskedText(text, "".join(pieces), {uri.start: uri for uri in scanner.uris}, scanner.positions)


def is_bare_uri(text: str) -> bool:
    """Whether a URI can stand in SQL as it is and is read back as a whole."""
    prefix = "FROM "
    try:
        uris = mask_uris(f"{prefix}{text} ").uris
    except ParseError:
        return False
    return list(uris) == [len(prefix)] and uris[len(prefix)].text == text


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.uris: list[Uri] = []
        self.positions = Positions(text)
        self._after_relation_word = False

    def run(self) -> None:
        offset = 0
        while offset < len(self.text):
            offset = self._step(offset)

    def _step(self, offset: int) -> int:
        """Skip one element of the text that begins at the offset; gives where the next one begins."""
        text = self.text
        if self._after_relation_word and (end := self._path_end(offset)):
            return self._found(offset, end)
        if skipped := _SKIPPED.match(text, offset):
            self._after_relation_word = self._after_relation_word and self._is_blank(text[offset], text, offset)
            return skipped.end()
        if text.startswith("/*", offset):
            return self._comment_end(offset)
        if scheme := _SCHEME.match(text, offset):
            return self._found(offset, self._uri_end(scheme.end()))
        if word := _WORD.match(text, offset):
            self._after_relation_word = word.group().upper() in _RELATION_WORDS
            return word.end()
        self._after_relation_word = False
        if text[offset] in _PUNCTUATION:
            return offset + 1
        raise self._unexpected(offset)

    @staticmethod
    def _is_blank(character: str, text: str, offset: int) -> bool:
        return character.isspace() or text.startswith("--", offset)

    def _found(self, start: int, end: int) -> int:
        self._after_relation_word = False
        self.uris.append(Uri(start, end, self.text[start:end]))
        return end

    def _path_end(self, offset: int) -> int | None:
        """Where a path without a scheme ends; it is only looked for where a relation is named."""
        if start := _PATH_START.match(self.text, offset):
            return self._uri_end(start.end())
        if words := _PATH_OF_WORDS.match(self.text, offset):
            return self._query_end(words.end())
        return None

    def _uri_end(self, offset: int) -> int:
        """Where a URI ends whose scheme ended at the offset.

        White space, `;`, `,`, quotes and brackets end it. A comma stands in a list of hosts, in `{a,b}` and between
        words of a parameter's value; `;` stands in a parameter's value when `&` follows; a quoted value may hold
        anything.
        """
        if hosts := _HOSTS.match(self.text, offset):
            offset = hosts.end()
        if path := _PATH_RUN.match(self.text, offset):
            offset = path.end()
        return self._query_end(offset)

    def _query_end(self, offset: int) -> int:
        if not _QUERY_START.match(self.text, offset):
            return offset
        while part := _QUERY_RUN.match(self.text, offset):
            offset = part.end()
        return offset

    def _comment_end(self, start: int) -> int:
        depth = 0
        for edge in _COMMENT_EDGE.finditer(self.text, start):
            depth += 1 if edge.group() == "/*" else -1
            if depth == 0:
                return edge.end()
        raise self._error("comment is never closed", start, width=2, hint="close it with */")

    def _unexpected(self, offset: int) -> ParseError:
        character = self.text[offset]
        if character in "'\"`":
            what = "string" if character == "'" else "quoted name"
            return self._error(f"{what} is never closed", offset, hint=f"close it with {character}")
        shown = f'"{character}"' if character.isprintable() else f"U+{ord(character):04X}"
        return self._error(f"character {shown} can't stand here", offset)

    def _error(self, message: str, offset: int, *, width: int = 1, hint: str | None = None) -> ParseError:
        place = self.positions.place(offset)
        return ParseError(message, line=place.line, column=place.column, text=self.text, width=width, hint=hint)
