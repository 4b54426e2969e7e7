"""The whole error tree.

Every error a user can meet is a `VelostreamError` with one line of `message` (lower case, naming the kind
and the quoted name), and where they help a `detail`, a `hint` (something to type), a stable kebab-case `code`
and a `category`. Constructors build the texts, so that the same mistake reads the same everywhere.
Foreign exceptions never cross a seam: wrap them here and keep the original as `__cause__`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from textwrap import dedent, indent
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Category(StrEnum):
    """What kind of trouble it is; decides whether a retry makes sense."""

    MISSING = "missing"
    NETWORK = "network"
    AUTHENTICATION = "authentication"
    CONFIGURATION = "configuration"
    DATA = "data"
    CONFLICT = "conflict"
    CONCURRENCY = "concurrency"
    UNSUPPORTED = "unsupported"
    STATE = "state"
    SQL = "sql"
    TIMEOUT = "timeout"
    INTERNAL = "internal"
    UNKNOWN = "unknown"

    @property
    def retriable(self) -> bool:
        """Whether trying again later may help: what is missing may come, a full disk may be emptied."""
        return self in _RETRIABLE


_PLURALS = {"query": "queries", "index": "indexes"}
_RETRIABLE = frozenset(
    {
        Category.MISSING,
        Category.NETWORK,
        Category.CONCURRENCY,
        Category.STATE,
        Category.TIMEOUT,
        Category.UNKNOWN,
    }
)


def near_names(name: str, known: Iterable[str], *, limit: int = 3) -> list[str]:
    """The known names a typist of `name` most likely meant, nearest first."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), list(by_lower), n=limit, cutoff=0.6)
    return [by_lower[match] for match in close]


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A hint naming the nearest known names, or nothing when none is near."""
    close = near_names(name, known)
    if not close:
        return None
    return "did you mean " + " or ".join(f'"{match}"' for match in close) + "?"


class VelostreamError(Exception):
    """Base of everything this package raises on purpose."""

    default_code = "error"
    default_category = Category.UNKNOWN

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        code: str | None = None,
        category: Category | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.code = code or self.default_code
        self.category = category or self.default_category

    def __str__(self) -> str:
        return render_text(self)


def present(value: T | None) -> T:
    """A value that the program's own logic guarantees to be there; the error names a fault of ours, not of a user."""
    if value is None:
        raise VelostreamError(
            "something that must be there is missing",
            hint="this is a defect; please report the statement that led here",
            code="internal",
            category=Category.INTERNAL,
        )
    return value


class SqlError(VelostreamError):
    """A statement that can't be parsed, resolved or validated; knows where in the text."""

    default_code = "sql"
    default_category = Category.SQL

    def __init__(
        self,
        message: str,
        *,
        line: int = 1,
        column: int = 1,
        text: str | None = None,
        width: int = 1,
        problems: Sequence[SqlError] = (),
        **rest: Any,
    ) -> None:
        super().__init__(message, **rest)
        self.line = line
        self.column = column
        self.text = text
        self.width = max(1, width)
        self.problems: tuple[SqlError, ...] = tuple(problems) or (self,)

    def caret(self) -> str | None:
        """The source line with a caret under the place, or nothing when the text isn't known."""
        lines = (self.text or "").splitlines()
        if not 1 <= self.line <= len(lines):
            return None
        source = lines[self.line - 1]
        shown = source.replace("\t", " ")
        return f"{shown}\n{' ' * (self.column - 1)}{'^' * min(self.width, max(1, len(source) - self.column + 1))}"

    @classmethod
    def all_of(cls, problems: Sequence[SqlError]) -> SqlError:
        """One error that carries every problem found; the first one speaks."""
        first = problems[0]
        if len(problems) == 1:
            return first
        return type(first)(
            first.message,
            detail=first.detail,
            hint=first.hint,
            code=first.code,
            category=first.category,
            line=first.line,
            column=first.column,
            text=first.text,
            width=first.width,
            problems=problems,
        )


class ParseError(SqlError):
    default_code = "syntax"


class ResolveError(SqlError):
    """A name in a statement that nothing answers to."""

    default_code = "unknown-name"

    @classmethod
    def unknown(cls, what: str, name: str, *, known: Iterable[str], **place: Any) -> Self:
        candidates = sorted(set(known))
        hint = did_you_mean(name, candidates)
        listed = ", ".join(candidates[:12]) or "none"
        return cls(
            f'{what} "{name}" does not exist',
            detail=f"known {what}s: {listed}",
            hint=hint,
            code=f"unknown-{what}",
            width=len(name),
            **place,
        )


class ValidationError(SqlError):
    default_code = "invalid-statement"


