"""`.view` scripts: SQL, rows fed to it, and the rows it must then show, as plain text.

A script is a list of steps, each opened by its first two characters:

    > SQL                 a statement, or several that are one transaction (BEGIN; …; COMMIT); lines indented by two
                          spaces continue it. The lines after a query are the rows it must give, columns separated by
                          ` | `; a query with no lines after it must give no rows.
    ! SQL                 a statement that must be refused; the next line is how the error's message begins
    $ append feed         rows for `memory://feed`, one JSON object per line; numbers with a point are exact decimals
    $ delete feed         keys to delete from `memory://feed`, one JSON object per line
    $ write path          a file with the lines that follow, below the script's own folder, `${DIR}` in the SQL
    $ append-file path    lines to add to such a file
    $ remove-file path    the end of such a file
    $ wait table          until the table is ready
    $ drain table         until the table shows everything its sources hold
    # comment

Blank lines are ignored and end a block of lines. A query is repeated until it gives the rows expected or its deadline
has passed. With ORDER BY rows compare in order, otherwise as a bag. Values compare as text: NULL, true, 3.10,
2024-05-01 10:00:00, nested ones as JSON; a text that is empty, or could be read as something else, is written as JSON.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velostream.errors import ParseError, VelostreamError

if TYPE_CHECKING:
    from velostream.engine.connection import Connection

DIRECTORY = "${DIR}"
DEFAULT_DEADLINE_SECONDS = 30.0
_RETRY_SECONDS = 0.05
_QUERY_WORDS = ("select", "with", "values", "from")
_READING_WORDS = (*_QUERY_WORDS, "show", "describe", "explain", "validate")
_OPENINGS = ("> ", "! ", "$ ", "#")


class ScriptFailure(AssertionError):  # noqa: N818 - it is a test that failed, not an error of this package
    """A step did not do what the script says. The text shows script, line and the difference."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a script; `line` is where it begins."""

    line: int

    @property
    def changes(self) -> bool:
        """Whether the step changes anything, as opposed to looking at it."""
        return True


@dataclass(frozen=True, slots=True)
class Statement(Step):
    """SQL that must succeed; `rows` are what it must give, None when that is left open."""

    sql: str
    rows: tuple[str, ...] | None

    @property
    def changes(self) -> bool:
        return _first_word(self.sql) not in _READING_WORDS


