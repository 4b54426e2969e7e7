"""Answers as of now: what a SELECT, or the query inside of DML, gives over tables and bounded sources."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from sqlglot import exp

from velostream.engine.catalog import Entry, EntryKind
from velostream.engine.gate import GatePolicy
from velostream.engine.grouping import grouping_of
from velostream.engine.maintain.mirror import MirrorRunner
from velostream.engine.maintain.once import OnceRunner
from velostream.engine.maintain.views import ViewRunner
from velostream.engine.options import MEMORY, query_options
from velostream.engine.passthrough import answer
from velostream.engine.reading import Reading, read_range
from velostream.engine.relations import Reader, arrow_result, run_sql
from velostream.engine.staging import Gathered, Prepare, gather
from velostream.engine.status import State
from velostream.engine.trigger import Trigger
from velostream.errors import NotExecutableError, NotFoundError, StoreError
from velostream.model.change import CHANGE
from velostream.sources.base import Emits, Source
from velostream.sql import statements as st
from velostream.sql.lower import NotLowerable
from velostream.sql.plan import QueryPlan, RelationKind, Strategy
from velostream.tables.memory.evaluate import CannotCompile
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from velostream.engine.binding import BoundQuery
    from velostream.engine.context import EngineContext
    from velostream.engine.dml import Evaluate
    from velostream.engine.launch import Launcher
    from velostream.engine.planning import Lens
    from velostream.engine.transactions import Transaction
    from velostream.tables.base import Snapshot, Table

T = TypeVar("T")


class Puller:
    """Runs queries once. Stateless; may be used from many threads."""

    def __init__(self, context: EngineContext, launcher: Launcher) -> None:
        self._context = context
        self._launcher = launcher

    def plan(
        self, query: st.Query, *, options: tuple[st.OptionValue, ...] = (), text: str = ""
    ) -> tuple[QueryPlan, Lens]:
        """Plan a query whose inputs are loaded: waits for the tables it reads."""
        plan, lens = self._plan(query, options, text)
        goes_on = query.emit is st.Emit.CHANGES or any(one.target.kind is RelationKind.STREAM for one in plan.inputs)
        if not goes_on:
            Trigger.of(query_options(options)).refuse_unless_it_goes_on()
        self.wait_for_inputs(plan, options)
        if any(one.target.schema is None for one in plan.inputs):
            plan, lens = self._plan(query, options, text)
        return plan, lens

    def _plan(self, query: st.Query, options: tuple[st.OptionValue, ...], text: str) -> tuple[QueryPlan, Lens]:
        return self._launcher.binder.plan(query, options=options, text=text, continuous=False)

    def rows(self, plan: QueryPlan, lens: Lens, transaction: Transaction | None = None) -> pa.Table:
        """The answer to a plan that no stream drives; without Spark where one table can give it."""
        if plan.strategy is Strategy.PASSTHROUGH and plan.passthrough is not None:
            entry = self._entry(plan.passthrough.table)
            version = plan.inputs[0].version
            if version is not None:
                snapshot = self._context.older_snapshot(entry, version)
            elif transaction is None:
                snapshot = self._context.table_of(entry).snapshot()
            else:
                snapshot = transaction.snapshot(entry)
            with suppress(NotLowerable, CannotCompile):
                return answer(plan.passthrough, snapshot)
        return self.bound_rows(self._launcher.binder.bind_plan(plan, lens), transaction=transaction)

    def pushed_down(self, plan: QueryPlan) -> list[tuple[str, str]]:
        """For EXPLAIN: what of a SELECT the store of its table works out itself."""
        passthrough = plan.passthrough
        entry = None if passthrough is None else self._entry(passthrough.table)
        if passthrough is None or entry is None or entry.store == MEMORY:
            return []
        table = self._context.table_of(entry)
        told = []
        try:
            if passthrough.condition is not None:
                left = table.compile_condition(passthrough.condition).remainder
                by = table.kind if left is None else f"us, of the rows that {table.kind} finds by the rest of it"
                told.append(("condition", f"evaluated by {by}" if left != passthrough.condition else "evaluated by us"))
            if passthrough.grouped:
                grouping = grouping_of(passthrough, table.schema)
                asked = None if grouping is None else table.compile_grouping(grouping)
                told.append(("groups", "computed by us" if asked is None else f"computed by {table.kind}: {asked}"))
        except (StoreError, CannotCompile) as error:
            told.append(("pushed down", f"not known: {error}"))
        return told

    def gathered(
        self, plan: QueryPlan, lens: Lens, table: Table, preparing: Callable[[Sequence[str]], Prepare]
    ) -> Gathered:
        """The answer to such a plan, ready to be committed to a table; `preparing` is told its columns."""
        if plan.strategy is Strategy.PASSTHROUGH:
            rows = self.rows(plan, lens)
            return Gathered.here(preparing(rows.column_names)(rows))
        bound = self._launcher.binder.bind_plan(plan, lens)
        return self._executed(bound, lambda frame: gather(frame, table, preparing(frame.columns)))

    def bound_rows(
        self,
        bound: BoundQuery,
        *,
        given: Mapping[str, Snapshot] | None = None,
        transaction: Transaction | None = None,
    ) -> pa.Table:
        """The answer of Spark: all tables at one commit number, sources read to their present end.

        `given` are snapshots to read instead, by entry id.
        """
        return self._executed(bound, arrow_result, given=given, transaction=transaction)

    def _executed(
        self,
        bound: BoundQuery,
        execute: Callable[[DataFrame], T],
        *,
        given: Mapping[str, Snapshot] | None = None,
        transaction: Transaction | None = None,
    ) -> T:
        session = self._context.spark.session()
        instead = given or {}
        readings: list[tuple[Source, Reading]] = []
        sql = bound.plan.sql
        with self._context.sequence.pin() as pin, ExitStack() as opened:
            frames = {}
            for one in bound.inputs:
                reader = Reader(sql, one.relation)
                if one.entry is not None and one.version is not None:
                    older = self._context.older_snapshot(one.entry, one.version)
                    frames[one.relation] = self._context.frame_of(session, one.entry, older, reader=reader)
                elif one.entry is not None and one.entry.id in instead:
                    snapshot = instead[one.entry.id]
                    frames[one.relation] = self._context.frame_of(session, one.entry, snapshot, reader=reader)
                elif one.entry is not None and one.kind is RelationKind.TABLE and transaction is not None:
                    frames[one.relation] = transaction.frame(session, one.entry, reader=reader)
                elif one.entry is not None and one.kind is RelationKind.TABLE:
                    frames[one.relation] = self._context.frame(session, one.entry, at=pin.sequence, reader=reader)
                elif one.spec is not None:
                    source = self._launcher.book.open(one.spec)
                    opened.callback(source.close)
                    start = source.initial_offset()
                    end = source.latest_offset(start)
                    opened.callback(source.forget, end)
                    reading = read_range(session, source, start, end, one.schema)
                    readings.append((source, reading))
                    frames[one.relation] = _rows_there(reading.frame, source)
            executed = execute(run_sql(session, sql, frames))
        for source, reading in readings:
            letters = self._context.bad_record_writes("SELECT", source, reading.bad_records())
            if letters:
                self._context.sequence.commit(Part(writes=letters))
        return executed

    def evaluate_over(
        self, target: Entry, *, sources: tuple[st.SourceRef, ...] = (), transaction: Transaction | None = None
    ) -> Evaluate:
        """How DML on a table asks Spark for what the table can't evaluate itself; `sources` are the statement's."""

        def evaluate(select: exp.Select, snapshot: Snapshot) -> pa.Table:
            plan, lens = self._plan(st.Query(select, sources), (), "")
            if any(one.target.kind is RelationKind.STREAM for one in plan.inputs):
                raise NotExecutableError(
                    "a stream can't be read by a statement that runs once",
                    hint="UPDATE … FROM, DELETE … USING and UPSERT … ON follow a stream; "
                    "CREATE TABLE … AS SELECT … makes a table of it to read",
                )
            bound = self._launcher.binder.bind_plan(plan, lens)
            given = {target.id: snapshot} if transaction is None else {}
            return self.bound_rows(bound, given=given, transaction=transaction)

        return evaluate

    def wait_for_inputs(self, plan: QueryPlan, options: tuple[st.OptionValue, ...]) -> None:
        """The gate of a pull query: every table it reads has loaded."""
        follows = any(one.target.kind is RelationKind.STREAM for one in plan.inputs)
        deadline = time.monotonic() + GatePolicy.of(query_options(options, realtime=follows)).timeout.total_seconds()
        for one in plan.inputs:
            entry = self._context.catalog.find(one.target.name) if one.source is None else None
            if entry is not None and entry.is_table:
                self._context.wait_ready(entry, deadline)
                self._wait_for_changes(entry, deadline)

    def _wait_for_changes(self, entry: Entry, deadline: float) -> None:
        """What DML or REFRESH has changed is seen by the next SELECT, through views over views too."""
        changed = {
            one.id: self._context.table(one.id).version
            for one in self._context.catalog
            if one.kind is EntryKind.TABLE
            and one.store == MEMORY
            and not any(one.id in other.writes for other in self._context.catalog)
        }
        moved = False
        for upstream in self._context.catalog.upstream(entry):
            runner = self._launcher.running.runners.get(upstream.id)
            if isinstance(runner, MirrorRunner):
                runner.catch_up()
            if isinstance(runner, MirrorRunner | OnceRunner):
                changed[upstream.id] = self._context.table(upstream.id).version
            if isinstance(runner, ViewRunner):
                if runner.board.state is not State.READY or runner.pace.rests or runner.has_ended:
                    return
                moved = moved or any(
                    changed.get(one.id, 0) > runner.reflects.get(one.id, 0) for one in runner.inputs.values()
                )
                if moved:
                    runner.drain(deadline)
                if upstream.store == MEMORY:
                    # A wave may have brought this view along and not yet those that read it.
                    changed[upstream.id] = self._context.memory_table(upstream.id).version

    def _entry(self, name: str) -> Entry:
        entry = self._context.catalog.find(name)
        if entry is None or not entry.is_table:
            known = [e.name for e in self._context.catalog.visible() if e.is_table]
            raise NotFoundError.of("table", name, known=known)
        return entry


def _rows_there(records: DataFrame, source: Source) -> DataFrame:
    """The rows that the records of a source stand for, read from its beginning."""
    if source.capabilities.emits is Emits.APPENDS:
        return records
    return records.where(f"{CHANGE} > 0").drop(CHANGE)
