"""Databases as sources: what is read of them, and in which of their ways it is kept up to date.

A kind of database gives a `DatabaseDriver`; all else is here, in `bulk.py` and in `polling.py`. What was asked decides
the way:

- nothing: the rows are read once;
- `incremental.column`, with or without `poll.query`: rows with newer values are asked for again and again;
- `watch` or `poll.interval` alone: everything is read again and again, and the difference is taken;
- `cdc`: changes are taken from the database's own log, where its kind can do that.

Parameters are always bound, identifiers always quoted. `where`, `order.by`, `query` and `poll.query` are texts in the
database's own SQL.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar

import orjson
import pyarrow as pa

from velostream.errors import OptionError
from velostream.model.change import JsonValue
from velostream.model.options import Option, Options, OptionType
from velostream.model.schema import Schema
from velostream.sources.base import Lag, Offset, OnBad, Partition, Source, SourceCapabilities, SourceSpec
from velostream.sources.common import COMMON_OPTIONS, declared_columns, names_of, with_parameters

DATABASE_OPTIONS: tuple[Option, ...] = (
    *COMMON_OPTIONS,
    Option("table", "the table or view that is read"),
    Option("schema", "the schema that the table is in"),
    Option("query", "a query that is read instead of a table, in the database's own SQL"),
    Option("query.params", "values for the query's ? or :name, as a JSON list or object"),
    Option("where", "a condition on the rows, in the database's own SQL"),
    Option("order.by", "the order in which rows are read, in the database's own SQL"),
    Option("limit", "most rows to read", OptionType.INTEGER),
    Option("watch", "whether to keep following", OptionType.BOOLEAN, "false"),
    Option("poll.interval", "how often to ask for changes; implies watch", OptionType.DURATION, "30s"),
    Option("poll.query", "a query for new rows; :last is the largest value of the incremental column so far"),
    Option("incremental.column", "a column that grows with every insert and update; implies watch"),
    Option(
        "incremental.overlap",
        "how far to look back for rows committed late: a duration, or for numbers how many",
        OptionType.TEXT,
    ),
    Option("initial.load", "whether to read what is there at the start", OptionType.CHOICE, "full", ("full", "none")),
    Option("loading.bulk.max_records", "most rows to load at the start", OptionType.INTEGER),
    Option("loading.bulk.max_duration", "longest time to load at the start", OptionType.DURATION),
    Option("fetch.size", "rows per message", OptionType.INTEGER, "20000"),
    Option("parallel.readers", "parts that a large table is read in", OptionType.INTEGER, "4"),
    Option("database.wait.timeout", "how long to wait for a table or server", OptionType.DURATION, "0s"),
    Option("database.retry.interval", "how often to look for it", OptionType.DURATION, "2s"),
    Option("database.retry.*", "strategy, multiplier, increment and max.delay, as for topics"),
)

_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|--[^\n]*|/\*.*?\*/|\$(\w*)\$.*?\$\1\$|::|(?P<named>:[A-Za-z_]\w*)|(?P<mark>\?)""",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with the driver's own markers, and the values for them in their order."""

    sql: str
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read of a database, as the options say."""

    table: str | None = None
    schema: str | None = None
    query: str | None = None
    parameters: Sequence[Any] | Mapping[str, Any] = ()
    where: str | None = None
    order_by: str | None = None
    limit: int | None = None

    @classmethod
    def of(cls, options: Options, *, table: str | None) -> Selection:
        """`table` is what the address names, where the options don't."""
        named, query = options.text("table") or table, options.text("query")
        if (named is None) == (query is None):
            raise OptionError(
                "a database source needs a table or a query" if named is None else "table and query exclude each other",
                hint="WITH ('table' = 'orders'), or WITH ('query' = 'SELECT …')",
                code="invalid-option",
            )
        return cls(
            table=named,
            schema=options.text("schema"),
            query=query,
            parameters=_parameters(options.text("query.params")),
            where=options.text("where"),
            order_by=options.text("order.by"),
            limit=options.integer("limit"),
        )

    @property
    def shown(self) -> str:
        """What to call it in messages."""
        if self.query is not None:
            return "query"
        return ".".join(name for name in (self.schema, self.table) if name)

    @property
    def unlimited(self) -> Selection:
        """The same rows, all of them, in any order."""
        return replace(self, order_by=None, limit=None)

    def for_query(self, query: str, parameters: Mapping[str, Any]) -> Selection:
        """Another query in the place of all this."""
        return Selection(query=query, parameters=parameters)


