"""One statement to its result: the dispatcher between what was said and who does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from velostream.engine.catalog import Entry
from velostream.engine.options import query_options, trigger_of
from velostream.engine.pending import PendingTransactions
from velostream.engine.pulling import Puller
from velostream.engine.realtime.job import EXPLAINED
from velostream.engine.refreshing import Refresher
from velostream.engine.result import Result, rows_of
from velostream.engine.settings import apply_setting
from velostream.engine.show import Shower
from velostream.engine.transactions import Transaction
from velostream.engine.writing import TableWriter, refused_in_transaction
from velostream.errors import NotExecutableError, NotFoundError, ValidationError
from velostream.model.change import Epoch
from velostream.model.variant import holds_variant
from velostream.sql import statements as st
from velostream.sql.explain import explain_rows, validate_statement
from velostream.sql.explain_changes import changes_by_rows, explain_change
from velostream.sql.plan import RelationKind, Strategy

if TYPE_CHECKING:
    from velostream.engine.binding import BoundQuery
    from velostream.engine.context import EngineContext
    from velostream.engine.definitions import Definitions
    from velostream.engine.dml import Evaluate
    from velostream.engine.launch import Launcher
    from velostream.engine.pushing import PushedRows
    from velostream.engine.supervisor import Supervisor

Parameters = Sequence[Any] | Mapping[str, Any] | None

_IN_TRANSACTIONS = (
    st.Select,
    st.Insert,
    st.Update,
    st.Delete,
    st.Merge,
    st.Truncate,
    st.Show,
    st.Describe,
    st.Explain,
    st.ExplainAnalyze,
    st.Validate,
)
"""What a transaction can take back, and what only looks."""


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
        self._pending = PendingTransactions(context)
        self._puller = Puller(context, launcher)
        self._refresher = Refresher(context, launcher, supervisor, self._puller)
        self._writer = TableWriter(context, launcher, definitions, self._puller)

    def interruptible(self) -> AbstractContextManager[None]:
        """Inside, what Spark does for this thread can be cancelled by another one."""
        return self._context.spark.interruptible()

    def begin(self) -> Transaction:
        """A transaction that reads what is committed now."""
        return Transaction(self._context, self._pending)

    def recover(self) -> None:
        """Finish transactions that a crash left half done."""
        self._pending.recover()

    def commit(self, transaction: Transaction, *, epoch: Epoch | None = None) -> Result:
        """End a transaction: its writes are seen at once, or its statements over a stream begin to run as one query."""
        with transaction.lock:
            if not transaction.gathered:
                transaction.commit(epoch)
                return _done("transaction committed")
            try:
                name = self._definitions.change(transaction.gathered, transaction=True)
            finally:
                transaction.rollback()
            return _done(f'query "{name}" started')

    def execute(
        self,
        statement: st.Statement,
        parameters: Parameters = None,
        *,
        transaction: Transaction | None = None,
        epoch: Epoch | None = None,
    ) -> Result:
        """Execute one statement. With an epoch, rows that an INSERT adds at once are added once for that epoch."""
        if transaction is not None and not isinstance(statement, _IN_TRANSACTIONS):
            raise refused_in_transaction(statement, "it can't be rolled back")
        match statement:
            case st.Select():
                return self._select(statement, parameters, transaction)
            case st.Create():
                if statement.query is not None:
                    statement = replace(statement, query=bind_parameters(statement.query, parameters))
                return _done(self._definitions.create(statement))
            case st.Insert() | st.Update() | st.Delete() | st.Merge() | st.Truncate():
                return self._writer.execute(statement, parameters, transaction=transaction, epoch=epoch)
            case st.Drop() if statement.what is not st.ObjectKind.INDEX:
                done = self._definitions.drop(
                    statement.name.text, what=statement.what, if_exists=statement.if_exists, cascade=statement.cascade
                )
                return _done(done)
            case st.Drop():
                return _done(self._drop_index(statement))
            case st.CreateIndex():
                return _done(self._create_index(statement))
            case st.Show() | st.Describe() | st.Explain() | st.ExplainAnalyze() | st.Validate():
                return self._look(statement)
            case st.SetOption():
                apply_setting(self._context, statement.key, statement.value)
                return _done(f"{statement.key} is set")
            case st.Refresh():
                self._refresher.refresh(self._entry(statement.table.text))
                return _done(f'table "{statement.table.text}" refreshed')
            case st.Control():
                return _done(self._supervisor.control(statement.name.text, statement.action))
            case _:
                raise NotExecutableError.statement(
                    statement.kind, line=statement.place.line, column=statement.place.column, text=statement.text
                )

    def _look(self, statement: st.Show | st.Describe | st.Explain | st.ExplainAnalyze | st.Validate) -> Result:
        match statement:
            case st.Show():
                return self._shower.show(statement)
            case st.Describe():
                return self._shower.describe(statement.name.text)
            case st.Explain():
                return self._explain(statement)
            case st.ExplainAnalyze():
                return self._shower.work(statement.query.text)
            case st.Validate():
                return self._validate(statement)

    def evaluate_over(self, target: Entry, *, transaction: Transaction | None = None) -> Evaluate:
        """How DML on a table asks Spark for what the table can't evaluate itself."""
        return self._puller.evaluate_over(target, transaction=transaction)

    def _select(self, statement: st.Select, parameters: Parameters, transaction: Transaction | None) -> Result:
        query = bind_parameters(statement.query, parameters)
        plan, lens = self._puller.plan(query, options=statement.options, text=statement.text)
        follows = any(one.target.kind is RelationKind.STREAM for one in plan.inputs)
        if query.emit is not None and not follows:
            raise NotExecutableError.statement(
                f"SELECT … EMIT {query.emit.upper()} over tables",
                hint='con.subscribe("t") gives the changes of a table or view as they are committed',
                text=statement.text,
            )
        if not follows:
            return Result.of(self._puller.rows(plan, lens, transaction))
        if transaction is not None:
            raise refused_in_transaction(statement, "the rows of a stream have no end")
        return self._push(self._launcher.binder.bind_plan(plan, lens), statement)

    def _push(self, bound: BoundQuery, statement: st.Select) -> Result:
        if bound.plan.strategy is not Strategy.MAP:
            raise NotExecutableError(
                "an aggregate over a stream can't be selected as rows that come",
                hint="CREATE TABLE … AS SELECT … keeps its result up to date; select from that",
                text=statement.text,
            )
        pushed = self._launcher.push(bound, query_options(statement.options))
        return Result.streaming(list(bound.schema.names), _limited(pushed, bound.plan.limit), pushed.close)

    def _create_index(self, statement: st.CreateIndex) -> str:
        entry = self._entry(statement.table.text)
        table = self._context.table_of(entry)
        columns = [table.schema.column(name).name for name in statement.columns]
        unordered = next((name for name in columns if holds_variant(table.schema.column(name).type)), None)
        if unordered is not None:
            raise ValidationError(
                f'column "{unordered}" is {table.schema.column(unordered).sql_type} and can\'t be indexed',
                detail="VARIANTs have no order and are not compared",
                code="wrong-type",
                text=statement.text,
            )
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
        if changes_by_rows(inner):
            explained = explain_change(inner, self._launcher.binder.lens(text=inner.text))
            rows = [] if explained.plan is None else explain_rows(explained.plan, extended=statement.extended)
            return Result.rows(["property", "value"], [*explained.rows, *rows])
        query = getattr(inner, "query", None)
        if not isinstance(query, st.Query):
            return Result.rows(["property", "value"], [("statement", inner.kind), ("strategy", "executed directly")])
        options: tuple[st.OptionValue, ...] = getattr(inner, "options", ())
        plan, lens = self._launcher.binder.plan(
            query, options=options, text=inner.text, continuous=not isinstance(inner, st.Select)
        )
        trigger = trigger_of(options)
        if trigger.realtime:
            # Says why not, if it can't be.
            self._launcher.check_realtime(plan, lens, getattr(inner, "target", None))
            rows = [*explain_rows(plan, extended=statement.extended), *EXPLAINED]
            return Result.rows(["property", "value"], rows)
        rows = [*explain_rows(plan, extended=statement.extended), *self._puller.pushed_down(plan)]
        if trigger.shown is not None:
            rows.append(("trigger", trigger.shown))
        return Result.rows(["property", "value"], rows)

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
