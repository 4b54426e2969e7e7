"""Playing a case: the engine and a model side by side, compared wherever the case looks."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from velostream.engine.connection import Connection, connect
from velostream.errors import VelostreamError
from velostream.testing.fuzz.case import (
    LOOKUP,
    Append,
    Case,
    Commit,
    CreateFolded,
    CreateTable,
    CreateView,
    FeedSpec,
    Forget,
    Look,
    LookBack,
    Restart,
    Step,
    ViewSpec,
)
from velostream.testing.fuzz.changes import Row, TableSpec
from velostream.testing.fuzz.compare import difference
from velostream.testing.fuzz.oracle import Oracle
from velostream.testing.fuzz.streams import BATCHES
from velostream.testing.fuzz.values import arrow_rows

_SECONDS = 120.0
"""How long a view may take to catch up. Generous: a busy machine is no mistake of ours."""
_AS_OF_BATCH = ("map", "aggregate")
"""Strategies in which a stream sees tables as they are when its rows come."""


@dataclass(frozen=True)
class Failure:
    """Something that isn't as it should be: at which step, and for which view, if it was one."""

    case: Case
    step: int
    view: str
    what: str

    def __str__(self) -> str:
        return f"{self.case.script}\n\nat step {self.step}, {self.view}:\n{self.what}"


@dataclass
class Tally:
    """What was done, to see that it was enough."""

    checks: int = 0
    empty: int = 0
    """Answers without rows, which prove little."""
    views: int = 0
    lookups: int = 0
    """Views that find rows of tables through the lookup stage, unless they are told not to."""
    versions: int = 0
    """Older ones that were compared."""
    refused_by_spark: list[str] = field(default_factory=list)
    """Why Spark can't answer some of the queries, which are not compared."""
    strategies: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        strategies = ", ".join(f"{count} {name}" for name, count in sorted(self.strategies.items()))
        compared = f"{self.checks} answers ({self.empty} empty) of {self.views} views compared ({strategies})"
        compared += f", {self.lookups} of them by lookups, and {self.versions} older versions"
        return f"{compared}; Spark refused {len(self.refused_by_spark)}"


class _FailedError(Exception):
    def __init__(self, view: str, what: str) -> None:
        super().__init__(what)
        self.view, self.what = view, what


def play(case: Case, tally: Tally | None = None) -> Failure | None:
    """Play a case in a folder of its own; what failed first, if anything did."""
    number = 0
    with _Player(case, tally or Tally()) as player:
        try:
            for number, step in enumerate(case.steps):  # noqa: B007 - it says which step failed
                player.take(step)
        except _FailedError as failed:
            return Failure(case, number, failed.view, failed.what)
        except VelostreamError as error:
            return Failure(case, number, "", _told(error))
        except Exception:  # noqa: BLE001 - what isn't ours is a mistake, too, and of this case
            return Failure(case, number, "", traceback.format_exc())
    return None


@dataclass
class _RunningView:
    """A view that is compared."""

    spec: ViewSpec
    as_of_batch: bool
    pulled: bool
    """Whether its table answers the query itself when it is asked once, which is another way to the same rows."""
    given: list[pa.Table] = field(default_factory=list)
    """What Spark gave for each batch so far."""
    first: tuple[int, int] | None = None
    """The version that was compared first, and which of the past states of the tables it was about."""


@dataclass(frozen=True)
class _Past:
    """What the tables held from a commit on, or from the creation of one of them."""

    version: int
    rows: Mapping[str, Sequence[Row]]


