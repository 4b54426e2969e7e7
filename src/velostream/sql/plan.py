"""The plan of a query as data: what EXPLAIN prints and the engine executes.

A plan never names Spark objects. Every SQL text in it is plain Spark SQL over relation names that the engine registers
as temporary views: the `relation` of each input, `stage` for a batch after its lookups, `feed` for the rows an
aggregate consumes, `groups` for its bare result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

import pyarrow as pa

from velostream.errors import SqlError
from velostream.model.expression import Expression
from velostream.model.schema import Schema
from velostream.sql.statements import Emit, OptionValue, SourceRef


class RelationKind(StrEnum):
    TABLE = "table"
    """Has versions; anything kept by us: declared tables, views, folded sources."""
    STREAM = "stream"
    """Endless appends."""
    BOUNDED = "bounded source"
    """A source read once; a table wherever it meets another input."""


@dataclass(frozen=True)
class Relation:
    """What the catalog knows of something a FROM can name. `schema` is None while nothing is known yet."""

    name: str
    kind: RelationKind
    schema: Schema | None
    indexes: tuple[tuple[str, ...], ...] = ()
    """Column sets that can be looked up in O(1), the key first."""
    rows: int | None = None
    reason: str = ""
    """Why it is a stream or a table, for EXPLAIN."""
    system: tuple[str, ...] = ()
    """Those of its columns that `*` leaves out; they are there because the query names them."""
    option_names: tuple[str, ...] = ()
    """Options that `FROM name WITH (…)` takes beside those of queries."""
    store: str = ""
    """Kind of the store that holds its rows; empty for our own."""
    one_row: bool = False
    """Whether it always has exactly one row."""
    version_column: str | None = None
    """Of a table that holds several versions of things: the column that says from when each is."""
    kept: bool = False
    """A stream whose rows are kept as a table, because the query needs all of them."""
    grows: bool = False
    """A source whose columns are added to the result when they come."""
    may_grow: bool = False
    """A source whose columns could be, and of which nothing is said about that."""


class Catalog(Protocol):
    """What planning asks of the engine. Answers from memory, but for discovering a source's schema."""

    def relation(self, name: str) -> Relation | None:
        """The table, view or stream of that name, in any case of letters."""

    def names(self) -> Sequence[str]: ...

    def source(self, reference: SourceRef, options: tuple[OptionValue, ...]) -> Relation:
        """A source of FROM; its own options merged with the statement's (the nearer wins) are given.
        Raises `SourceError` or `OptionError`.
        """

    def option_names(self, reference: SourceRef | None) -> Sequence[str]:
        """Options known to that source kind; with None those of tables and queries."""

    def python_aggregates(self) -> Collection[str]:
        """Names of the aggregates that are functions in Python, in small letters."""


class Strategy(StrEnum):
    MAP = "map"
    AGGREGATE = "aggregate"
    DELTA = "delta"
    REFRESH = "refresh"
    PASSTHROUGH = "passthrough"


@dataclass(frozen=True)
class Input:
    """One relation a query reads, under the name Spark will know it by."""

    relation: str
    target: Relation
    source: SourceRef | None = None
    options: tuple[OptionValue, ...] = ()
    """Merged options of the source: URI and FROM … WITH over the statement's."""
    version: int | datetime | None = None
    """The state of the table to read, by VERSION AS OF or TIMESTAMP AS OF; None: the newest."""
    part: QueryPlan | None = None
    """How it is kept up to date, where it is a part of the query itself: a view that nobody else sees."""


@dataclass(frozen=True)
class KeyPair:
    """An equality of a join: an expression over the driving rows, and a column of the table."""

    driving: str
    """Spark SQL over the columns of the stage so far."""
    column: str
    value: Expression | None = field(default=None, compare=False)
    """The same as plain data, in the column's type; None: Spark evaluates it."""


