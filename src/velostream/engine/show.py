"""SHOW and DESCRIBE: the engine's state as rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from velostream import plugins
from velostream.engine.catalog import Entry, EntryKind
from velostream.engine.functions import FunctionKind
from velostream.engine.options import table_class
from velostream.engine.result import Result
from velostream.engine.status import State
from velostream.errors import NotFoundError, StoreError
from velostream.model.confidential import concealed, public
from velostream.model.types import render_type
from velostream.plugins import Group
from velostream.sql.parse import parse_statement
from velostream.sql.path_values import JSON_VALUES
from velostream.sql.statements import Create, Show, ShowKind

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.engine.status import Status


class Shower:
    """Answers SHOW and DESCRIBE."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    def show(self, statement: Show) -> Result:
        name = statement.name.text if statement.name is not None else None
        columns, rows = self._rows(statement.what, name)
        kept = [row for row in rows if _like(str(row[0]), statement.like)]
        return Result.rows(columns, kept)

    def describe(self, name: str) -> Result:
        return Result.rows(*self._schema(self._find(name)))

    def status(self, entry: Entry) -> Status:
        """The board's status, with what the table itself knows."""
        status = self._context.board(entry).status
        for hidden, board in self._context.hidden_inputs(entry):
            if board.state in (State.FAILED, State.DEGRADED) and status.state not in (State.PAUSED, State.STOPPED):
                whole = hidden.kind is EntryKind.GROUPS or not self._context.board(entry).was_ready
                state = board.state if whole else State.DEGRADED
                status = replace(status, state=state, reason=board.status.reason, error=board.status.error)
        stats = self.stats(entry)
        every = [status, *(board.status for _, board in self._context.hidden_inputs(entry))]
        slowest = min((one for one in every if one.percent is not None), key=_percent, default=status)
        return replace(
            status,
            lag_rows=max((one.lag_rows for one in every if one.lag_rows is not None), default=None),
            lag_seconds=max((one.lag_seconds for one in every if one.lag_seconds is not None), default=None),
            percent=slowest.percent,
            eta=slowest.eta,
            warnings=tuple(dict.fromkeys(warning for one in every for warning in one.warnings)),
            gauges=self.gauges(entry),
            rows=stats.get("rows"),
            bytes=stats.get("bytes"),
            version=stats.get("version"),
            counters=self.counters(entry),
        )

    def work(self, name: str) -> Result:
        """EXPLAIN ANALYZE: what a query has done since it was started in this process, stage by stage."""
        entry = self._context.catalog.find(name)
        if entry is None or not entry.is_query:
            known = [one.name for one in self._context.catalog.visible() if one.is_query]
            raise NotFoundError.of("query", name, known=known)
        status = self.status(entry)
        rows: list[tuple[Any, ...]] = []
        boards = [self._context.board(entry), *(board for _, board in self._context.hidden_inputs(entry))]
        for board in boards:
            behind = "" if board is boards[0] else f"{board.status.kind}: "
            for stage, done in board.work.stages().items():
                each = f"{done.seconds / done.times * 1000:.1f} ms each" if done.times else None
                rows.append((behind + stage, done.times, done.rows, round(done.seconds, 6), each))
            for where, hits in board.work.lookups().items():
                rate = f"{hits.found / hits.looked_up:.1%} found" if hits.looked_up else None
                rows.append((f"{behind}lookup in {where}", None, hits.looked_up, None, rate))
        figures = {**self.counters(entry), **self.gauges(entry)}
        rows += [(name, None, number, None, None) for name, number in figures.items()]
        rate = "" if status.rows_per_second is None else f", {status.rows_per_second:.0f} rows per second"
        rows.insert(0, (f'query "{entry.name}"', None, status.rows, None, f"{status.state}{rate}"))
        return Result.rows(["stage", "batches", "rows", "seconds", "detail"], rows)

    def counters(self, entry: Entry) -> dict[str, int]:
        """What a query and the engine's own entries behind it have counted since the start."""
        boards = [self._context.board(entry)]
        counting = (EntryKind.GROUPS, EntryKind.SOURCE)
        boards += [board for one, board in self._context.hidden_inputs(entry) if one.kind in counting]
        return {counter: number for board in boards for counter, number in board.counters.items()}

    def gauges(self, entry: Entry) -> dict[str, int]:
        """How things stand where the rows of a query come from."""
        boards = [self._context.board(entry), *(board for _, board in self._context.hidden_inputs(entry))]
        return {name: figure for board in boards for name, figure in board.gauges.items()}

    def metrics(self, entry: Entry) -> dict[str, Any]:
        """Figures of a table, of the query that feeds it and of where its rows come from."""
        return {**self.stats(entry), **self.counters(entry), **self.gauges(entry)}

    def stats(self, entry: Entry) -> Mapping[str, Any]:
        """Figures of a table; none while it has no columns, or its store doesn't answer."""
        if not entry.is_table or entry.schema is None:
            return {}
        store = self._context.stores.find(entry.id)
        if store is None:
            return self._context.memory_table(entry.id).stats()
        if store.is_away:
            return {}
        try:
            return store.stats()
        except StoreError:
            return {}

    def _rows(self, what: ShowKind, name: str | None) -> tuple[list[str], Iterable[tuple[Any, ...]]]:
        visible = self._context.catalog.visible()
        match what:
            case ShowKind.TABLES:
                statuses = [(entry, self.status(entry)) for entry in visible if entry.is_table]
                return ["name", "kind", "rows", "state", "extension"], [
                    (entry.name, entry.kind.value, status.rows, status.state.value, _extension(entry))
                    for entry, status in statuses
                ]
            case ShowKind.STREAMS:
                return ["name", "state", "statement"], [
                    (e.name, self._context.board(e).state.value, public(e.sql))
                    for e in visible
                    if e.kind is EntryKind.STREAM
                ]
            case ShowKind.QUERIES:
                return ["name", "kind", "state", "reason", "statement"], [
                    (
                        e.name,
                        e.kind.value,
                        self._context.board(e).state.value,
                        self._context.board(e).status.reason,
                        public(e.sql),
                    )
                    for e in visible
                    if e.is_query
                ]
            case ShowKind.SOURCES:
                return ["kind", "follows"], [(kind, _source_summary(kind)) for kind in plugins.names(Group.SOURCES)]
            case ShowKind.STATUS | ShowKind.PROGRESS | ShowKind.METRICS:
                entries = visible if name is None else [self._find(name)]
                return self._board_rows(what, entries)
            case ShowKind.SCHEMA:
                return self._schema(self._find(name or ""))
            case ShowKind.PROPERTIES:
                return self._properties(self._find(name or ""))
            case ShowKind.DEAD_LETTERS:
                return self._dead_letters(name)
            case ShowKind.FUNCTIONS:
                return ["name", "kind", "returns"], self._functions()

    def _board_rows(self, what: ShowKind, entries: list[Entry]) -> tuple[list[str], list[tuple[Any, ...]]]:
        statuses = [self.status(entry) for entry in entries]
        if what is ShowKind.STATUS:
            columns = [
                "name",
                "kind",
                "state",
                "reason",
                "since",
                "rows",
                "version",
                "error",
                "attempts",
                "next_retry_at",
                "warnings",
            ]
            return columns, [
                (
                    s.name,
                    s.kind,
                    s.state.value,
                    s.reason,
                    s.since.replace(tzinfo=None),
                    s.rows,
                    s.version,
                    s.error,
                    s.attempts,
                    s.next_retry_at.replace(tzinfo=None) if s.next_retry_at else None,
                    "; ".join(s.warnings) or None,
                )
                for s in statuses
            ]
        if what is ShowKind.PROGRESS:
            columns = ["name", "state", "rows", "rows_per_second", "percent", "eta", "lag_rows", "lag_seconds"]
            return columns, [
                (s.name, s.state.value, s.rows, s.rows_per_second, s.percent, s.eta, s.lag_rows, s.lag_seconds)
                for s in statuses
            ]
        rows: list[tuple[Any, ...]] = []
        for entry in entries:
            rows += [(entry.name, metric, str(value)) for metric, value in self.metrics(entry).items()]
        return ["name", "metric", "value"], rows

    def _functions(self) -> list[tuple[Any, ...]]:
        kinds = {FunctionKind.SCALAR: "python", FunctionKind.AGGREGATE: "python aggregate"}
        ours = {one.name.lower(): (kinds[one.kind], render_type(one.returns)) for one in self._context.functions}
        session = self._context.spark.session()
        names = {str(row[0]) for row in session.sql("SHOW FUNCTIONS").collect()} - {JSON_VALUES}
        return [(name, *ours.get(name.lower(), ("built-in", None))) for name in sorted(names)]

    @staticmethod
    def _schema(entry: Entry) -> tuple[list[str], list[tuple[Any, ...]]]:
        columns = entry.schema.columns if entry.schema is not None else ()
        key = entry.schema.key if entry.schema is not None else ()
        return ["column", "type", "nullable", "key"], [(c.name, c.sql_type, c.nullable, c.name in key) for c in columns]

    @staticmethod
    def _properties(entry: Entry) -> tuple[list[str], list[tuple[Any, ...]]]:
        statement = parse_statement(entry.sql)
        options = getattr(statement, "options", ())
        rows: list[tuple[Any, ...]] = [("kind", entry.kind.value), ("created_at", entry.created_at)]
        if entry.is_table:
            rows.append(("extension", _extension(entry)))
        shown = [option for option in options if not (entry.is_table and option.name in ("extension", "connector"))]
        rows += [(option.name, concealed(option.name, option.value)) for option in shown]
        if isinstance(statement, Create):
            rows.append(("statement", public(entry.sql)))
        return ["property", "value"], rows

    def _dead_letters(self, name: str | None) -> tuple[list[str], list[tuple[Any, ...]]]:
        rows = self._context.dead_letters().snapshot().scan().to_pylist()
        columns = ["name", "source", "position", "reason", "raw", "at"]
        chosen = [row for row in rows if name is None or row["name"].lower() == name.lower()]
        return columns, [
            tuple(row["at"].replace(tzinfo=None) if column == "at" else row[column] for column in columns)
            for row in chosen
        ]

    def _find(self, name: str) -> Entry:
        entry = self._context.catalog.find(name)
        if entry is None:
            raise NotFoundError.of("table", name, known=[e.name for e in self._context.catalog.visible()])
        return entry


def _percent(status: Status) -> float:
    return 0.0 if status.percent is None else status.percent


def _like(text: str, pattern: str | None) -> bool:
    """SQL LIKE in any case of letters; no pattern matches everything."""
    if pattern is None:
        return True
    expression = "".join({"%": ".*", "_": "."}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(expression, text, re.IGNORECASE | re.DOTALL) is not None


def _extension(entry: Entry) -> str:
    """The kind of table that holds an entry's rows, as people write it."""
    return table_class(entry.store).kind


def _source_summary(kind: str) -> str:
    try:
        documentation = plugins.load(Group.SOURCES, kind).__doc__ or ""
    except ImportError as error:
        return f"not installed: {error}"
    return documentation.strip().splitlines()[0] if documentation.strip() else ""
