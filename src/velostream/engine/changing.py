"""Tables changed by the rows of a query: INSERT … SELECT, UPSERT … SELECT, UPDATE … FROM, DELETE … USING, MERGE.

The same preparation serves a statement that runs once over tables and one that follows a stream; of several statements
over one stream each micro-batch is one commit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import pyarrow as pa

from velostream.engine.assignment import assign_columns
from velostream.engine.binding import BoundQuery, NoSchemaYetError
from velostream.engine.catalog import Entry, EntryKind
from velostream.engine.consumer import Batch, Outcome
from velostream.engine.consumers import RepeatingConsumer
from velostream.engine.declared import split_off_nulls
from velostream.engine.draft import DraftTable
from velostream.engine.merge_rows import MergeChange
from velostream.engine.missing import MissingRowsWatch
from velostream.engine.pairs import ComputePairs, PairChange
from velostream.engine.query import BatchTransformation
from velostream.engine.relations import arrow_result, run_sql
from velostream.engine.sift import MOST_GUILTY
from velostream.errors import (
    Category,
    NotExecutableError,
    NotFoundError,
    QueryError,
    SqlError,
    TableError,
    UnsupportedError,
    ValidationError,
    present,
)
from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord
from velostream.sql.merging import MergePlan, plan_merge
from velostream.sql.pairs import PairPlan, driving_query, plan_pairs
from velostream.sql.parse import parse_script
from velostream.sql.plan import Strategy
from velostream.sql.render import render
from velostream.sql.resolve import resolve_query
from velostream.sql.scope import Columns
from velostream.sql.statements import Delete, Insert, Merge, Name, OptionValue, Query, Statement, Update
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from velostream.engine.binding import Binder
    from velostream.engine.context import EngineContext
    from velostream.engine.gate import Gate
    from velostream.sources.base import Offset
    from velostream.tables.base import Table

RowChange = Insert | Update | Delete | Merge
_VERBS = {
    "INSERT": "insert_into",
    "UPSERT": "upsert_into",
    "UPDATE FROM": "update",
    "DELETE USING": "delete_from",
    "MERGE": "merge_into",
}
Apply = Callable[["Table", pa.Table], int]
"""Changes a table by rows of the query, other commits held off; gives how many rows were affected."""


class _PairSettings(TypedDict):
    """What every change by pairs is made with."""

    table: str
    schema: Schema
    driving: Schema
    text: str
    compute: ComputePairs


@dataclass(frozen=True)
class ChangePlan:
    """One statement planned: the query whose rows drive it, and how they change the table."""

    statement: RowChange
    target: Entry
    query: Query
    pairs: PairPlan | None = None
    """None: the rows are what is to be inserted or, by key, upserted."""
    merge: MergePlan | None = None
    """Of a MERGE: what its pairs are to become."""


@dataclass(frozen=True)
class StreamChange:
    """A planned statement over a stream, ready to run."""

    plan: ChangePlan
    bound: BoundQuery
    apply: Apply


class ChangePlanner:
    """Prepares statements that change a table by rows of a query. May be used from many threads."""

    def __init__(self, context: EngineContext, binder: Binder) -> None:
        self._context = context
        self._binder = binder

    def plan(
        self,
        statement: RowChange,
        target: Entry,
        *,
        pinned: Mapping[str, Schema] | None = None,
        starts: dict[str, Offset] | None = None,
    ) -> ChangePlan:
        """Parameters are put in already. `NoSchemaYetError` while a source has no columns."""
        schema = self._context.table_of(target).schema
        if isinstance(statement, Insert) and statement.on is None:
            return ChangePlan(statement, target, present(statement.query))
        columns = self._columns(driving_query(statement), statement, pinned, starts)
        if isinstance(statement, Merge):
            merge = plan_merge(statement, target=schema, source=columns)
            return ChangePlan(statement, target, merge.pairs.query, merge.pairs, merge)
        pairs = plan_pairs(statement, target=schema, source=columns)
        return ChangePlan(statement, target, pairs.query, pairs)

    def apply_of(self, plan: ChangePlan, driving: Schema) -> Apply:
        """What rows with these columns do to the table, when the statement runs once."""
        if plan.pairs is None:
            return self._inserted(plan, driving, continuous=False)
        return self._paired(plan, plan.pairs, driving)

    def of_entry(self, entry: Entry) -> list[StreamChange]:
        """The statements of a query that is in the catalog, planned as they were at first."""
        statements = [one for one in parse_script(entry.sql) if isinstance(one, RowChange)]
        return self.follow(statements, pinned=entry.pinned(), starts=entry.starts)

    def follow(
        self,
        statements: Sequence[RowChange],
        *,
        pinned: Mapping[str, Schema] | None = None,
        starts: dict[str, Offset] | None = None,
    ) -> list[StreamChange]:
        """Statements over one stream, ready to run as one query; `NoSchemaYetError` while it has no columns."""
        plans = [self.plan(one, self.target_of(one), pinned=pinned, starts=starts) for one in statements]
        changes = [self._bind(plan, pinned, starts) for plan in plans]
        _check_one_stream(changes)
        return changes

    def target_of(self, statement: RowChange) -> Entry:
        """The table that a statement changes."""
        name = statement.target if isinstance(statement, Insert) else statement.table
        if not isinstance(name, Name):
            raise NotExecutableError.statement(f"{statement.kind} into a URI", text=statement.text)
        return self.writable(name.text)

    def writable(self, name: str) -> Entry:
        """The table of that name, which statements may change."""
        target = self._context.catalog.find(name)
        if target is not None and target.kind is EntryKind.STREAM:
            raise UnsupportedError(
                f'stream "{target.name}" can\'t be written to by its name',
                hint="INSERT INTO <uri> SELECT … writes to where the stream comes from",
                code="view-not-writable",
            )
        if target is None or not target.is_table:
            known = [entry.name for entry in self._context.catalog.visible() if entry.is_table]
            raise NotFoundError.of("table", name, known=known)
        if target.kind is not EntryKind.TABLE:
            raise UnsupportedError(
                f'table "{target.name}" is kept up to date by its query and can\'t be written to',
                hint="CREATE TABLE with columns makes a table that is",
                code="view-not-writable",
            )
        return target

    def _bind(
        self, plan: ChangePlan, pinned: Mapping[str, Schema] | None, starts: dict[str, Offset] | None
    ) -> StreamChange:
        statement = plan.statement
        bound = self._binder.bind(
            plan.query,
            options=options_of(statement),
            text=statement.text,
            continuous=True,
            pinned=pinned,
            starts=starts,
            distinct_names=False,
        )
        if bound.plan.strategy is not Strategy.MAP:
            raise NotExecutableError(
                f"{statement.kind} can't follow an aggregate over a stream",
                hint="CREATE TABLE … AS SELECT … keeps the aggregate up to date",
                text=statement.text,
            )
        if plan.pairs is None:
            return StreamChange(plan, bound, self._inserted(plan, bound.schema, continuous=True))
        return StreamChange(plan, bound, self._paired(plan, plan.pairs, bound.schema))

    def _columns(
        self,
        query: Query,
        statement: Statement,
        pinned: Mapping[str, Schema] | None,
        starts: dict[str, Offset] | None,
    ) -> Columns:
        lens = self._binder.lens(pinned, text=statement.text, starts=starts)
        found = resolve_query(query, options=options_of(statement), catalog=lens, text=statement.text)
        if found.problems:
            raise SqlError.all_of(list(found.problems))
        unknown = next((one.target.name for one in found.inputs if one.target.schema is None), None)
        if unknown is not None:
            raise NoSchemaYetError(unknown)
        return found.outputs

    def _inserted(self, plan: ChangePlan, driving: Schema, *, continuous: bool) -> Apply:
        table = self._context.table_of(plan.target)
        statement = plan.statement
        names = target_columns(table, statement if isinstance(statement, Insert) else None, driving.names)
        upsert = isinstance(statement, Insert) and statement.upsert
        if upsert and not table.schema.key:
            raise TableError.without_key(table.name)
        # A declared key on a table fed by a stream means upsert: the later row wins.
        mode = Mode.UPSERT if upsert or (continuous and table.schema.key) else Mode.APPEND

        def apply(changed: Table, rows: pa.Table) -> int:
            given = assigned_rows(rows, names, table)
            if given.num_rows:
                changed.commit(Write(mode, given))
            return int(given.num_rows)

        return apply

    def _paired(self, plan: ChangePlan, pairs: PairPlan, driving: Schema) -> Apply:
        named = tuple(replace(column, name=name) for column, name in zip(driving.columns, pairs.driving, strict=True))
        table = self._context.table_of(plan.target)
        settings: _PairSettings = {
            "table": table.name,
            "schema": table.schema,
            "driving": Schema(named),
            "text": plan.statement.text,
            "compute": self._compute,
        }
        if plan.merge is not None:
            return MergeChange(plan.merge, **settings).merge
        change = PairChange(pairs, **settings)
        if isinstance(plan.statement, Insert):
            return change.upsert
        return change.update if isinstance(plan.statement, Update) else change.delete

    def _compute(self, sql: str, pairs: pa.Table) -> pa.Table:
        session = self._context.spark.session()
        frame = self._context.relations.frame_of_rows(session, pairs, Schema.from_arrow(pairs.schema))
        return arrow_result(run_sql(session, sql, {"pairs": frame.coalesce(1)}))


class ChangeConsumer(RepeatingConsumer):
    """Statements over one stream whose changes depend on what their tables hold when they are committed.

    Guarantee: exactly-once. The changes of all statements and the position are one log record; of a table in a store,
    rows and epoch are one commit there, and the batch is written down beforehand.
    """

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        gate: Gate,
        *,
        start: Offset,
        changes: Sequence[tuple[StreamChange, Mapping[str, Entry]]],
    ) -> None:
        super().__init__(context, entry, gate, start=start)
        self._steps = [
            _Step(change, BatchTransformation(context, present(change.bound.plan.map), tables))
            for change, tables in changes
        ]
        self.watches = [step.missing for step in self._steps]
        self.table_ids = [table.id for _, tables in changes for table in tables.values()]

    @property
    def leaves_our_log(self) -> bool:
        return any(self.context.stores.find(step.target.id) is not None for step in self._steps)

    @contextmanager
    def holding_off_others(self) -> Iterator[None]:
        """Commits of ours first: a store that is slow to answer must not be waited for by those who don't need it."""
        stores = {step.target.id: self.context.stores.find(step.target.id) for step in self._steps}
        with ExitStack() as held:
            if None in stores.values():
                held.enter_context(super().holding_off_others())
            for _, store in sorted(stores.items()):
                if store is not None:
                    held.enter_context(store.exclusive())
            yield

    def run(self, batch: Batch) -> Outcome:
        given = self._rows(batch)
        part = Part(epoch=Epoch(self.writer, self.number + 1), position={"offset": batch.end, "tables_at": batch.at})
        return Outcome(part, max(rows.num_rows for _, rows in given), decide=lambda: self._decide(given))

    def probe(self, batch: Batch) -> object:
        return self._rows(batch)

    def _rows(self, batch: Batch) -> list[tuple[_Step, pa.Table]]:
        """What each statement makes of the batch, which is read once."""
        keeping = len(self._steps) > 1 and not batch.frame.is_cached
        kept = replace(batch, frame=batch.frame.persist(), read_through=None) if keeping else batch
        try:
            return [(step, step.rows(kept)) for step in self._steps]
        finally:
            if keeping:
                kept.frame.unpersist()

    def _decide(self, given: Sequence[tuple[_Step, pa.Table]]) -> list[tuple[Table, Write]]:
        """What the batch changes, worked out with other commits held off."""
        drafts: dict[str, DraftTable] = {}
        letters: list[tuple[Table, Write]] = []
        for step, rows in given:
            table = self.context.table(step.target.id)
            draft = drafts.get(step.target.id)
            if draft is None:
                draft = drafts[step.target.id] = DraftTable(table, table.snapshot())
            kept, refused = step.accepted(rows, table)
            refused += step.change_or_sift(draft, kept)
            if refused:
                letters.append(self.context.dead_letter_write(self.entry.name, step.target.name, refused))
        return [(draft.table, write) for draft in drafts.values() for write in draft.writes()] + letters