class DatabaseSession(ABC):
    """One connection, for one thread. Where the database can, all that it reads is of one state."""

    snapshot: str | None = None
    """A name under which other sessions can read the same state for as long as this one is open."""

    @abstractmethod
    def discover(self, selection: Selection) -> Schema | None:
        """The columns, their types, and the key where it is known; None while only rows could tell."""

    @abstractmethod
    def rows(self, statement: Statement, schema: Schema, on_bad: OnBad, *, size: int) -> Iterator[pa.RecordBatch]:
        """The rows of a statement as batches of exactly `schema.arrow`, at most `size` each."""

    def estimate(self, selection: Selection) -> int | None:
        """About how many rows there are; None where the database can't say so without counting them."""
        return None

    def parts(self, selection: Selection, count: int) -> Sequence[str]:
        """Conditions that cut the rows into about so many parts; nothing when they can't be cut."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """End the connection; never raises."""


class DatabaseDriver(ABC):
    """How one kind of database is talked to. Holds settings only, and travels to workers."""

    kind: ClassVar[str]
    limit: str = " LIMIT {:d}"
    """What ends a SELECT that is to give at most so many rows."""

    @abstractmethod
    def open(self, *, snapshot: str | None = None, shared: bool = False) -> DatabaseSession:
        """A connection; to read what the session named `snapshot` reads, or `shared` with others.

        Raises `SourceError` with its category, and `StoreError.missing_driver`.
        """

    @abstractmethod
    def quote(self, name: str) -> str:
        """A name as an identifier."""

    @abstractmethod
    def marker(self, position: int) -> str:
        """What stands in SQL for the value at that position, counted from 0."""

    def bindable(self, value: Any, type_: pa.DataType) -> Any:
        """A value of a column as the driver takes it."""
        return value

    def relation(self, selection: Selection) -> Statement:
        """What stands behind FROM."""
        if selection.query is not None:
            bound = bind(selection.query, selection.parameters, self.marker)
            return replace(bound, sql=f"({bound.sql}) source_rows")
        names = [selection.schema] if selection.schema else []
        names += [str(selection.table)] if names else str(selection.table).split(".")
        return Statement(".".join(self.quote(name) for name in names))

    def newest(self, selection: Selection, column: str) -> Statement:
        """One row, with the largest value of a column under its name."""
        name = self.quote(column)
        relation = self.relation(selection)
        where = f" WHERE ({selection.where})" if selection.where else ""
        return Statement(f"SELECT max({name}) AS {name} FROM {relation.sql}{where}", relation.values)

    def at_least(self, column: str, marker: str) -> str:
        """A condition: the column has the value that the marker stands for, or a larger one."""
        return f"{self.quote(column)} >= {marker}"

    def below(self, column: str, marker: str) -> str:
        """A condition for all the rows for which `at_least` doesn't hold."""
        name = self.quote(column)
        return f"({name} < {marker} OR {name} IS NULL)"

    def orders(self, type_: pa.DataType) -> bool:
        """Whether the database brings numbers or times of a column into the order that they have for us."""
        return True

    def selected(self, columns: Sequence[str]) -> str:
        """What stands behind SELECT for these columns, each under its name; for none named, all."""
        return ", ".join(map(self.quote, columns)) if columns else "*"

    def select(
        self,
        selection: Selection,
        columns: Sequence[str],
        *,
        conditions: Sequence[str] = (),
        values: Sequence[Any] = (),
    ) -> Statement:
        """The rows, of which further conditions hold; these have their markers after those of the query."""
        relation = self.relation(selection)
        sql = f"SELECT {self.selected(columns)} FROM {relation.sql}"
        everything = [f"({selection.where})"] if selection.where else []
        everything += conditions
        if everything:
            sql += f" WHERE {' AND '.join(everything)}"
        if selection.order_by:
            sql += f" ORDER BY {selection.order_by}"
        if selection.limit is not None:
            sql += self.limit.format(selection.limit)
        return Statement(sql, (*relation.values, *values))


class ReadingMode(ABC):
    """One way of reading a database and of staying up to date; the part of `Source` that differs between them."""

    capabilities: SourceCapabilities
    poll_interval: timedelta | None = None
    """How often to look, unless the option `poll.interval` says so; None: as often as that option does by default."""

    def check(self, schema: Schema) -> None:
        """See that what has this schema can be read in this way. Raises `SourceError` where it can't."""

    @abstractmethod
    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        """As `Source.latest_offset`; None is before everything."""

    @abstractmethod
    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        """As `Source.partitions`."""

    @abstractmethod
    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        """As `Source.read`."""

    def reached(self, position: Offset, target: Offset) -> bool:
        """As `Source.reached`, of two offsets that are neither equal nor before everything."""
        return False

    def gauges(self, position: Offset) -> Mapping[str, int]:
        """As `Source.gauges`, of a position that is not before everything."""
        return {}

    def lag(self, position: Offset) -> Lag:
        """As `Source.lag`, of a position that is not before everything."""
        return Lag()

    def commit(self, end: Offset) -> None:
        """As `Source.commit`."""

    def forget(self, position: Offset) -> None:
        """As `Source.forget`."""

    def close(self) -> None:
        """As `Source.close`."""