@dataclass(frozen=True)
class AsOf:
    """Of the rows that a key finds, the one whose version is the nearest to a time."""

    driving: str
    """The time: Spark SQL over the columns of the stage so far, of the column's type."""
    column: str
    """The column with the version."""
    is_latest: bool
    """The latest one before the time, else the earliest one after it."""
    is_inclusive: bool
    """Whether a version of just that time serves."""
    value: Expression | None = field(default=None, compare=False)
    """The time as plain data; None: Spark evaluates it."""


@dataclass(frozen=True)
class Lookup:
    """One join through the lookup stage.

    The stage receives rows with columns `k0…kn` (the driving expressions, already cast to the table columns' types) and
    appends `columns` of the table as `{prefix}{column}`. INNER drops rows without a match; LEFT keeps them with NULLs.
    """

    input: str
    """Relation name of the table's `Input`."""
    outer: bool
    keys: tuple[KeyPair, ...]
    columns: tuple[str, ...]
    prefix: str
    access: str
    """`key` or `index`, for EXPLAIN."""
    as_of: AsOf | None = None
    """None: every row that the key finds."""
    alias: str = ""
    """What the query calls the table there; one that is joined twice has two."""
    subquery: str = ""
    """What asks for the row if it is no join: EXISTS, IN or a scalar subquery. Such a lookup is outer."""
    any_row: bool = False
    """Whether it asks for any one of the rows that the key finds."""
    condition: Expression | None = None
    """What a row must fulfil to be that one, over columns of the table."""


@dataclass(frozen=True)
class Stages:
    """The fast way of a stream–table join: lookups one after another, then SQL over `stage`.

    `stage` has the driving input's columns under their own names and each lookup's columns under its prefix.
    """

    lookups: tuple[Lookup, ...]
    sql: str
    step: Step | None = None
    """The SQL as plain data, if the keys of all lookups are too: then no expression needs Spark."""


class MissingPolicy(StrEnum):
    """What becomes of a row of the stream for which a lookup finds no row of the table."""

    NULLS = "nulls"
    SKIP = "skip"
    DEFAULTS = "defaults"
    RETRY = "retry"
    """The batch is tried again, later; after the last time it is as the join says."""
    FAIL = "fail"


@dataclass(frozen=True)
class MissingRows:
    """The policy of one join for rows that are not there."""

    table: str
    policy: MissingPolicy
    drops: bool = False
    """Whether a row without a match is left out."""
    retry_max: int = 5
    retry_delay: timedelta = timedelta(seconds=1)
    retry_multiplier: float = 2.0


@dataclass(frozen=True)
class Asked:
    """Values that rows of one relation have."""

    relation: str
    """Of an `Input`: the stream's, or that of a table narrowed before."""
    sql: str
    """Spark SQL over it, one column per value."""


@dataclass(frozen=True)
class Narrowing:
    """A table of which no rows count but those with the values of the batch, where Spark joins it."""

    input: str
    """Relation name of the table's `Input`."""
    columns: tuple[str, ...]
    asked: tuple[Asked, ...]
    """Where the values of these columns come from: from one of them or another."""


@dataclass(frozen=True)
class MapPlan:
    """A stateless transformation of batches of the driving stream."""

    driving: str
    """Relation name of the stream."""
    sql: str
    """The general path: Spark SQL over all inputs' relations."""
    stages: Stages | None = None
    """The fast way, when there is one; gives the same rows."""
    why_not: str = ""
    """Why there is no fast way though tables are read."""
    narrowings: tuple[Narrowing, ...] = ()
    """Where there is none: the tables that need not be read in full, each after those that its values come from."""
    missing: tuple[MissingRows, ...] = ()
    """Policies of joins. With some, `watched` and the SQL of `stages` give, after the columns of `sql`, for each of
    them what it found (0: a row, 1: none, 2: none, its key is NULL), and at last whether WHERE holds."""
    watched: str | None = None
    """The general path with those columns."""
    types: tuple[pa.DataType, ...] = ()
    """Of the columns of `sql`, as Spark's analyser found them; not known before the query is bound."""


