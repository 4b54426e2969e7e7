"""One statement to its result: the dispatcher between what was said and who does it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from velostream.engine import dml
from velostream.engine.binding import BoundQuery
from velostream.engine.catalog import Entry, EntryKind
from velostream.engine.launch import gate_policy
from velostream.engine.maintain.mirror import MirrorRunner
from velostream.engine.maintain.views import ViewRunner
from velostream.engine.options import MEMORY, query_options
from velostream.engine.passthrough import answer
from velostream.engine.reading import read_range
from velostream.engine.relations import arrow_result, run_sql
from velostream.engine.result import Result, rows_of
from velostream.engine.show import Shower
from velostream.engine.status import State
from velostream.errors import NotExecutableError, NotFoundError, TableError, UnsupportedError, ValidationError
from velostream.model.change import Epoch, Mode, Write
from velostream.sql import statements as st
from velostream.sql.explain import explain_rows, validate_statement
from velostream.sql.lower import NotLowerable
from velostream.sql.plan import QueryPlan, RelationKind, Strategy
from velostream.tables.memory.evaluate import CannotCompile
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.engine.definitions import Definitions
    from velostream.engine.dml import Evaluate
    from velostream.engine.launch import Launcher, PushedRows
    from velostream.engine.planning import Lens
    from velostream.engine.supervisor import Supervisor
    from velostream.tables.base import Snapshot

Parameters = Sequence[Any] | Mapping[str, Any] | None


class Executor:
    """Executes statements of one connection. Stateless itself; may be used from many threads."""

    def __init__(
        self, context: EngineContext, launcher: Launcher, definitions: Definitions, supervisor: Supervisor
    ) -> None:
        self._context = context
        self._launcher = launcher
        self._definitions = definitions
        self._supervisor = supervisor
        self._shower = Shower(context)

    def execute(self, statement: st.Statement, parameters: Parameters = None, *, epoch: Epoch | None = None) -> Result:
        """Execute one statement. With an epoch, rows that an INSERT adds at once are added once for that epoch."""
        match statement:
            case st.Select():
                return self._select(statement, parameters)
            case st.Create():
                if statement.query is not None:
                    statement = replace(statement, query=bind_parameters(statement.query, parameters))
                return _done(self._definitions.create(statement))
            case st.Insert():
                return self._insert(statement, parameters, epoch)
            case st.Update() if statement.source is None:
                return self._change(dml.update, statement.table, statement, parameters)
            case st.Delete() if statement.source is None:
                return self._change(dml.delete, statement.table, statement, parameters)
            case st.Truncate():
                return Result.affected(dml.truncate(self._context.table(self._target(statement.table).id)))
            case st.Drop() if statement.what is not st.ObjectKind.INDEX:
                done = self._definitions.drop(
                    statement.name.text, what=statement.what, if_exists=statement.if_exists, cascade=statement.cascade
                )
                return _done(done)
            case st.Drop():
                return _done(self._drop_index(statement))
            case st.CreateIndex():
                return _done(self._create_index(statement))
            case st.Show():
                return self._shower.show(statement)
            case st.Describe():
                return self._shower.describe(statement.name.text)
            case st.Explain():
                return self._explain(statement)
            case st.Validate():
                return self._validate(statement)
            case st.Control():
                return _done(self._supervisor.control(statement.name.text, statement.action))
            case _:
                raise NotExecutableError.statement(
                    statement.kind, line=statement.place.line, column=statement.place.column, text=statement.text
                )

    def _select(self, statement: st.Select, parameters: Parameters) -> Result:
        query = bind_parameters(statement.query, parameters)
        plan, lens = self._plan(query, statement, continuous=False)
        if query.emit is not None and not any(one.target.kind is RelationKind.STREAM for one in plan.inputs):
            raise NotExecutableError.statement(
                f"SELECT … EMIT {query.emit.upper()} over tables",
                hint='con.subscribe("t") gives the changes of a table or view as they are committed',
                text=statement.text,
            )
        self._wait_for_inputs(plan, statement.options)
        if any(one.target.schema is None for one in plan.inputs):
            plan, lens = self._plan(query, statement, continuous=False)
        if plan.strategy is Strategy.PASSTHROUGH and plan.passthrough is not None:
            table = self._context.table_of(self._entry(plan.passthrough.table))
            with suppress(NotLowerable, CannotCompile):
                return Result.of(answer(plan.passthrough, table.snapshot()))
        bound = self._launcher.binder.bind_plan(plan, lens)
        if bound.driving is not None:
            return self._push(bound, statement)
        return Result.of(self._pull(bound))

    def _plan(self, query: st.Query, statement: st.Statement, *, continuous: bool) -> tuple[QueryPlan, Lens]:
        options = getattr(statement, "options", ())
        return self._launcher.binder.plan(query, options=options, text=statement.text, continuous=continuous)

    def _wait_for_inputs(self, plan: QueryPlan, options: tuple[st.OptionValue, ...]) -> None:
        """The gate of a pull query: every table it reads has loaded."""
        deadline = time.monotonic() + gate_policy(query_options(options)).timeout.total_seconds()
        for one in plan.inputs:
            entry = self._context.catalog.find(one.target.name) if one.source is None else None
            if entry is not None and entry.is_table:
                self._context.wait_ready(entry, deadline)
                self._wait_for_changes(entry, deadline)

    def _wait_for_changes(self, entry: Entry, deadline: float) -> None:
        """What DML has changed is seen by the next SELECT, through views over views too."""
        changed = {
            one.id: self._context.table(one.id).version
            for one in self._context.catalog
            if one.kind is EntryKind.TABLE
            and one.store == MEMORY
            and not any(other.writes == one.id for other in self._context.catalog)
        }
        moved = False
        for upstream in self._context.catalog.upstream(entry):
            runner = self._launcher.runners.get(upstream.id)
            if isinstance(runner, MirrorRunner):
                runner.catch_up()
                changed[upstream.id] = self._context.table(upstream.id).version
            if isinstance(runner, ViewRunner):
                if runner.board.state is not State.READY:
                    return
                moved = moved or any(
                    changed.get(one.id, 0) > runner.reflects.get(one.id, 0) for one in runner.inputs.values()
                )
                if moved:
                    runner.drain(deadline)

    def _pull(self, bound: BoundQuery, given: Mapping[str, Snapshot] | None = None) -> pa.Table:
        """The answer now: all tables at one commit number, sources read to their present end.

        `given` are snapshots to read instead, by entry id.
        """
        session = self._context.spark.session()
        instead = given or {}
        readings = []
        with self._context.sequence.pin() as pin:
            frames = {}
            for one in bound.inputs:
                if one.entry is not None and one.entry.id in instead:
                    given_one = instead[one.entry.id]
                    frames[one.relation] = self._context.frame_of(session, one.entry, given_one, sql=bound.plan.sql)
                elif one.entry is not None and one.kind is RelationKind.TABLE:
                    frames[one.relation] = self._context.frame(
                        session, one.entry, at=pin.sequence, sql=bound.plan.sql
                    )
                elif one.spec is not None:
                    source = self._launcher.book.open(one.spec)
                    start = source.initial_offset()
                    reading = read_range(session, source, start, source.latest_offset(start), one.schema)
                    readings.append((source, reading))
                    frames[one.relation] = reading.frame
            rows = arrow_result(run_sql(session, bound.plan.sql, frames))
        for source, reading in readings:
            letters = self._context.bad_record_writes("SELECT", source, reading.bad_records())
            if letters:
                self._context.sequence.commit(Part(writes=letters))
        return rows

    def _push(self, bound: BoundQuery, statement: st.Select) -> Result:
        if bound.plan.strategy is not Strategy.MAP:
            raise NotExecutableError(
                "an aggregate over a stream can't be selected as rows that come",
                hint="CREATE TABLE … AS SELECT … keeps its result up to date; select from that",
                text=statement.text,
            )
        pushed = self._launcher.push(bound, query_options(statement.options))
        return Result.streaming(list(bound.schema.names), _limited(pushed, bound.plan.limit), pushed.close)

    def _insert(self, statement: st.Insert, parameters: Parameters, epoch: Epoch | None) -> Result:
        if statement.query is None:
            if not isinstance(statement.target, st.Name):
                raise NotExecutableError.statement("INSERT VALUES into a URI", text=statement.text)
            write = partial(dml.upsert_values if statement.upsert else dml.insert_values, epoch=epoch)
            return self._change(write, statement.target, statement, parameters)
        if statement.upsert:
            raise NotExecutableError.statement("UPSERT … SELECT", text=statement.text)
        query = bind_parameters(statement.query, parameters)
        statement = replace(statement, query=query)
        plan, lens = self._launcher.binder.plan(
            query, options=statement.options, text=statement.text, continuous=True, distinct_names=False
        )
        self._wait_for_inputs(plan, statement.options)
        bound = self._launcher.binder.bind_plan(plan, lens)
        target = statement.target if isinstance(statement.target, st.SourceRef) else self._target(statement.target)
        if isinstance(target, Entry):
            bound = bound.inserted_into(self._context.table_of(target), statement)
        if bound.driving is not None:
            if bound.plan.strategy is not Strategy.MAP:
                raise NotExecutableError(
                    "an aggregate over a stream can't be inserted",
                    hint="CREATE TABLE … AS SELECT … keeps its result up to date",
                    text=statement.text,
                )
            return _done(f'query "{self._definitions.insert(statement, target, bound)}" started')
        rows = self._pull(bound)
        if isinstance(target, Entry):
            named = rows.rename_columns(list(bound.names)) if bound.names else rows
            self._context.table(target.id).commit(Write(Mode.APPEND, named), epoch)
        else:
            sink = self._launcher.book.open_sink(target, statement.options, bound.schema)
            sink.write(rows, epoch or Epoch(uuid.uuid4().hex, 0))
            sink.close()
            self._launcher.wake()
        return Result.affected(rows.num_rows)

    def _create_index(self, statement: st.CreateIndex) -> str:
        entry = self._entry(statement.table.text)
        table = self._context.table_of(entry)
        columns = [table.schema.column(name).name for name in statement.columns]
        if any(statement.name.text in other.indexes for other in self._context.catalog):
            raise ValidationError(f'index "{statement.name.text}" exists already', text=statement.text)
        table.create_index(tuple(columns))
        self._context.catalog.update(replace(entry, indexes=entry.indexes | {statement.name.text: columns}))
        return f'index "{statement.name.text}" created'

    def _drop_index(self, statement: st.Drop) -> str:
        name = statement.name.text
        for entry in self._context.catalog:
            if name in entry.indexes:
                kept = {other: columns for other, columns in entry.indexes.items() if other != name}
                self._context.catalog.update(replace(entry, indexes=kept))
                if entry.indexes[name] not in kept.values():
                    self._context.table(entry.id).drop_index(tuple(entry.indexes[name]))
                return f'index "{name}" dropped'
        if statement.if_exists:
            return f'index "{name}" does not exist'
        known = [index for entry in self._context.catalog for index in entry.indexes]
        raise NotFoundError.of("index", name, known=known)

    def _explain(self, statement: st.Explain) -> Result:
        inner = statement.statement
        query = getattr(inner, "query", None)
        if not isinstance(query, st.Query):
            return Result.rows(["property", "value"], [("statement", inner.kind), ("strategy", "executed directly")])
        plan, _ = self._plan(query, inner, continuous=not isinstance(inner, st.Select))
        return Result.rows(["property", "value"], explain_rows(plan, extended=statement.extended))

    def _validate(self, statement: st.Validate) -> Result:
        lens = self._launcher.binder.lens(options=getattr(statement.statement, "options", ()))
        found = validate_statement(statement.statement, lens, statement.text)
        columns = ["severity", "message", "line", "column", "hint"]
        return Result.rows(
            columns,
            [
                ("warning" if e.code.startswith("warning") else "error", e.message, e.line, e.column, e.hint)
                for e in found
            ],
        )

    def _entry(self, name: str) -> Entry:
        entry = self._context.catalog.find(name)
        if entry is None or not entry.is_table:
            known = [e.name for e in self._context.catalog.visible() if e.is_table]
            raise NotFoundError.of("table", name, known=known)
        return entry

    def _target(self, name: st.Name) -> Entry:
        entry = self._entry(name.text)
        if entry.kind is not EntryKind.TABLE:
            raise UnsupportedError(
                f'table "{entry.name}" is kept up to date by its query and can\'t be written to',
                hint="CREATE TABLE with columns makes a table that is",
                code="view-not-writable",
            )
        return entry

    def _change(
        self, change: Callable[..., int], name: st.Name, statement: st.Statement, parameters: Parameters
    ) -> Result:
        """Run one of the `dml` functions on the table of that name."""
        target = self._target(name)
        table = self._context.table(target.id)
        try:
            return Result.affected(change(table, statement, parameters, evaluate=self.evaluate_over(target)))
        except UnicodeEncodeError as error:
            raise TableError(
                f'table "{table.name}" got text that is not Unicode', detail=str(error), code="wrong-type"
            ) from error

    def evaluate_over(self, target: Entry) -> Evaluate:
        """How DML on a table asks Spark for what the table can't evaluate itself."""

        def evaluate(select: exp.Select, snapshot: Snapshot) -> pa.Table:
            plan, lens = self._launcher.binder.plan(st.Query(select), options=(), text="", continuous=False)
            bound = self._launcher.binder.bind_plan(plan, lens)
            return self._pull(bound, {target.id: snapshot})

        return evaluate


def bind_parameters(query: st.Query, parameters: Parameters) -> st.Query:
    """Put `?` and `:name` parameters into a query as typed literals."""
    from velostream.sql.parameters import bind

    if not parameters and not any(isinstance(node, exp.Placeholder | exp.Parameter) for node in query.tree.walk()):
        return query
    return replace(query, tree=bind(query.tree, parameters))


def _limited(pushed: PushedRows, limit: int | None) -> Iterator[tuple[Any, ...]]:
    """The rows of the batches, up to the limit; the query behind them ends with the last one."""
    rows = (row for batch in pushed for row in rows_of(batch))
    try:
        yield from rows if limit is None else islice(rows, limit)
    finally:
        pushed.close()


def _done(text: str) -> Result:
    return Result.done(text)