class DatabaseSource(Source):
    """A table or query of a database. A kind says how to reach it.

    Delivery guarantee: exactly-once into tables, as each way of reading states for itself.
    """

    options: ClassVar[tuple[Option, ...]] = DATABASE_OPTIONS

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(with_parameters(spec))
        self._declared = declared_columns(self.spec, self.settings.text("record.schema"))
        self._found: Schema | None = None
        self.driver, table = self.reach()
        self.selection = Selection.of(self.settings, table=table)
        self.mode = self.reading_mode()

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers need the spec and open their own connections."""
        return type(self), (self.spec,)

    @abstractmethod
    def reach(self) -> tuple[DatabaseDriver, str | None]:
        """The driver for the address and the options, and the table that the address names. Connects nowhere."""

    def reading_mode(self) -> ReadingMode:
        """How this source is read, by its options."""
        from velostream.sources.polling import polling_mode

        return polling_mode(self)

    @property
    def capabilities(self) -> SourceCapabilities:
        return self.mode.capabilities

    @property
    def poll_interval(self) -> timedelta:
        own = None if "poll.interval" in self.settings else self.mode.poll_interval
        return own or self.settings.duration("poll.interval") or timedelta()

    @property
    def key(self) -> tuple[str, ...]:
        """The key as the statement gives it."""
        declared = self._declared.key if self._declared is not None else ()
        return names_of(self.settings.text("key")) or declared

    def schema(self) -> Schema | None:
        """Declared columns, else those of the database, with its primary key."""
        found = self.discovered()
        schema = self._declared or found
        if schema is None:
            return None
        known = () if found is None else found.key
        schema = schema.with_key(self.key or (known if all(schema.find(name) for name in known) else ()))
        self.mode.check(schema)
        return schema

    @property
    def adds_columns(self) -> bool:
        """Only a log tells when they come."""
        return self.settings.boolean("cdc")

    def discovered(self, *, anew: bool = False) -> Schema | None:
        """The columns as the database has them; asked until there is an answer, or `anew`."""
        if self._found is None or anew:
            session = self.driver.open()
            try:
                self._found = session.discover(self.selection)
            finally:
                session.close()
        return self._found

    @property
    def declares_columns(self) -> bool:
        """Whether the statement says which columns there are; it may leave some out."""
        return self._declared is not None

    def columns_of(self, schema: Schema) -> tuple[str, ...]:
        """What to select for these columns; declared ones may be written in another case than the database's."""
        return () if self._declared is not None else schema.names

    def initial_offset(self) -> Offset:
        return None

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        return self.mode.latest(start, max_rows=max_rows)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        return () if start == end else self.mode.partitions(start, end)

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        return self.mode.read(partition, schema, on_bad)

    def reached(self, position: Offset, target: Offset) -> bool:
        return target is None or position == target or (position is not None and self.mode.reached(position, target))

    def expected_rows(self, start: Offset, end: Offset) -> int | None:
        """Of a load; nobody knows how many rows will have changed."""
        if start is not None or self.settings.text("initial.load") == "none":
            return None
        session = self.driver.open()
        try:
            found = session.estimate(self.selection)
        finally:
            session.close()
        most = self.settings.integer("loading.bulk.max_records")
        return found if found is None or most is None else min(found, most)

    def gauges(self, position: Offset) -> Mapping[str, int]:
        return {} if position is None else self.mode.gauges(position)

    def lag(self, position: Offset) -> Lag:
        return Lag() if position is None else self.mode.lag(position)

    def commit(self, end: Offset) -> None:
        self.mode.commit(end)

    def forget(self, position: Offset) -> None:
        self.mode.forget(position)

    def close(self) -> None:
        self.mode.close()


def bind(sql: str, parameters: Sequence[Any] | Mapping[str, Any], marker: Callable[[int], str]) -> Statement:
    """A text with `?` or `:name` as a statement of a driver; what stands in quotes and comments is left alone.

    Without parameters nothing is replaced: `?` is an operator in some databases.
    """
    if not parameters:
        return Statement(sql.strip().rstrip(";"))
    values: list[Any] = []
    by_name = parameters if isinstance(parameters, Mapping) else None
    listed = () if isinstance(parameters, Mapping) else parameters

    def replaced(found: re.Match[str]) -> str:
        name = found["named"]
        if by_name is not None and name is not None:
            if name[1:] not in by_name:
                raise OptionError.value("query.params", ", ".join(by_name), expected=f'a value for "{name}"')
            values.append(by_name[name[1:]])
        elif by_name is None and found["mark"] is not None:
            if len(values) == len(listed):
                raise OptionError.value("query.params", str(len(listed)), expected="a value for every ?")
            values.append(listed[len(values)])
        else:
            return found[0]
        return marker(len(values) - 1)

    text = _TOKEN.sub(replaced, sql.strip().rstrip(";"))
    if len(values) < len(listed):
        raise OptionError.value("query.params", str(len(listed)), expected=f"{len(values)} values, one for every ?")
    return Statement(text, tuple(values))


def _parameters(text: str | None) -> Sequence[JsonValue] | Mapping[str, JsonValue]:
    if not text:
        return ()
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        values = list(names_of(text))
    return values if isinstance(values, list | dict) else [values]