class LateData(StrEnum):
    """What becomes of rows whose window is over by the watermark."""

    DROP = "drop"
    DEAD_LETTER = "dead_letter"
    UPDATE = "update"
    """They count all the same, so the rows of windows are kept for ever."""


@dataclass(frozen=True)
class WindowState:
    """What keeps the groups of a time window: the rows of those that are not over yet."""

    time: str
    """Column of the feed with the event time."""
    end: str | None
    """Column of the feed with the end of a row's window (a row stands there once per window); None: sessions."""
    gap: timedelta | None
    """What ends a session; None: windows of fixed length."""
    tracked: str
    """The aggregate over `feed` and its rows' columns `_row` and `_new`, with columns more: `_end` of the window,
    whether a new row `_touched` it and, of sessions, its `_rows`."""
    watermark: timedelta
    late: LateData
    emit: Emit
    reads: tuple[str, ...] = ()
    """What each column of the feed is, as it was written: the names in dead letters."""


@dataclass(frozen=True)
class AggregatePlan:
    """A GROUP BY over a stream: a stateless feed, then the bare aggregate in Spark's state.

    With a window the aggregate is computed over the rows of open windows, which are kept in a table.
    """

    feed: MapPlan
    """Gives the rows the aggregate reads, columns `c0…cn`."""
    sql: str
    """The bare aggregate over `feed`; one row per group, in update mode."""
    key: tuple[str, ...]
    """Output columns of `sql` that identify the group; empty: a single group."""
    final: str | None = None
    """Spark SQL over `groups` for what is not bare (HAVING, ORDER BY, unselected group columns); None when `sql`
    already gives the table's rows."""
    final_inputs: tuple[str, ...] = ()
    """Relation names of the tables that `final` reads beside `groups` (a subquery in HAVING); a change of theirs
    changes the result."""
    streamed: StreamedPlan | None = None
    """The same without Spark's state; None: nothing less than that can hold the groups."""
    why_not: str = ""
    """Why it takes Spark's state."""
    by_group: bool = True
    """Whether `final` makes of each group what it becomes by itself: it has no ORDER BY, LIMIT or the like."""
    window: WindowState | None = None
    """What keeps the groups of a time window, which takes neither Spark's state nor partial results."""


class AggregateFunction(StrEnum):
    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True)
class Step:
    """A transformation under which every row gives its result by itself, whatever other rows there are."""

    sql: str
    """Spark SQL over the relations it reads."""
    names: tuple[str, ...] = ()
    """Names of its columns, where `items` are known."""
    items: tuple[Expression, ...] | None = None
    """Its columns as plain data over the one relation it reads, so that it needs no Spark; None: Spark evaluates it."""
    condition: Expression | None = None
    """Which rows it keeps, where `items` are known; None: all."""


@dataclass(frozen=True)
class Partial:
    """An aggregate of which a group keeps no more than a partial result, changed by what comes and what goes."""

    function: AggregateFunction
    argument: str | None
    """Column of the feed; None: COUNT(*)."""


@dataclass(frozen=True)
class GroupedPlan:
    """A GROUP BY (or DISTINCT) of whose groups partial results are kept, in a hidden table beside the view."""

    feed: Step
    """Gives the group values `g0…gn` and the aggregates' arguments `x0…xn` of each row."""
    keys: tuple[str, ...]
    """`g0…gn`; none: one group, which is there without rows too."""
    partials: tuple[Partial, ...]
    """What becomes `a0…an` of a group."""
    bare: str
    """Spark SQL over `feed` that gives `g0…gn, a0…an`: what tells their types."""
    final: Step
    """From rows of `groups` (`g0…gn, a0…an`) to those of the view."""
    found_by: tuple[str, ...] | None = None
    """Columns of the input that hold the group values, so that the rows of a group can be looked up; None: they are
    computed, or come from several inputs."""