class _Player:
    def __init__(self, case: Case, tally: Tally) -> None:
        self._tally = tally
        self._resources = ExitStack()
        self._folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory(prefix="fuzz-")))
        self._config = dict(case.settings)
        self._durable = any(isinstance(step, Restart) for step in case.steps)
        self._connection = self._connect()
        self._oracle = self._resources.enter_context(Oracle(self._folder / "oracle"))
        self._tables: dict[str, TableSpec] = {}
        self._rows: dict[str, list[Row]] = {}
        self._folded: dict[str, FeedSpec] = {}
        self._streams: dict[str, FeedSpec] = {}
        self._feeds: dict[str, list[Row]] = {}
        self._views: dict[str, _RunningView] = {}
        self._past: list[_Past] = []
        self._stale: set[str] = set()
        """Relations whose rows Spark hasn't been given yet."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()
        self._resources.close()

    def take(self, step: Step) -> None:
        match step:
            case CreateTable(table):
                self._connection.execute(table.ddl)
                self._tables[table.name] = table
                self._rows[table.name] = []
                self._stale.add(table.name)
                self._remember()
            case CreateFolded(feed):
                self._connection.execute(step.ddl)
                self._folded[str(feed.folded)] = feed
                self._stale.add(str(feed.folded))
            case CreateView(view):
                self._create(view)
            case Commit():
                self._commit(step)
            case Append(feed, rows):
                self._append(feed, rows)
            case Forget(feed, ids):
                self._connection.memory(feed.name).delete([{"id": one} for one in ids])
                gone = [row for row in self._feeds.get(feed.name, []) if row["id"] not in ids]
                self._feeds[feed.name] = gone
                self._stale.add(str(feed.folded))
            case Restart():
                self._connection.close()
                self._connection = self._connect()
            case Look():
                self._look()
            case LookBack(view, part):
                self._look_back(view, part)

    def _connect(self) -> Connection:
        return connect(self._folder / "state" if self._durable else None, config=self._config)

    def _commit(self, commit: Commit) -> None:
        changes = commit.changes
        if len(changes) == 1:
            self._connection.execute(changes[0].sql)
        else:
            with self._connection.begin() as transaction:
                for change in changes:
                    transaction.execute(change.sql)
        for change in changes:
            name = change.table.name
            self._rows[name] = change.apply(self._rows[name])
            self._stale.add(name)
        self._remember()

    def _append(self, feed: FeedSpec, rows: tuple[Row, ...]) -> None:
        self._connection.memory(feed.name).append(arrow_rows(rows, feed.columns))
        before = self._feeds.get(feed.name, [])
        if feed.folded is None:
            self._feeds[feed.name] = [*before, *rows]
            self._streams[feed.name] = feed
            self._stale.add(feed.name)
            driven = [view for view in self._views.values() if view.as_of_batch and view.spec.feed == feed]
            self._batch(feed, rows, driven)
            return
        newest = {row["id"]: row for row in (*before, *rows)}
        self._feeds[feed.name] = list(newest.values())
        self._stale.add(feed.folded)

    def _create(self, view: ViewSpec) -> None:
        self._tell_spark()
        reason = self._oracle.define(view.name, view.sparks)
        if reason is not None:
            self._tally.refused_by_spark.append(f"{reason} in {view.sparks}")
            return
        strategy = self._strategy(view.ddl)
        if view.lookup is not None:
            self._connection.execute(f"SET {LOOKUP} = {view.lookup}")
        self._connection.execute(view.ddl)
        running = _RunningView(
            view,
            as_of_batch=view.feed is not None and strategy in _AS_OF_BATCH,
            pulled=view.feed is None and not view.timed and self._strategy(view.ours) == "passthrough",
        )
        self._views[view.name] = running
        self._tally.views += 1
        self._tally.strategies[strategy] = self._tally.strategies.get(strategy, 0) + 1
        if view.feed is not None and running.as_of_batch:
            self._batch(view.feed, tuple(self._feeds[view.feed.name]), [running])

    def _strategy(self, statement: str) -> str:
        explained: dict[str, str] = dict(self._connection.execute(f"EXPLAIN {statement}").fetchall())
        self._tally.lookups += "lookup" in explained
        return explained["strategy"]

    def _batch(self, feed: FeedSpec, rows: tuple[Row, ...], views: list[_RunningView]) -> None:
        """Rows that streams read now, before anything else happens to the tables."""
        if not views:
            return
        self._tell_spark()
        self._oracle.put(feed.name, arrow_rows(rows, feed.columns))
        self._stale.add(feed.name)
        # The same query may be there twice, run in two ways.
        answers = {query: self._oracle.ask(query) for query in {str(view.spec.per_batch): None for view in views}}
        for view in views:
            answer = answers[str(view.spec.per_batch)]
            if isinstance(answer, str):
                self._give_up(view, answer)
                continue
            view.given.append(answer)
            self._drain(view)

    def _tell_spark(self) -> None:
        """Give Spark the rows that have changed."""
        for name in self._stale:
            self._oracle.put(name, self._model(name))
        self._stale.clear()

    def _model(self, name: str) -> pa.Table:
        if name in self._tables:
            return arrow_rows(self._rows[name], self._tables[name].columns)
        feed = self._folded.get(name) or self._streams[name]
        return arrow_rows(self._feeds.get(feed.name, []), feed.columns)

    def _look(self) -> None:
        self._tell_spark()
        for name in (*self._tables, *self._folded):
            if name in self._folded:
                self._connection.drain(name, timeout=_SECONDS)
            self._check(name, self._model(name))
        for name, view in list(self._views.items()):
            right = self._right(view)
            if isinstance(right, str):
                self._give_up(view, right)
                continue
            self._drain(view)
            self._check(name, right)
            if view.first is None:
                view.first = (self._connection.table(name).version, len(self._past) - 1)
            if view.pulled:
                self._compare(f"SELECT of {name}", self._connection.execute(view.spec.ours).arrow(), right)
            if any(f" {name} " in other.spec.sparks for other in self._views.values()):
                # What reads the view reads the answer, which needn't be worked out again.
                self._oracle.put(name, right)

    def _remember(self) -> None:
        version = max(self._connection.table(name).version for name in self._tables)
        self._past.append(_Past(version, {name: tuple(rows) for name, rows in self._rows.items()}))

    def _look_back(self, name: str, part: float) -> None:
        """A version of a view is what its query gave at some commit, not before the one it was first compared at."""
        view = self._views.get(name)
        if view is None or view.first is None or any(f" {other} " in view.spec.sparks for other in self._views):
            return
        first, earliest = view.first
        newest = self._connection.table(name).version
        version = newest - round((newest - first) * part)
        found = self._connection.execute(f"SELECT * FROM {name} VERSION AS OF {version}").arrow()
        told: str | None = None
        later = [state for state in self._past[earliest + 1 :] if state.version <= version]
        for state in reversed([self._past[earliest], *later]):
            for table, rows in state.rows.items():
                self._oracle.put(table, arrow_rows(rows, self._tables[table].columns))
                self._stale.add(table)
            right = self._oracle.ask(view.spec.sparks)
            if isinstance(right, str) or (told := difference(found, right)) is None:
                self._tally.versions += 1
                return
        raise _FailedError(name, f"version {version} is what the query gave at no commit; at the first:\n{told}")

    def _right(self, view: _RunningView) -> pa.Table | str:
        if not view.as_of_batch:
            return self._oracle.ask(view.spec.sparks)
        given = pa.concat_tables(view.given)
        if view.spec.of_batches is None:
            return given
        self._oracle.put(BATCHES, given)
        return self._oracle.ask(view.spec.of_batches)

    def _give_up(self, view: _RunningView, reason: str) -> None:
        """Spark itself fails with these rows, so there is nothing to compare with."""
        self._tally.refused_by_spark.append(f"{reason} in {view.spec.sparks}")
        del self._views[view.spec.name]

    def _drain(self, view: _RunningView) -> None:
        try:
            self._connection.drain(view.spec.name, timeout=_SECONDS)
        except VelostreamError as error:
            raise _FailedError(view.spec.name, _told(error)) from error

    def _check(self, name: str, right: pa.Table) -> None:
        self._compare(name, self._connection.table(name).arrow(), right)

    def _compare(self, name: str, found: pa.Table, right: pa.Table) -> None:
        self._tally.checks += 1
        self._tally.empty += not right.num_rows
        told = difference(found, right)
        if told is not None:
            raise _FailedError(name, told)


def _told(error: VelostreamError) -> str:
    return "\n".join(part for part in (error.code, error.message, error.detail, error.hint) if part)