class _Step:
    """One statement of a consumer."""

    def __init__(self, change: StreamChange, transformation: BatchTransformation) -> None:
        self.target = change.plan.target
        self._change = change
        self._transformation = transformation
        self.missing = MissingRowsWatch(present(change.bound.plan.map).missing)
        self._inserts = change.plan.pairs is None
        items = change.plan.query.tree.expressions
        self._labels = [item.unalias().sql(dialect="spark") for item in items]
        """What the columns of the query are to whoever wrote the statement."""

    def rows(self, batch: Batch) -> pa.Table:
        return self.missing.settled(self._transformation.rows(batch))

    def accepted(self, rows: pa.Table, table: Table) -> tuple[pa.Table, list[BadRecord]]:
        """Rows of an INSERT with a NULL where the table allows none are set aside."""
        if not self._inserts:
            return rows, []
        statement = self._change.plan.statement
        names = target_columns(table, statement if isinstance(statement, Insert) else None, rows.column_names)
        return split_off_nulls(rows.rename_columns(names), table.schema)

    def change_or_sift(self, draft: DraftTable, rows: pa.Table) -> list[BadRecord]:
        """Apply the rows, in halves where they can't be as a whole; gives those that can't be at all."""
        refused: list[BadRecord] = []

        def attempt(start: int, length: int) -> None:
            try:
                self._change.apply(draft, rows.slice(start, length))
            except (TableError, QueryError) as error:
                if not _is_rows_fault(error) or len(refused) >= MOST_GUILTY:
                    raise
                if length == 1:
                    refused.append(
                        BadRecord(self._shown(rows.slice(start, 1)), f"row {start} of a batch", error.message)
                    )
                    return
                attempt(start, length // 2)
                attempt(start + length // 2, length - length // 2)

        attempt(0, rows.num_rows)
        return refused

    def _shown(self, row: pa.Table) -> bytes:
        labels = self._labels if len(self._labels) == row.num_columns else row.column_names
        return json.dumps(dict(zip(labels, row.to_pylist()[0].values(), strict=True)), default=str).encode()


def target_columns(table: Table, statement: Insert | None, given: Sequence[str]) -> list[str]:
    """The columns of the table that a query's columns are for, by position."""
    named = () if statement is None else statement.columns
    names = [table.schema.column(name).name for name in named] or list(table.schema.names)
    if len(names) != len(given):
        kind = "INSERT" if statement is None else statement.kind
        raise ValidationError(
            f'{kind} gives {len(given)} columns and table "{table.name}" takes {len(names)}',
            detail=f"given: {', '.join(given)}; taken: {', '.join(names)}",
            text=None if statement is None else statement.text,
        )
    required = next(
        (column.name for column in table.schema.columns if not column.nullable and column.name not in names), None
    )
    if required is not None:
        raise TableError.null_in(table.name, required)
    return names


def assigned_rows(rows: pa.Table, names: Sequence[str], table: Table) -> pa.Table:
    """Computed rows as rows of the table: columns by position, values assigned as Spark does."""
    return assign_columns(rows, [table.schema.column(name) for name in names], table=table.name)


def options_of(statement: Statement) -> tuple[OptionValue, ...]:
    """The statement's own WITH, if it has one."""
    return getattr(statement, "options", ())


def query_name(statements: Sequence[RowChange], targets: Sequence[Entry], *, transaction: bool) -> str:
    """What a query of these statements is called, but for its number."""
    return "transaction" if transaction else f"{_VERBS[statements[0].kind]}_{targets[0].name}"


def query_sql(statements: Sequence[RowChange], *, transaction: bool) -> str:
    """The text of a query of one statement or of a whole transaction, as the catalog keeps it."""
    texts = [render(statement) for statement in statements]
    return "; ".join(["BEGIN", *texts, "COMMIT"]) if transaction else texts[0]


def _check_one_stream(changes: Sequence[StreamChange]) -> None:
    """Refuse statements of a transaction that follow different streams: their batches would not be the same."""
    sources = {change.bound.driving_source[0].identity() for change in changes}
    if len(sources) > 1:
        raise NotExecutableError(
            "the statements of a transaction over a stream follow one stream, not several",
            detail="streams: " + ", ".join(sorted(change.bound.driving_source[0].shown for change in changes)),
            hint="make the others tables: CREATE TABLE t AS SELECT …; or run the statements by themselves",
            text=changes[0].plan.statement.text,
        )


def _is_rows_fault(error: TableError | QueryError) -> bool:
    return error.category in (Category.DATA, Category.CONFLICT)