class OptionError(SqlError):
    """An option of a WITH clause or URI that isn't known or has a wrong value."""

    default_code = "invalid-option"

    @classmethod
    def unknown(cls, name: str, *, known: Iterable[str], **place: Any) -> Self:
        candidates = sorted(known)
        return cls(
            f'option "{name}" is not known here',
            detail="known options: " + ", ".join(candidates),
            hint=did_you_mean(name, candidates),
            code="unknown-option",
            width=len(name),
            **place,
        )

    @classmethod
    def value(cls, name: str, value: str, *, expected: str, **place: Any) -> Self:
        return cls(
            f'option "{name}" has the invalid value "{value}"',
            detail=f"expected {expected}",
            hint=f"write WITH ('{name}' = …) with {expected}",
            code="invalid-option-value",
            **place,
        )


class NotExecutableError(SqlError):
    """A statement form that parses but that this version does not run."""

    default_code = "not-executable"
    default_category = Category.UNSUPPORTED

    @classmethod
    def statement(cls, kind: str, *, hint: str | None = None, **place: Any) -> Self:
        return cls(f"statement {kind} can't be executed by this version", hint=hint, **place)


class NotFoundError(VelostreamError):
    default_code = "not-found"
    default_category = Category.MISSING

    @classmethod
    def of(cls, what: str, name: str, *, known: Iterable[str] = ()) -> Self:
        candidates = sorted(set(known))
        return cls(
            f'{what} "{name}" does not exist',
            detail=f"known {_PLURALS.get(what, f'{what}s')}: {', '.join(candidates[:12]) or 'none'}",
            hint=did_you_mean(name, candidates),
            code=f"unknown-{what}",
        )


class AlreadyExistsError(VelostreamError):
    default_code = "already-exists"
    default_category = Category.CONFLICT

    @classmethod
    def of(cls, what: str, name: str) -> Self:
        return cls(
            f'{what} "{name}" exists already',
            hint=f'CREATE OR REPLACE replaces it, IF NOT EXISTS keeps it, DROP {what.upper()} "{name}" removes it',
        )


class InUseError(VelostreamError):
    default_code = "in-use"
    default_category = Category.CONFLICT

    @classmethod
    def table(cls, name: str, *, readers: Sequence[str]) -> Self:
        return cls(
            f'table "{name}" is read by others',
            detail="readers: " + ", ".join(readers),
            hint=f'DROP TABLE "{name}" CASCADE drops them too',
        )


class TableError(VelostreamError):
    """A table refused a read or a write; nothing of the write was applied."""

    default_code = "table"
    default_category = Category.DATA

    @classmethod
    def duplicate_key(cls, table: str, key: object) -> Self:
        return cls(
            f'key {key!r} exists already in table "{table}"',
            detail="nothing of the statement was applied",
            hint="UPSERT INTO replaces the row of an existing key",
            code="duplicate-key",
            category=Category.CONFLICT,
        )

    @classmethod
    def null_in(cls, table: str, column: str) -> Self:
        return cls(
            f'column "{column}" of table "{table}" is NOT NULL and got a NULL',
            detail="nothing of the statement was applied",
            code="not-null",
        )

    @classmethod
    def without_key(cls, table: str) -> Self:
        return cls(
            f'table "{table}" has no key',
            hint="declare one: PRIMARY KEY after a column or select item, or WITH ('key' = 'a,b')",
            code="no-key",
        )

    @classmethod
    def version_gone(cls, table: str, version: int, *, oldest: int) -> Self:
        return cls(
            f'version {version} of table "{table}" is not kept any more',
            detail=f"oldest version kept: {oldest}",
            hint="WITH ('history' = …) keeps more",
            code="changes-expired",
        )

    @classmethod
    def no_version_at(cls, table: str, instant: datetime) -> Self:
        return cls(
            f'table "{table}" has no version of {instant.isoformat(sep=" ")}',
            detail="it was made later, or what it held then is not kept any more",
            hint="WITH ('history' = …) keeps more",
            code="changes-expired",
        )

    @classmethod
    def wrong_type(cls, table: str, column: str, *, expected: str, got: str) -> Self:
        return cls(
            f'column "{column}" of table "{table}" is {expected} and can\'t hold {got}',
            code="wrong-type",
        )

    @classmethod
    def conflict(cls, table: str) -> Self:
        return cls(
            f'table "{table}" was changed by someone else while the transaction ran',
            detail="nothing of the transaction was applied",
            hint="run the transaction again",
            code="write-conflict",
            category=Category.CONCURRENCY,
        )


