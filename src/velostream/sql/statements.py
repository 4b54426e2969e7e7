"""Every statement as frozen data with its place in the text.

A `Statement` is what `parse` gives and `render` turns back into text. SELECTs are carried as a `Query`: the sqlglot
tree of plain Spark SQL plus what our language adds to it (sources in FROM, EMIT, windows).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sqlglot import exp

from velostream.model.schema import Schema


@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands in the statement's text, counted from 1."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, slots=True)
class OptionValue:
    """One option of a WITH clause or URI; the name is in lower case."""

    name: str
    value: str
    place: Place = field(default_factory=Place, compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    """A name as written, unquoted."""

    text: str
    place: Place = field(default_factory=Place, compare=False)


@dataclass(frozen=True, slots=True)
class SourceRef:
    """A source named in FROM (or as a target): a bare or quoted URI, or a source function.

    In the query's tree it is a table of the name `relation`; the alias written by the user is on the tree's node.
    """

    relation: str
    kind: str
    uri: str
    options: tuple[OptionValue, ...] = ()
    place: Place = field(default_factory=Place, compare=False)


class Emit(StrEnum):
    CHANGES = "changes"
    FINAL = "final"


class WindowKind(StrEnum):
    TUMBLING = "tumbling"
    SLIDING = "sliding"
    SESSION = "session"


@dataclass(frozen=True, slots=True)
class Window:
    """WINDOW TUMBLING(ts, 5m) and its spellings; durations as written."""

    kind: WindowKind
    time_column: str | None
    size: str
    advance: str | None = None
    place: Place = field(default_factory=Place, compare=False)


@dataclass(frozen=True)
class Query:
    """A SELECT (or set operation, or WITH … SELECT): a sqlglot tree where a source of FROM is an ordinary table node.

    `relation_options` are those of `FROM x WITH (…)` for tables and streams named in FROM, by lower-case relation name;
    those of a source are in its `SourceRef`. Trees compare by structure, so equal text gives equal queries.
    """

    tree: exp.Expression
    sources: tuple[SourceRef, ...] = ()
    relation_options: Mapping[str, tuple[OptionValue, ...]] = field(default_factory=dict)
    key_items: tuple[str, ...] = ()
    """Output names marked PRIMARY KEY after a select item."""
    emit: Emit | None = None
    window: Window | None = None
    into: Name | SourceRef | None = None
    """Target of SELECT … INTO / INSERT INTO; the parser turns such a query into an `Insert`, so None elsewhere."""
    table_key: tuple[str, ...] | None = field(default=None, compare=False)
    """Of the query of a CREATE TABLE: the key that its declared columns have, maybe none. None elsewhere."""


@dataclass(frozen=True)
class Statement:
    """Base of all statements.

    `text` is the text it was written in, a whole script maybe, and `place` where it begins in it: what an error needs
    to point at something.
    """

    text: str = field(default="", compare=False, kw_only=True)
    place: Place = field(default_factory=Place, compare=False, kw_only=True)

    @property
    def kind(self) -> str:
        """The statement kind as errors name it: `CREATE TABLE`, `INSERT` and so on."""
        raise NotImplementedError


class ObjectKind(StrEnum):
    TABLE = "TABLE"
    STREAM = "STREAM"
    INDEX = "INDEX"


@dataclass(frozen=True)
class Create(Statement):
    """CREATE TABLE and CREATE STREAM, declared or AS SELECT."""

    what: ObjectKind
    name: Name
    columns: Schema | None = None
    """Declared columns; their key is the declared PRIMARY KEY."""
    query: Query | None = None
    options: tuple[OptionValue, ...] = ()
    or_replace: bool = False
    if_not_exists: bool = False

    @property
    def kind(self) -> str:
        return f"CREATE {self.what}"


@dataclass(frozen=True)
class CreateIndex(Statement):
    name: Name
    table: Name
    columns: tuple[str, ...]

    @property
    def kind(self) -> str:
        return "CREATE INDEX"


@dataclass(frozen=True)
class Drop(Statement):
    what: ObjectKind
    name: Name
    if_exists: bool = False
    cascade: bool = False

    @property
    def kind(self) -> str:
        return f"DROP {self.what}"


@dataclass(frozen=True)
class Insert(Statement):
    """INSERT INTO t|s|uri SELECT …, INSERT INTO t VALUES …, SELECT … INTO …; UPSERT INTO when `upsert`."""

    target: Name | SourceRef
    columns: tuple[str, ...] = ()
    values: tuple[tuple[exp.Expression, ...], ...] = ()
    query: Query | None = None
    upsert: bool = False
    on: exp.Expression | None = None
    options: tuple[OptionValue, ...] = ()
    sources: tuple[SourceRef, ...] = ()
    """Sources in subqueries of `values` and `on`."""

    @property
    def kind(self) -> str:
        return "UPSERT" if self.upsert else "INSERT"


@dataclass(frozen=True)
class Assignment:
    column: Name
    value: exp.Expression


@dataclass(frozen=True)
class Update(Statement):
    table: Name
    assignments: tuple[Assignment, ...]
    source: Query | None = None
    """`FROM s`: a query `SELECT * FROM s`, so that sources, aliases and options are read the same way."""
    where: exp.Expression | None = None
    alias: str | None = None
    sources: tuple[SourceRef, ...] = ()
    """Sources in subqueries of its expressions; those of `source` are in there."""

    @property
    def kind(self) -> str:
        return "UPDATE FROM" if self.source else "UPDATE"


@dataclass(frozen=True)
class Delete(Statement):
    table: Name
    source: Query | None = None
    where: exp.Expression | None = None
    alias: str | None = None
    sources: tuple[SourceRef, ...] = ()
    """Sources in subqueries of its expressions; those of `source` are in there."""

    @property
    def kind(self) -> str:
        return "DELETE USING" if self.source else "DELETE"


@dataclass(frozen=True)
class Merge(Statement):
    """Spark's MERGE INTO, as a tree."""

    table: Name
    tree: exp.Expression
    sources: tuple[SourceRef, ...] = ()

    @property
    def kind(self) -> str:
        return "MERGE"