@dataclass(frozen=True)
class StreamedPlan:
    """A GROUP BY over a stream by partial results: every batch gives rows that change those of their groups."""

    feed: MapPlan
    """What `grouped.feed` gives, of a batch."""
    grouped: GroupedPlan


@dataclass(frozen=True)
class Reader:
    """One place of a query where an input is read, under a name of its own: a table may be read in several."""

    relation: str
    """The name it has in the plan's SQL."""
    input: str
    """Relation name of its `Input`."""


@dataclass(frozen=True)
class Link:
    """An equality between columns of two readers without which rows of them never meet."""

    parent: str
    parent_columns: tuple[str, ...]
    child: str
    child_columns: tuple[str, ...]


class JoinKind(StrEnum):
    INNER = "inner"
    LEFT = "left"
    SEMI = "semi"
    ANTI = "anti"


@dataclass(frozen=True)
class JoinPart:
    """One reader joined to the rows so far. Columns are called `reader.column`."""

    reader: str
    kind: JoinKind
    left: tuple[str, ...]
    """Columns of the rows so far that equal those of `right`; none: every row of the reader is met."""
    right: tuple[str, ...]
    residual: Expression | None = None
    """What else makes two rows meet."""


@dataclass(frozen=True)
class JoinedQuery:
    """A driven query as plain data, so that it needs no Spark. Columns are called `reader.column`."""

    first: str
    """The reader that the others are joined to."""
    parts: tuple[JoinPart, ...]
    condition: Expression | None
    """Which of the joined rows it keeps; None: all."""
    items: tuple[Expression, ...]


@dataclass(frozen=True)
class DrivenPlan:
    """A query in which every row of one reader, the root, gives its result by itself, with the rows that links lead to.

    A change anywhere is followed along the links to the root's rows it may concern; these are computed anew, before
    and after the change.
    """

    sql: str
    """Spark SQL over the readers."""
    readers: tuple[Reader, ...]
    """The root first."""
    links: tuple[Link, ...]
    """One for each other reader but the constants, parents first."""
    constants: tuple[str, ...] = ()
    """Readers of one row that is the same for all rows of the root; when it changes, all of them are concerned."""
    joined: JoinedQuery | None = None
    """The same query without need of Spark; None: Spark evaluates it."""


@dataclass(frozen=True)
class PartitionedPlan:
    """A query that falls apart by values that all its readers hold: the rows of one value never meet those of another.

    The values that changed rows hold are computed anew.
    """

    sql: str
    """Spark SQL over the readers."""
    readers: tuple[Reader, ...]
    columns: Mapping[str, tuple[str, ...]]
    """Columns of each reader, by its relation, that hold the value."""
    outputs: tuple[str, ...] | None
    """Columns of the result that hold the value, so that the rows to replace can be looked up; None: the query is
    computed over the state before, too."""


@dataclass(frozen=True)
class Order:
    column: str
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True)
class TopPlan:
    """ORDER BY … LIMIT over rows that are followed: the first so many of them are the view."""

    order: tuple[Order, ...]
    """By columns of the result; rows that are equal in them are ordered by all the others."""
    limit: int
    offset: int = 0
    """How many rows are passed over."""


@dataclass(frozen=True)
class TimedInput:
    """An input whose rows have a time."""

    relation: str
    """Of the `Input`."""
    column: str


@dataclass(frozen=True)
class Meeting:
    """Rows of two streams that are joined: those that meet are no further apart in time than that."""

    left: TimedInput
    right: TimedInput
    low: timedelta
    """How much later the time of the right row is than that of the left one, at least."""
    high: timedelta
    """And at most."""
    remembers: bool
    """Whether what a row gives depends on whether it has met another: outer joins, SEMI and ANTI."""

    @property
    def left_stay(self) -> timedelta:
        """How far the watermarks have to be past a row of the left stream until it can go."""
        return max(self.high, self.high - self.low) if self.remembers else self.high

    @property
    def right_stay(self) -> timedelta:
        """How far the watermarks have to be past a row of the right stream until it can go."""
        return max(-self.low, self.high - self.low) if self.remembers else -self.low