@dataclass(frozen=True, slots=True)
class Refused(Step):
    """SQL that must fail with a message that begins like this."""

    sql: str
    message: str

    @property
    def changes(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class FeedRows(Step):
    """Rows for a memory feed, or keys to delete from it."""

    feed: str
    rows: tuple[Mapping[str, Any], ...]
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class FileLines(Step):
    """A file's new content, or lines at its end."""

    path: str
    content: str
    appends: bool = False


@dataclass(frozen=True, slots=True)
class RemoveFile(Step):
    path: str


@dataclass(frozen=True, slots=True)
class Await(Step):
    """Until a table is ready, or has taken in all that its sources hold."""

    table: str
    drained: bool

    @property
    def changes(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    steps: tuple[Step, ...]

    @classmethod
    def read(cls, path: Path) -> Script:
        return cls.parse(path.read_text(encoding="utf-8"), name=path.stem)

    @classmethod
    def parse(cls, text: str, *, name: str = "script") -> Script:
        """The steps of a text; `ParseError` with the line for anything that isn't one."""
        return cls(name, tuple(_Reader(text).steps()))

    @property
    def last_change(self) -> int:
        """Index of the last step that changes anything; 0 for a script that changes nothing."""
        return max((index for index, step in enumerate(self.steps) if step.changes), default=0)


class Player:
    """Plays steps on a connection. `directory` is where the script's files go and what `${DIR}` stands for."""

    def __init__(
        self,
        connection: Connection,
        script: Script,
        *,
        directory: Path,
        deadline: float = DEFAULT_DEADLINE_SECONDS,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """`cancelled` is asked between the attempts of a query; when true, the step is given up without a failure."""
        self._connection = connection
        self._script = script
        self._directory = directory
        self._deadline = deadline
        self._cancelled = cancelled

    def play(self, step: Step) -> None:
        """Do one step; `ScriptFailure` when it doesn't come out as written."""
        try:
            self._do(step)
        except VelostreamError as error:
            raise self._failure(step, f"unexpected error\n{error}") from error

    def _do(self, step: Step) -> None:
        match step:
            case Statement(rows=None):
                self._connection.execute_script(self._text(step.sql))
            case Statement():
                self._expect_rows(step, step.rows or ())
            case Refused():
                self._expect_refusal(step)
            case FeedRows(deletes=True):
                self._connection.memory(step.feed).delete(list(step.rows))
            case FeedRows():
                self._connection.memory(step.feed).append(list(step.rows))
            case FileLines():
                self._write(step)
            case RemoveFile():
                (self._directory / step.path).unlink()
            case Await(drained=True):
                self._connection.drain(step.table, timeout=self._deadline)
            case Await():
                self._connection.wait(step.table, timeout=self._deadline)

    def _expect_rows(self, step: Statement, expected: Sequence[str]) -> None:
        ordered = is_ordered(step.sql)
        wanted = list(expected) if ordered else sorted(expected)
        found: list[str] = []
        trouble: VelostreamError | None = None
        deadline = time.monotonic() + self._deadline
        while not self._cancelled():
            try:
                found = [row_text(row) for row in self._connection.execute(self._text(step.sql)).fetchall()]
                trouble = None
            except VelostreamError as error:
                trouble = error
            if not ordered:
                found.sort()
            if trouble is None and found == wanted:
                return
            if time.monotonic() > deadline:
                reason = (
                    f"still an error after {self._deadline:g} s\n{trouble}" if trouble else _difference(wanted, found)
                )
                raise self._failure(step, reason)
            time.sleep(_RETRY_SECONDS)

    def _expect_refusal(self, step: Refused) -> None:
        deadline = time.monotonic() + self._deadline
        while not self._cancelled():
            try:
                for result in self._connection.execute_script(self._text(step.sql)):
                    result.fetchall()
                said = "it was accepted"
            except VelostreamError as error:
                if error.message.startswith(step.message):
                    return
                said = error.message
            if time.monotonic() > deadline:
                raise self._failure(step, f"expected the error  {step.message}\nbut got             {said}")
            time.sleep(_RETRY_SECONDS)

    def _write(self, step: FileLines) -> None:
        path = self._directory / step.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if step.appends:
            with path.open("a", encoding="utf-8") as file:
                file.write(step.content)
            return
        # Replaced whole, as editors and exporters do: a follower must not be shown a file that is half written.
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(step.content, encoding="utf-8")
        temporary.replace(path)

    def _text(self, sql: str) -> str:
        return sql.replace(DIRECTORY, str(self._directory))

    def _failure(self, step: Step, reason: str) -> ScriptFailure:
        sql = getattr(step, "sql", None)
        said = f"\n> {sql}" if sql else ""
        return ScriptFailure(f"{self._script.name}, line {step.line}:{said}\n{reason}")


def row_text(row: Iterable[Any]) -> str:
    """One row as a script writes it."""
    return " | ".join(value_text(value) for value in row)


def value_text(value: Any) -> str:
    """One value as a script writes it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case dt.datetime():
            return value.isoformat(sep=" ")
        case str():
            doubtful = value != value.strip() or value in ("", "NULL", "true", "false")
            return json.dumps(value, ensure_ascii=False) if doubtful or re.search(r'[|\n\r]|^[">!$#]', value) else value
        case bytes():
            return value.hex()
        case Mapping() | list() | tuple():
            return json.dumps(value, ensure_ascii=False, default=value_text)
        case _:
            return str(value)


def is_ordered(sql: str) -> bool:
    """Whether a query has an ORDER BY of its own, not only inside parentheses or quotes."""
    bare = re.sub(r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`", "", sql)
    while (inner := re.sub(r"\([^()]*\)", "", bare)) != bare:
        bare = inner
    return re.search(r"\border\s+by\b", bare, re.IGNORECASE) is not None


def _first_word(sql: str) -> str:
    word = re.search(r"\w+", sql)
    return word[0].lower() if word else ""


def _difference(expected: Sequence[str], found: Sequence[str]) -> str:
    lines = difflib.unified_diff(expected, found, "expected", "found", lineterm="", n=100)
    return "\n".join(lines) or "no difference"


class _Reader:
    """Takes a text apart into steps."""

    def __init__(self, text: str) -> None:
        self._all = text
        self._lines = text.splitlines()
        self._at = 0

    def steps(self) -> Iterable[Step]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            number = self._at + 1
            self._at += 1
            if not line.strip() or line.startswith("#"):
                continue
            match line[:2]:
                case "> ":
                    yield self._statement(number, line[2:])
                case "! ":
                    yield self._refused(number, line[2:])
                case "$ ":
                    yield self._action(number, *line[2:].split())
                case _:
                    raise self._wrong(number, "a step begins with >, !, $ or #")

    def _statement(self, number: int, begin: str) -> Statement:
        sql = self._continued(begin)
        rows = tuple(self._normalized(row) for row in self._block())
        return Statement(number, sql, rows if rows or _first_word(sql) in _QUERY_WORDS else None)

    def _refused(self, number: int, begin: str) -> Refused:
        sql = self._continued(begin)
        message = self._block()
        if len(message) != 1:
            raise self._wrong(number, "the line after a refused statement says how its error begins")
        return Refused(number, sql, message[0].strip())

    def _action(self, number: int, verb: str, *names: str) -> Step:
        if len(names) != 1:
            raise self._wrong(number, f"{verb} takes one name")
        [name] = names
        match verb:
            case "append" | "delete":
                rows = tuple(self._object(line) for line in self._block())
                return FeedRows(number, name, rows, deletes=verb == "delete")
            case "write" | "append-file":
                content = "".join(line + "\n" for line in self._block())
                return FileLines(number, name, content, appends=verb == "append-file")
            case "remove-file":
                return RemoveFile(number, name)
            case "wait" | "drain":
                return Await(number, name, drained=verb == "drain")
        raise self._wrong(number, f'there is no action "{verb}"')

    def _continued(self, begin: str) -> str:
        parts = [begin]
        while self._at < len(self._lines) and self._lines[self._at].startswith("  ") and self._lines[self._at].strip():
            parts.append(self._lines[self._at])
            self._at += 1
        return "\n".join(parts).strip().removesuffix(";")

    def _block(self) -> list[str]:
        """The lines up to the next step or blank line."""
        taken: list[str] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not line.strip() or line.startswith(_OPENINGS):
                break
            taken.append(line)
            self._at += 1
        return taken

    def _object(self, line: str) -> Mapping[str, Any]:
        try:
            found = json.loads(line, parse_float=Decimal)
        except json.JSONDecodeError as error:
            raise self._wrong(self._at, f"not JSON: {error.msg}") from error
        if not isinstance(found, dict):
            raise self._wrong(self._at, "a row is a JSON object")
        return found

    @staticmethod
    def _normalized(row: str) -> str:
        """A row with one blank around each bar, however it was aligned."""
        return " | ".join(part.strip() for part in row.split(" | "))

    def _wrong(self, number: int, message: str) -> ParseError:
        return ParseError(message, line=number, text=self._all)


def main(path: Path, folder: Path) -> None:
    """Play a script once on the state directory `folder/state`, its files in `folder`: what tests let crash."""
    from velostream.engine.connection import connect

    script = Script.read(path)
    with connect(folder / "state") as connection:
        player = Player(connection, script, directory=folder)
        for step in script.steps:
            player.play(step)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