class TransactionAction(StrEnum):
    BEGIN = "BEGIN"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


@dataclass(frozen=True)
class Transaction(Statement):
    action: TransactionAction

    @property
    def kind(self) -> str:
        return str(self.action)


@dataclass(frozen=True)
class Truncate(Statement):
    table: Name

    @property
    def kind(self) -> str:
        return "TRUNCATE TABLE"


@dataclass(frozen=True)
class Refresh(Statement):
    table: Name

    @property
    def kind(self) -> str:
        return "REFRESH TABLE"


@dataclass(frozen=True)
class Select(Statement):
    query: Query
    options: tuple[OptionValue, ...] = ()

    @property
    def kind(self) -> str:
        return "SELECT"


@dataclass(frozen=True)
class Explain(Statement):
    statement: Statement
    extended: bool = False

    @property
    def kind(self) -> str:
        return "EXPLAIN"


@dataclass(frozen=True)
class ExplainAnalyze(Statement):
    query: Name

    @property
    def kind(self) -> str:
        return "EXPLAIN ANALYZE"


@dataclass(frozen=True)
class Validate(Statement):
    statement: Statement

    @property
    def kind(self) -> str:
        return "VALIDATE"


@dataclass(frozen=True)
class Describe(Statement):
    name: Name

    @property
    def kind(self) -> str:
        return "DESCRIBE"


class ShowKind(StrEnum):
    TABLES = "TABLES"
    STREAMS = "STREAMS"
    QUERIES = "QUERIES"
    SOURCES = "SOURCES"
    FUNCTIONS = "FUNCTIONS"
    STATUS = "STATUS"
    PROGRESS = "PROGRESS"
    METRICS = "METRICS"
    SCHEMA = "SCHEMA"
    PROPERTIES = "PROPERTIES"
    DEAD_LETTERS = "DEAD LETTERS"


@dataclass(frozen=True)
class Show(Statement):
    what: ShowKind
    name: Name | None = None
    like: str | None = None

    @property
    def kind(self) -> str:
        return f"SHOW {self.what}"


class QueryAction(StrEnum):
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    STOP = "STOP"
    RESTART = "RESTART"


@dataclass(frozen=True)
class Control(Statement):
    """PAUSE|RESUME|STOP|RESTART QUERY q."""

    action: QueryAction
    name: Name

    @property
    def kind(self) -> str:
        return f"{self.action} QUERY"


@dataclass(frozen=True)
class SetOption(Statement):
    key: str
    value: str

    @property
    def kind(self) -> str:
        return "SET"