class StoreError(VelostreamError):
    """Trouble with the server or file behind a table; the category says whether to retry."""

    default_code = "store"
    default_category = Category.UNKNOWN

    @classmethod
    def missing_driver(cls, kind: str, *, module: str, extra: str) -> Self:
        return cls(
            f'kind "{kind}" needs the Python module "{module}"',
            hint=f"pip install 'velostream[{extra}]'",
            code="missing-driver",
            category=Category.CONFIGURATION,
        )

    @classmethod
    def unreachable(cls, kind: str, *, where: str, reason: str, category: Category = Category.NETWORK) -> Self:
        """`where` is the address without its password."""
        return cls(
            f'{kind} at "{where}" can\'t be reached',
            detail=reason,
            hint="check the address, the credentials and that the server runs",
            code="store-unreachable",
            category=category,
        )


class UnsupportedError(VelostreamError):
    default_code = "unsupported"
    default_category = Category.UNSUPPORTED

    @classmethod
    def capability(cls, kind: str, capability: str) -> Self:
        return cls(f'kind "{kind}" can\'t do "{capability}"', code="unsupported-capability")


class SourceError(VelostreamError):
    """Trouble with what a source reads from; the category says whether to retry."""

    default_code = "source"

    @classmethod
    def missing_file(cls, path: str, *, pattern: bool) -> Self:
        what = "no file matches the pattern" if pattern else "file does not exist:"
        wait = "make sure matching files will arrive, or" if pattern else "check the path, or"
        return cls(
            f'{what} "{path}"',
            hint=f"{wait} wait for it: WITH ('file.wait.timeout' = '60s'), or follow it: WITH ('watch' = 'true')",
            code="missing-file",
            category=Category.MISSING,
        )

    @classmethod
    def unexpected_field(cls, what: str, *, detail: str) -> Self:
        """`what` has a field that is no column of the statement that reads it, which is not to be passed over."""
        return cls(
            what,
            detail=detail,
            hint="WITH ('schema.evolution' = 'ignore') leaves it out, CREATE OR REPLACE takes it in",
            code="unexpected-field",
            category=Category.DATA,
        )

    @classmethod
    def missing_topic(
        cls, topic: str, *, brokers: str, partitions: int, replication: int, known: Iterable[str]
    ) -> Self:
        create = (
            f"kafka-topics --bootstrap-server {brokers} --create --topic {topic} "
            f"--partitions {partitions} --replication-factor {replication}"
        )
        near = did_you_mean(topic, known)
        return cls(
            f'kafka topic "{topic}" does not exist',
            detail=f"asked at {brokers}",
            hint=(f"{near} " if near else "check the spelling, ")
            + f'create it: {create}, or wait for it: WITH ("topic.wait.timeout" = "60s")',
            code="missing-topic",
            category=Category.MISSING,
        )

    @classmethod
    def topic_replaced(cls, topic: str) -> Self:
        return cls(
            f'kafka topic "{topic}" was deleted and created anew',
            detail="the position that was reached belongs to the old one",
            hint="CREATE OR REPLACE reads the new one from its beginning",
            code="topic-replaced",
            category=Category.DATA,
        )

    @classmethod
    def stream_replaced(cls, kind: str, name: str) -> Self:
        return cls(
            f'{kind} stream "{name}" was deleted and created anew',
            detail="the position that was reached is after all that the new one holds",
            hint="CREATE OR REPLACE reads the new one from its beginning",
            code="stream-replaced",
            category=Category.DATA,
        )

    @classmethod
    def records_expired(cls, topic: str, *, partition: int, offset: int) -> Self:
        return cls(
            f'kafka topic "{topic}" no longer holds what is to be read next',
            detail=f"offset {offset} of partition {partition} is out of range: its retention has removed the record",
            hint="CREATE OR REPLACE reads what is left; a longer retention.ms of the topic keeps more",
            code="records-expired",
            category=Category.DATA,
        )

    @classmethod
    def missing_table(cls, kind: str, name: str, *, where: str, reason: str, what: str = "table") -> Self:
        """`where` is the address without its password."""
        return cls(
            f'{kind} has no {what} "{name}"',
            detail=f"at {where}: {reason}",
            hint="create it, check the spelling and the schema, or wait for it: WITH ('database.wait.timeout' = '60s')",
            code="missing-table",
            category=Category.MISSING,
        )

    @classmethod
    def unreachable(cls, kind: str, *, where: str, reason: str, category: Category = Category.NETWORK) -> Self:
        """`where` is the address without its password."""
        return cls(
            f'{kind} at "{where}" can\'t be reached',
            detail=reason,
            hint="check the address, the credentials and that the server runs",
            code="source-unreachable",
            category=category,
        )

    @classmethod
    def refused(cls, kind: str, *, where: str, reason: str, category: Category) -> Self:
        """The server answered, and would not do what it was asked; `where` is the address without its password."""
        return cls(
            f'{kind} at "{where}" refused what was asked',
            detail=reason,
            hint="check the rights of the user, and the options that hold SQL",
            code="source-refused",
            category=category,
        )

    @classmethod
    def log_lost(cls, kind: str, name: str, *, reason: str) -> Self:
        """What was changed since can't be had any more; `name` is what the place in the log was kept under."""
        return cls(
            f'{kind} has lost the changes kept for "{name}"',
            detail=reason,
            hint="WITH ('cdc.on.gap' = 'snapshot') reads the table again and takes the difference",
            code="log-lost",
            category=Category.STATE,
        )

    @classmethod
    def no_permission(cls, path: str) -> Self:
        return cls(
            f'file "{path}" may not be read',
            hint="give this user the permission to read it",
            code="no-permission",
            category=Category.AUTHENTICATION,
        )

    @classmethod
    def bad_record(cls, source: str, *, position: str, reason: str) -> Self:
        return cls(
            f'source "{source}" has a bad record at {position}',
            detail=reason,
            hint="WITH ('bad.records' = 'dead_letter') sets such records aside",
            code="bad-record",
            category=Category.DATA,
        )


