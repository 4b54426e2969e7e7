"""Statements that change tables: run once, or handed on to follow their stream."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, cast, overload

from sqlglot import exp

from velostream.engine import dml
from velostream.engine.assignment import assign_columns
from velostream.engine.binding import NoSchemaYetError
from velostream.engine.catalog import Entry
from velostream.engine.changing import RowChange, assigned_rows, options_of, target_columns
from velostream.engine.merge import merge
from velostream.engine.options import trigger_of
from velostream.engine.result import Result
from velostream.errors import NotExecutableError, TableError, UnsupportedError, ValidationError, present
from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.sql import statements as st
from velostream.sql.pairs import driving_query
from velostream.sql.parameters import Parameters, bind, bind_all
from velostream.sql.plan import QueryPlan, RelationKind

if TYPE_CHECKING:
    import pyarrow as pa

    from velostream.engine.changing import ChangePlanner
    from velostream.engine.context import EngineContext
    from velostream.engine.definitions import Definitions
    from velostream.engine.launch import Launcher
    from velostream.engine.planning import Lens
    from velostream.engine.pulling import Puller
    from velostream.engine.staging import Prepare
    from velostream.engine.transactions import Transaction
    from velostream.sources.base import Offset
    from velostream.tables.base import Table

_ATTEMPTS = 3
"""How often a statement may find its table changed meanwhile before other commits have to wait for it."""

Change = RowChange | st.Truncate


class TableWriter:
    """Executes statements that change tables. Stateless; may be used from many threads."""

    def __init__(self, context: EngineContext, launcher: Launcher, definitions: Definitions, puller: Puller) -> None:
        self._context = context
        self._launcher = launcher
        self._definitions = definitions
        self._puller = puller

    @property
    def _planner(self) -> ChangePlanner:
        return self._launcher.changes

    def execute(
        self,
        statement: Change,
        parameters: Parameters | None,
        *,
        transaction: Transaction | None = None,
        epoch: Epoch | None = None,
    ) -> Result:
        """Run it, alone or in a transaction. With an epoch, rows that an INSERT adds are added once for that epoch."""
        match statement:
            case st.Insert(query=None):
                write = dml.upsert_values if statement.upsert else dml.insert_values
                return self._once(statement, parameters, transaction, lambda *a, **k: write(*a, epoch=epoch, **k))
            case st.Insert():
                return self._insert(statement, parameters, transaction, epoch)
            case st.Update() | st.Delete() if statement.source is not None:
                return self._by_rows(with_parameters(statement, parameters), transaction)
            case st.Update():
                return self._once(statement, parameters, transaction, dml.update)
            case st.Delete():
                return self._once(statement, parameters, transaction, dml.delete)
            case st.Merge():
                return self._merge(statement, parameters, transaction)
            case st.Truncate():
                self._refuse_gathering(transaction, statement)
                target = self._planner.writable(statement.table.text)
                return Result.affected(dml.truncate(self._table(target, transaction)))

    def _once(
        self,
        statement: st.Insert | st.Update | st.Delete | st.Merge,
        parameters: Parameters | None,
        transaction: Transaction | None,
        change: Callable[..., int],
    ) -> Result:
        """Run one of the functions that change a single table by themselves."""
        self._refuse_gathering(transaction, statement)
        name = statement.target if isinstance(statement, st.Insert) else statement.table
        if not isinstance(name, st.Name):
            raise NotExecutableError.statement("INSERT VALUES into a URI", text=statement.text)
        target = self._planner.writable(name.text)
        table = self._table(target, transaction)
        evaluate = self._puller.evaluate_over(target, sources=statement.sources, transaction=transaction)
        try:
            return Result.affected(change(table, statement, parameters, evaluate=evaluate))
        except UnicodeEncodeError as error:
            raise TableError(
                f'table "{table.name}" got text that is not Unicode', detail=str(error), code="wrong-type"
            ) from error

    def _insert(
        self,
        statement: st.Insert,
        parameters: Parameters | None,
        transaction: Transaction | None,
        epoch: Epoch | None,
    ) -> Result:
        statement = with_parameters(statement, parameters)
        if isinstance(statement.target, st.SourceRef):
            return self._insert_into_sink(statement, statement.target, transaction, epoch)
        if statement.on is not None:
            return self._by_rows(statement, transaction)
        target = self._planner.target_of(statement)
        query = present(statement.query)
        plan, lens = self._plan(query, statement)
        if _follows(plan):
            if transaction is not None or statement.upsert or any(one.target.schema is None for one in plan.inputs):
                return self._follow(statement, transaction)
            starts: dict[str, Offset] = {}
            bound = self._launcher.binder.bind(
                query,
                options=statement.options,
                text=statement.text,
                continuous=True,
                starts=starts,
                distinct_names=False,
            )
            _refuse_aggregate(bound.plan, statement)
            names = target_columns(self._context.table_of(target), statement, bound.schema.names)
            bound = bound.renamed(names)
            return Result.done(f'query "{self._definitions.insert(statement, target, bound, starts)}" started')
        if query.emit is st.Emit.CHANGES:
            raise NotExecutableError.statement(
                "INSERT INTO a table SELECT … FROM tables EMIT CHANGES",
                hint="CREATE TABLE … AS SELECT … is kept up to date with the tables that it reads",
                text=statement.text,
            )
        self._refuse_gathering(transaction, statement)
        table = self._table(target, transaction)
        if statement.upsert and not table.schema.key:
            raise TableError.without_key(table.name)
        mode = Mode.UPSERT if statement.upsert else Mode.APPEND
        if transaction is not None:
            rows = self._puller.rows(plan, lens, transaction)
            table.commit(Write(mode, assigned_rows(rows, target_columns(table, statement, rows.column_names), table)))
            return Result.affected(rows.num_rows)
        gathered = self._puller.gathered(plan, lens, table, _assigning(statement, table))
        table.commit(gathered.write(mode), epoch)
        return Result.affected(gathered.count)

    def _insert_into_sink(
        self, statement: st.Insert, sink_name: st.SourceRef, transaction: Transaction | None, epoch: Epoch | None
    ) -> Result:
        if transaction is not None:
            raise refused_in_transaction(statement, "it writes to where nothing can be rolled back")
        if statement.upsert:
            raise NotExecutableError.statement("UPSERT into a URI", text=statement.text)
        query = present(statement.query)
        plan, lens = self._plan(query, statement)
        if trigger_of(statement.options).realtime:
            self._launcher.check_realtime(plan, lens, sink_name)
        is_continuous = _follows(plan) or query.emit is st.Emit.CHANGES
        starts: dict[str, Offset] = {}
        bound = self._launcher.binder.bind(
            query,
            options=statement.options,
            text=statement.text,
            continuous=is_continuous,
            starts=starts if is_continuous else None,
            distinct_names=False,
        )
        if bound.driving is not None:
            _refuse_aggregate(bound.plan, statement)
        if is_continuous:
            return Result.done(f'query "{self._definitions.insert(statement, sink_name, bound, starts)}" started')
        rows = self._puller.rows(plan, lens)
        sink = self._launcher.book.open_sink(sink_name, statement.options, bound.schema)
        sink.write(rows, epoch or Epoch(uuid.uuid4().hex, 0))
        sink.close()
        self._launcher.running.wake()
        return Result.affected(rows.num_rows)

    def _merge(self, statement: st.Merge, parameters: Parameters | None, transaction: Transaction | None) -> Result:
        if _follows(self._plan(driving_query(with_parameters(statement, parameters)), statement)[0]):
            return self._follow(with_parameters(statement, parameters), transaction)
        return self._once(statement, parameters, transaction, merge)

    def _by_rows(self, statement: st.Insert | st.Update | st.Delete, transaction: Transaction | None) -> Result:
        """Change a table by the rows of a query: UPDATE … FROM, DELETE … USING, UPSERT … ON."""
        target = self._planner.target_of(statement)
        source = statement.query if isinstance(statement, st.Insert) else statement.source
        if _follows(self._plan(present(source), statement)[0]):
            return self._follow(statement, transaction)
        self._refuse_gathering(transaction, statement)
        plan = self._planner.plan(statement, target)
        query_plan, lens = self._plan(plan.query, statement)
        table = self._table(target, transaction)
        reads_itself = any(
            one.source is None and one.target.name.lower() == target.name.lower() for one in query_plan.inputs
        )

        def rows() -> pa.Table:
            return self._puller.rows(query_plan, lens, transaction)

        def change(given: pa.Table) -> Result:
            return Result.affected(self._planner.apply_of(plan, Schema.from_arrow(given.schema))(table, given))

        for _ in range(_ATTEMPTS):
            version = table.version
            given = rows()
            with table.exclusive():
                if not reads_itself or table.version == version:
                    return change(given)
        with table.exclusive():
            return change(rows())

    def _follow(self, statement: RowChange, transaction: Transaction | None) -> Result:
        """A statement over a stream: started, or kept for the commit of the transaction it stands in."""
        if transaction is None:
            return Result.done(f'query "{self._definitions.change([statement])}" started')
        if transaction.has_written:
            raise refused_in_transaction(
                statement, "it follows a stream and the transaction has changed tables already"
            )
        table = self._context.table_of(self._planner.target_of(statement))
        if not table.capabilities.transactions:
            raise UnsupportedError.capability(table.kind, "transactions")
        with suppress(NoSchemaYetError):
            self._planner.follow([*transaction.gathered, statement])
        transaction.gathered.append(statement)
        return Result.done(f"{statement.kind} will run with the transaction")

    def _plan(self, query: st.Query, statement: st.Statement) -> tuple[QueryPlan, Lens]:
        """Plan a query; where a source has no columns yet only a stream can be waited for."""
        plan, lens = self._puller.plan(query, options=options_of(statement), text=statement.text)
        for one in plan.inputs:
            if one.target.schema is None and not _follows(plan):
                raise NoSchemaYetError(one.target.name)
        return plan, lens

    @staticmethod
    def _refuse_gathering(transaction: Transaction | None, statement: st.Statement) -> None:
        if transaction is not None and transaction.gathered:
            raise refused_in_transaction(statement, "the statements before it follow a stream and this one runs once")

    def _table(self, target: Entry, transaction: Transaction | None) -> Table:
        return self._context.table_of(target) if transaction is None else transaction.table(target)


@overload
def with_parameters(statement: st.Insert, parameters: Parameters | None) -> st.Insert: ...
@overload
def with_parameters(statement: st.Update | st.Delete, parameters: Parameters | None) -> st.Update | st.Delete: ...
@overload
def with_parameters(statement: st.Merge, parameters: Parameters | None) -> st.Merge: ...
def with_parameters(statement: RowChange, parameters: Parameters | None) -> RowChange:
    """The statement with its parameters put in, in the order of the text."""
    if isinstance(statement, st.Merge):
        return replace(statement, tree=bind(statement.tree, parameters, text=statement.text))
    assigned = statement.assignments if isinstance(statement, st.Update) else ()
    query = statement.query if isinstance(statement, st.Insert) else statement.source
    condition = statement.on if isinstance(statement, st.Insert) else statement.where
    trees = [one.value for one in assigned]
    trees += [] if query is None else [query.tree]
    trees += [] if condition is None else [condition]
    bound = iter(cast("list[exp.Expression]", bind_all(trees, parameters, text=statement.text)))
    assigned = tuple(replace(one, value=next(bound)) for one in assigned)
    query = None if query is None else replace(query, tree=next(bound))
    condition = None if condition is None else next(bound)
    match statement:
        case st.Insert():
            return replace(statement, query=query, on=condition)
        case st.Update():
            return replace(statement, assignments=assigned, source=query, where=condition)
        case st.Delete():
            return replace(statement, source=query, where=condition)


def _assigning(statement: st.Insert, table: Table) -> Callable[[Sequence[str]], Prepare]:
    """How rows of a query, given its columns, become rows of the table."""
    schema, name = table.schema, table.name

    def of_columns(given: Sequence[str]) -> Prepare:
        columns = [schema.column(target) for target in target_columns(table, statement, given)]
        return lambda rows: (assign_columns(rows, columns, table=name), ())

    return of_columns


def refused_in_transaction(statement: st.Statement, reason: str) -> ValidationError:
    return ValidationError(
        f"{statement.kind} can't stand in this transaction",
        detail=reason,
        hint="COMMIT or ROLLBACK first",
        code="not-in-transaction",
        line=statement.place.line,
        column=statement.place.column,
        text=statement.text,
    )


def _follows(plan: QueryPlan) -> bool:
    return any(one.target.kind is RelationKind.STREAM for one in plan.inputs)


def _refuse_aggregate(plan: QueryPlan, statement: st.Insert) -> None:
    if not plan.only_appends:
        raise NotExecutableError(
            "an aggregate over a stream can't be inserted",
            detail="its result changes with every row",
            hint="CREATE TABLE … AS SELECT … keeps it up to date; a window that is over, EMIT FINAL, can be inserted",
            text=statement.text,
        )