@dataclass(frozen=True)
class Expiry:
    """When rows of joined streams go: once no row can come any more that they meet.

    A row is late, and meets nobody, when the newest time of its stream was by more than `watermark` past it before its
    batch came.
    """

    meeting: Meeting
    watermark: timedelta
    late: LateData


@dataclass(frozen=True)
class DeltaPlan:
    """How a view over tables follows the changes of its inputs: by one of the plans.

    Both `grouped` and `driven`: the feed of the groups is a driven query.
    """

    linear: Step | None = None
    grouped: GroupedPlan | None = None
    driven: DrivenPlan | None = None
    partitioned: PartitionedPlan | None = None
    top: TopPlan | None = None
    """The view is only the first rows of what the other plans give."""
    unique: tuple[str, ...] | None = None
    """Columns of the result of which no two rows have the same values (none: it has one row at most); None: nothing is
    known."""
    meeting: Meeting | None = None
    """What bounds the join of two streams that it is; None: it is none, or nothing bounds it."""
    expiry: Expiry | None = None
    """When rows of these streams go; None: all of them are kept."""


@dataclass(frozen=True)
class QueryPlan:
    """How a continuous or pull query is answered."""

    strategy: Strategy
    reason: str
    inputs: tuple[Input, ...]
    sql: str
    """The whole query as Spark SQL over the inputs' relations: the general path, and what `refresh` runs."""
    map: MapPlan | None = None
    aggregate: AggregatePlan | None = None
    delta: DeltaPlan | None = None
    linear: Step | None = None
    """The same as `sql`, of a query of one input that is computed as a whole and gives each row by a row of that."""
    whole: QueryPlan | None = None
    """The plan without parts, where this one has some: what is computed again when the parts can't be kept."""
    passthrough: PassthroughPlan | None = None
    key: tuple[str, ...] = ()
    """Key of the result by PRIMARY KEY items, else GROUP BY columns (all of them selected), else none."""
    emit: Emit = Emit.CHANGES
    ordered: bool = False
    """The outermost query has an ORDER BY, so a pull query's order of rows matters."""
    limit: int | None = None
    """A pull query over a stream ends after so many rows. The LIMIT is not part of the SQL texts then."""
    warnings: tuple[SqlError, ...] = field(default=())

    @property
    def only_appends(self) -> bool:
        """Whether what it gives never changes again: rows one by one, or windows that are over."""
        if self.map is not None:
            return True
        window = None if self.aggregate is None else self.aggregate.window
        return (
            self.aggregate is not None
            and window is not None
            and window.emit is Emit.FINAL
            and window.late is not LateData.UPDATE
            and self.aggregate.by_group
        )


@dataclass(frozen=True)
class Item:
    """One output of a passthrough SELECT: a column, or an aggregate of a column (None: COUNT(*)).

    In a grouped SELECT the columns are of those that rows are grouped by.
    """

    name: str
    column: str | None
    function: AggregateFunction | None = None
    distinct: bool = False


@dataclass(frozen=True)
class PassthroughPlan:
    """A SELECT over one table that the table answers itself, without Spark."""

    table: str
    items: tuple[Item, ...]
    condition: Expression | None = None
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    access: str = "scan"
    """`key`, `index` or `scan`."""
    groups: tuple[str, ...] = ()
    """Columns that rows are grouped by."""

    @property
    def grouped(self) -> bool:
        """Whether there is one row for each group, or one for all rows, rather than one for each."""
        return bool(self.groups) or any(item.function is not None for item in self.items)