class FurtherColumnsError(SourceError):
    """Records have columns that whoever reads them doesn't know yet, and is to take in before it goes on."""

    default_code = "further-columns"
    default_category = Category.CONFIGURATION

    @classmethod
    def of(cls, columns: Iterable[tuple[str, str]]) -> Self:
        """For columns by name and SQL type. They stand in the detail, the one thing that crosses processes."""
        return cls("records have columns that came later", detail=json.dumps(list(columns)))

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [(name, type_) for name, type_ in json.loads(self.detail or "[]")]


class QueryError(VelostreamError):
    """A running query failed; the message names it."""

    default_code = "query-failed"


class StateError(VelostreamError):
    """The state directory, its log or a checkpoint is not what it should be."""

    default_code = "state"
    default_category = Category.STATE

    @classmethod
    def locked(cls, path: str, *, holder: str) -> Self:
        return cls(
            f'state directory "{path}" is in use',
            detail=f"held by {holder}",
            hint="close that connection first, or use another directory",
            code="state-locked",
        )

    @classmethod
    def corrupt(cls, path: str, *, reason: str) -> Self:
        return cls(f'state file "{path}" is damaged', detail=reason, code="state-corrupt")

    @classmethod
    def checkpoint(cls, query: str, *, reason: str) -> Self:
        return cls(
            f'checkpoint of query "{query}" does not fit',
            detail=reason,
            hint="CREATE OR REPLACE builds it anew from its sources",
            code="checkpoint-mismatch",
        )


class WaitTimeoutError(VelostreamError):
    default_code = "timeout"
    default_category = Category.TIMEOUT


class ClosedError(VelostreamError):
    default_code = "closed"
    default_category = Category.STATE


class MissingExtraError(VelostreamError):
    """An optional driver isn't installed."""

    default_code = "missing-extra"
    default_category = Category.CONFIGURATION

    @classmethod
    def of(cls, feature: str, *, extra: str) -> Self:
        return cls(f"{feature} needs a driver that is not installed", hint=f"pip install 'velostream[{extra}]'")


class ServiceError(VelostreamError):
    """A server that tests need can't be had, started or stopped."""

    default_code = "test-service"
    default_category = Category.CONFIGURATION


def render_text(error: VelostreamError) -> str:
    """The terminal form: message, place, detail, hint; every problem of a SQL error."""
    problems: Sequence[VelostreamError] = error.problems if isinstance(error, SqlError) else (error,)
    return "\n".join(_render_one(problem) for problem in problems)


def _render_one(error: VelostreamError) -> str:
    lines = [error.message]
    if isinstance(error, SqlError):
        caret = error.caret()
        if caret is not None:
            lines[0] += f" (line {error.line}, column {error.column})"
            # A statement that follows others on its line would stand far to the right.
            lines += indent(dedent(caret), "  ").splitlines()
    if error.detail:
        lines.append(f"detail: {error.detail}")
    if error.hint:
        lines.append(f"hint: {error.hint}")
    return "\n".join(lines)


def render_json(error: VelostreamError) -> dict[str, Any]:
    """The machine form; SQL errors carry their place and all problems."""
    form: dict[str, Any] = {
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "code": error.code,
        "category": str(error.category),
    }
    if isinstance(error, SqlError):
        form |= {"line": error.line, "column": error.column}
        if len(error.problems) > 1:
            form["problems"] = [render_json(problem) for problem in error.problems if problem is not error]
    return form
