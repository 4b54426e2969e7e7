"""From a bound query to what runs it: which runner a plan gets, and who shares which ingest."""

from __future__ import annotations

import hashlib
import queue
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from velostream.engine.binding import MAINTAIN, Binder, BoundInput, BoundQuery
from velostream.engine.catalog import HIDDEN, Entry, EntryKind
from velostream.engine.changing import ChangeConsumer, ChangePlanner, StreamChange, options_of
from velostream.engine.consumers import (
    IngestRunner,
    SinkConsumer,
    SpoolConsumer,
    TableConsumer,
    TransformingConsumer,
)
from velostream.engine.context import EngineContext
from velostream.engine.gate import Gate, GatePolicy
from velostream.engine.ingest import Batch, Consumer, Ingest, Outcome
from velostream.engine.maintain.aggregate import AggregateRunner, FeedConsumer, FeedFolder
from velostream.engine.maintain.delta import delta_of, may_follow
from velostream.engine.maintain.fold import FoldRunner
from velostream.engine.maintain.groups import GroupTables
from velostream.engine.maintain.kept_streams import KeptStreamRunner, Lateness, kept_stream_schema
from velostream.engine.maintain.mirror import MirrorRunner
from velostream.engine.maintain.once import BoundedInput, OnceRunner
from velostream.engine.maintain.outgoing import OutgoingChanges
from velostream.engine.maintain.partials import PartialState
from velostream.engine.maintain.refresh import Refresh
from velostream.engine.maintain.steps import changes_of
from velostream.engine.maintain.streamed import GroupsConsumer
from velostream.engine.maintain.views import Maintenance, MaintenanceLoop, ViewRunner
from velostream.engine.maintain.windows import (
    WindowedSinkConsumer,
    WindowedSpoolConsumer,
    WindowedTableConsumer,
    Windowing,
    kept_rows_schema,
)
from velostream.engine.options import query_options
from velostream.engine.planning import definition_of
from velostream.engine.realtime.job import job_of, refuse_plan, refuse_source
from velostream.engine.realtime.runner import RealtimeRunner
from velostream.engine.sourcing import SourceBook
from velostream.engine.status import State
from velostream.engine.straight import StraightWay
from velostream.engine.trigger import Pace, Trigger
from velostream.errors import StateError, present
from velostream.model.change import ORIGIN
from velostream.model.options import Options
from velostream.model.schema import Column, Schema
from velostream.model.spool import Spool
from velostream.sources.base import Emits, Offset, Source, SourceSpec
from velostream.sql.aggregates import GROUPS
from velostream.sql.plan import Expiry, MapPlan, RelationKind, Strategy, StreamedPlan
from velostream.tables.memory.sequence import Part
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from velostream.engine.planning import Lens
    from velostream.engine.query import Runner
    from velostream.sql.plan import QueryPlan
    from velostream.sql.statements import OptionValue, SourceRef


_BATCHES_AHEAD = 16
"""How many batches a SELECT over a stream may be ahead of who reads them."""


class Launcher:
    """Builds runners and keeps them: one per query, one ingest per source, one fold per table-like source."""

    def __init__(self, context: EngineContext, book: SourceBook) -> None:
        self.context = context
        self.book = book
        self.binder = Binder(context, book)
        self.changes = ChangePlanner(context, self.binder)
        self.loop = MaintenanceLoop(context)
        self.runners: dict[str, Runner] = {}
        self._ingests: list[Ingest] = []
        self._pushed: dict[str, set[str]] = {}
        """Ids of the tables that each SELECT over a stream reads just now."""
        self._lock = threading.RLock()

    def fold(self, bound: BoundInput) -> Entry:
        """The hidden table of a source that is no stream, with the columns that are known to who asks; made and started
        when it is the first.
        """
        with self._lock:
            entry, spec = self._folded(bound)
            if entry is None:
                # Records that stand for rows by another key than one of their columns say so by their origin.
                by_origin = self.book.open(spec).capabilities.emits is Emits.UPSERTS and not bound.schema.key
                schema = _folded_schema(bound.schema, (ORIGIN,) if by_origin else bound.schema.key)
                identity = f"{spec.identity()} {uuid.uuid4().hex[:16]}"
                entry = self._hidden_table(spec.shown, kind=EntryKind.SOURCE, identity=identity, schema=schema)
            if self._is_idle(entry):
                self._start_fold(entry, spec, bound.start)
            return replace(entry, schema=_folded_schema(bound.schema, present(entry.schema).key))

    def widen(self, fold: Entry) -> None:
        """Have a fold that has ended for lack of columns go on with those that it has by now."""
        with self._lock:
            former = self.runners.pop(fold.id, None)
            if isinstance(former, FoldRunner):
                former.suspend()
                self._start_fold(fold, former.source.spec, None)

    def _start_fold(self, entry: Entry, spec: SourceSpec, start: Offset | None) -> None:
        folded = present(entry.schema)
        self.context.sequence.add_columns(entry.id, folded)
        own = Schema(tuple(column for column in folded.columns if column.name != ORIGIN))
        schema = own.with_key(tuple(name for name in folded.key if name != ORIGIN))
        self._run(FoldRunner(self.context, entry, source=self.book.open(spec), schema=schema, start=start))

    def _hidden_table(
        self, name: str, *, kind: EntryKind, identity: str, schema: Schema, reads: tuple[str, ...] = ()
    ) -> Entry:
        """A table that the engine keeps for itself, in the catalog under an identity."""
        entry = replace(Entry.new(name, kind=kind, sql=identity, schema=schema), reads=reads)
        self.context.sequence.create_table(entry.id, name=entry.name, schema=schema)
        self.context.catalog.add(entry)
        return entry

    def _is_idle(self, entry: Entry) -> bool:
        """Whether nothing fills a hidden table; what has failed to is ended."""
        running = self.runners.get(entry.id)
        if running is not None and running.board.state is not State.FAILED:
            return False
        if running is not None:
            running.stop()
        return True

    def _folded(self, bound: BoundInput) -> tuple[Entry | None, SourceSpec]:
        """The fold of a source that has these columns, and the source as that reads it, or is to read it.

        A source may have got columns since others began to read it, who go on with those that they know.
        """
        folds = [entry for entry in self.context.catalog if entry.kind is EntryKind.SOURCE]
        for spec in _readings_for(bound):
            of_source = [entry for entry in folds if entry.sql.partition(" ")[0] == spec.identity()]
            for entry in of_source:
                if _has_columns(entry, bound.schema, further=spec == spec.adding()):
                    return entry, spec
        return None, bound.reading

    def kept_stream(self, bound: BoundInput, expiry: Expiry, owner: Entry) -> Entry:
        """The hidden table of the rows of a stream that a view of joined streams still needs, made if need be."""
        spec, timed = present(bound.spec), (expiry.meeting.left, expiry.meeting.right)
        column = next(one.column for one in timed if one.relation == bound.relation)
        identity = f"{owner.id} {bound.relation} {spec.identity()}"
        with self._lock:
            entry = self.context.catalog.hidden(EntryKind.SOURCE, identity)
            if entry is None:
                schema = kept_stream_schema(bound.schema)
                entry = self._hidden_table(spec.shown, kind=EntryKind.SOURCE, identity=identity, schema=schema)
            if self._is_idle(entry):
                lateness = Lateness(column, expiry.watermark, expiry.late, owner.name)
                source, start = self.book.open(spec), bound.start
                self._run(
                    KeptStreamRunner(
                        self.context, entry, source=source, schema=bound.schema, lateness=lateness, start=start
                    )
                )
            return entry

    def mirror(self, table: Entry) -> Entry:
        """The hidden copy of a table in a store that views read, made and started when it is the first to ask.

        A table of ours is its own.
        """
        store = self.context.stores.find(table.id)
        if store is None:
            return table
        with self._lock:
            entry = self.context.catalog.hidden(EntryKind.MIRROR, table.id)
            if entry is None:
                schema = present(table.schema)
                entry = self._hidden_table(
                    table.name, kind=EntryKind.MIRROR, identity=table.id, schema=schema, reads=(table.id,)
                )
            if entry.id not in self.runners:
                interval = present(query_options(definition_of(table).options).duration("poll.interval"))
                self._run(MirrorRunner(self.context, entry, store=store, poll_interval=interval))
            return entry

    def follow(self, table: Entry, deadline: float) -> Entry:
        """What has the versions of a table, for a subscriber: the table itself, or its mirror, which is now up to date.

        Refuses a table in a store of a kind that doesn't tell its changes.
        """
        store = self.context.stores.find(table.id)
        if store is None:
            return table
        store.require("changes")
        entry = self.mirror(table)
        if not entry.followed:
            entry = replace(entry, followed=True)
            self.context.catalog.update(entry)
        self.runners[entry.id].drain(deadline)
        return entry

    def attach_tables(self, bound: BoundQuery) -> dict[str, Entry]:
        """Every input but the driving stream as an entry that can be read."""
        return {
            one.relation: self.fold(one) if one.entry is None or one.spec is not None else one.entry
            for one in bound.inputs
            if one.kind is not RelationKind.STREAM
        }

    def attach_versioned(self, bound: BoundQuery, options: Options, *, owner: Entry, ours: bool) -> dict[str, Entry]:
        """Every input as an entry whose versions stay readable, for a view over tables, which is the owner or a part
        of it; `ours`: its rows are in our log.
        """
        parts = {one.relation: self.part(one.part, options, owner) for one in bound.inputs if one.part is not None}
        expiry = present(bound.plan.delta).expiry if may_follow(self.context, bound, ours=ours) else None
        if expiry is not None:
            return {one.relation: self.kept_stream(one, expiry, owner) for one in bound.inputs}
        whole = replace(bound, inputs=tuple(one for one in bound.inputs if one.part is None))
        return parts | {relation: self.mirror(entry) for relation, entry in self.attach_tables(whole).items()}

    def part(self, bound: BoundQuery, options: Options, owner: Entry) -> Entry:
        """The hidden view of a part of a query, made and started when it is the first to ask."""
        tables = self.attach_versioned(bound, options, owner=owner, ours=True)
        inputs = {relation: table.id for relation, table in tables.items()}
        identity = hashlib.sha256(repr((bound.plan.sql, inputs)).encode()).hexdigest()[:16]
        with self._lock:
            entry = self.context.catalog.hidden(EntryKind.PART, identity)
            if entry is None:
                entry = self._hidden_table(
                    f"part {identity[:8]}",
                    kind=EntryKind.PART,
                    identity=identity,
                    schema=bound.schema,
                    reads=tuple(inputs.values()),
                )
            if self._is_idle(entry):
                self._run(self._view_runner(entry, self._maintenance(entry, bound), tables, options))
            return entry

    def ingest(self, bound: BoundInput) -> Ingest:
        """The reading of a stream, begun when it is the first to ask."""
        with self._lock:
            specs = _readings_for(bound)
            found = next((one for one in self._ingests if one.reads(specs, bound.schema)), None)
            if found is None:
                found = Ingest(self.context, bound.reading, bound.schema, open_source=self.book.open)
                self._ingests.append(found)
            return found

    def release(self, ingest: Ingest, consumer: Consumer) -> None:
        if ingest.detach(consumer):
            with self._lock:
                self._ingests = [one for one in self._ingests if one is not ingest]

    def wake(self) -> None:
        """A feed of ours has grown: look now instead of at the next poll."""
        for ingest in list(self._ingests):
            ingest.wake()
        for runner in list(self.runners.values()):
            if isinstance(runner, FoldRunner):
                runner.wake()

    def launch_view(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        """Start what keeps a view up to date; gives the entries it reads."""
        strategy = bound.plan.strategy
        if strategy is Strategy.AGGREGATE:
            return self._launch_aggregate(entry, bound, options)
        if strategy is Strategy.MAP:
            tables = self.attach_tables(bound)

            def consumer() -> Consumer:
                made = TableConsumer(
                    self.context, entry, **self._parts(bound, present(bound.plan.map), tables, options)
                )
                made.target = entry
                return made

            self._run(self._ingest_runner(entry, bound, consumer, options))
            return self._reads(bound, tables)
        if bound.is_bounded:
            inputs = {
                one.relation: BoundedInput(self._opened(one), one.schema)
                for one in bound.inputs
                if one.spec is not None
            }
            straight = StraightWay.of_linear(bound)
            self._run(OnceRunner(self.context, entry, sql=bound.plan.sql, inputs=inputs, straight=straight))
            return []
        ours = isinstance(self.context.table(entry.id), MemoryTable)
        tables = self.attach_versioned(bound, options, owner=entry, ours=ours)
        runner = self._view_runner(entry, self._maintenance(entry, bound), tables, options)
        runner.pace = Pace(Trigger.of(options))
        if runner.pace.once:
            hidden = [one for table in tables.values() if table.kind in HIDDEN for one in self._behind(table)]
            runner.first = [partial(self.runners.get, one.id) for one in hidden if one.id in self.runners]
        self._run(runner)
        return [*tables.values(), *(one.entry for one in bound.inputs if one.kept and one.entry is not None)]

    def _opened(self, bound: BoundInput) -> Source:
        """A source for a reader of its own."""
        as_asked = bound.reading == bound.spec
        return bound.opened if bound.opened is not None and as_asked else self.book.open(bound.reading)

    def _behind(self, hidden: Entry) -> list[Entry]:
        """The hidden tables that one is made of, and itself: what the engine keeps of a statement's own sources."""
        return [one for one in self.context.catalog.upstream(hidden) if one.kind in HIDDEN]

    def launch_stream(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        """A derived stream: the batches of its query, in a spool that others read."""
        spec = self.book.stream_spec(entry.id, bound.schema)
        spool = Spool(Path(spec.options["spool"]), durable=self.context.directory.durable)
        return self._launch_into_spool(entry, bound, options, spool)

    def launch_insert(
        self, entry: Entry, bound: BoundQuery, given: tuple[OptionValue, ...], target: Entry | SourceRef
    ) -> list[Entry]:
        """A continuous INSERT INTO a table, a memory feed or a sink."""
        options = query_options(given, realtime=True)
        if Trigger.of(options).realtime:
            return self._launch_realtime(entry, bound, given, target)
        if bound.driving is None and not isinstance(target, Entry):
            return self._launch_outgoing(entry, bound, given, target)
        tables = self.attach_tables(bound)
        parts, windowed = self._appending_parts(entry, bound, tables, options), bound.plan.map is None
        if isinstance(target, Entry):

            def into_table() -> Consumer:
                made = (WindowedTableConsumer if windowed else TableConsumer)(self.context, entry, **parts())
                made.target = target
                return made

            self._run(self._ingest_runner(entry, bound, into_table, options))
        else:
            sink = self.book.open_sink(target, given, bound.schema)

            def into_sink() -> Consumer:
                made = (WindowedSinkConsumer if windowed else SinkConsumer)(self.context, entry, **parts())
                made.sink = sink
                made.on_written = self.wake
                return made

            self._run(self._ingest_runner(entry, bound, into_sink, options))
        return self._reads(bound, tables)

    def check_realtime(self, plan: QueryPlan, lens: Lens, target: object) -> None:
        """Raise `unsupported-trigger` for a query that Real-Time Mode can't run, and the reason; for EXPLAIN."""
        refuse_plan(plan, target, self.context.functions.names())
        driving = plan.inputs[0]
        entry = None if driving.source is not None else self.context.catalog.find(driving.target.name)
        if driving.source is not None:
            refuse_source(self.book.open(self.book.spec(driving.source, driving.options)))
        elif entry is not None:
            refuse_source(self.book.open(lens.stream_spec(entry)))

    def _launch_realtime(
        self, entry: Entry, bound: BoundQuery, given: tuple[OptionValue, ...], target: Entry | SourceRef
    ) -> list[Entry]:
        """From topic to topic in a Spark of its own. Refused before anything is made, with the reason."""
        refuse_plan(bound.plan, target, self.context.functions.names())
        source = self.book.open(bound.driving_source[0])
        refuse_source(source)
        self.context.board(entry).warn(*source.warnings)
        sink = self.book.open_sink(cast("SourceRef", target), given, bound.schema)
        start = self._start_of(bound)
        job = job_of(entry.name, bound, source, sink, start=start)
        self._run(RealtimeRunner(self.context, entry, source=source, sink=sink, start=start, job=job))
        return self._reads(bound, {})

    def _launch_outgoing(
        self, entry: Entry, bound: BoundQuery, given: tuple[OptionValue, ...], target: SourceRef
    ) -> list[Entry]:
        """The changes of a query over tables into a sink."""
        options = query_options(given)
        sink = self.book.open_sink(target, given, bound.schema, changes=True)
        view = self.part(bound, options, entry)
        gate = Gate([self.context.board(view)], gate_policy(options))
        runner = OutgoingChanges(self.context, entry, view=view, sink=sink, gate=gate, on_written=self.wake)
        runner.pace = Pace(Trigger.of(options))
        self._run(runner)
        return [view]

    def launch_changes(self, entry: Entry, changes: Sequence[StreamChange]) -> list[Entry]:
        """Statements over one stream that change tables, as one query; gives the entries they read."""
        attached = [(change, self.attach_tables(change.bound)) for change in changes]
        options = query_options(tuple(option for change in changes for option in options_of(change.plan.statement)))
        driving = changes[0].bound
        boards = [self.context.board(table) for _, tables in attached for table in tables.values()]

        def consumer() -> Consumer:
            start = self._start_of(driving)
            gate = Gate(boards, gate_policy(options))
            return ChangeConsumer(self.context, entry, gate, start=start, changes=attached)

        self._run(self._ingest_runner(entry, driving, consumer, options))
        return [read for change, tables in attached for read in self._reads(change.bound, tables)]

    def push(self, bound: BoundQuery, options: Options) -> PushedRows:
        """Rows of a stream as they come, from now until they are closed."""
        entry = Entry.new("select", kind=EntryKind.INSERT, sql="")
        tables = self.attach_tables(bound)
        arrived: queue.Queue[pa.Table] = queue.Queue(maxsize=_BATCHES_AHEAD)

        def consumer() -> Consumer:
            made = _QueueConsumer(self.context, entry, **self._parts(bound, present(bound.plan.map), tables, options))
            made.arrived = arrived
            return made

        runner = self._ingest_runner(entry, bound, consumer, options)
        runner.start()
        self._pushed[entry.id] = {table.id for table in tables.values()}

        def close() -> None:
            runner.stop()
            self._pushed.pop(entry.id, None)
            self.context.boards.pop(entry.id, None)

        return PushedRows(arrived, runner, close, self.context.closing)

    def is_pushed_from(self, entry: Entry) -> bool:
        """Whether someone is just looking at rows joined with that folded source."""
        return any(entry.id in read for read in self._pushed.values())

    def stop(self, entry: Entry) -> None:
        with self._lock:
            runner = self.runners.pop(entry.id, None)
        if runner is not None:
            runner.stop()

    def suspend(self, entry: Entry) -> None:
        """Stop what is started again at once."""
        with self._lock:
            runner = self.runners.pop(entry.id, None)
        if runner is not None:
            runner.suspend()

    def discard(self, entry: Entry) -> None:
        """Stop what will never run again."""
        with self._lock:
            runner = self.runners.pop(entry.id, None)
        if runner is not None:
            runner.discard()

    def close(self) -> None:
        for runner in list(self.runners.values()):
            runner.stop()
        self.loop.close()

    def _launch_aggregate(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        if present(bound.plan.aggregate).window is not None:
            return self._launch_windowed(entry, bound, options)
        streamed = present(bound.plan.aggregate).streamed
        if streamed is not None and self._may_keep_groups(entry):
            return self._launch_streamed(entry, bound, streamed, options)
        return self._launch_stateful(entry, bound if streamed is None else self.binder.in_spark_state(bound), options)

    def _launch_windowed(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        tables = self.attach_tables(bound)
        holder = entry
        if bound.final is not None:
            holder = self._groups_entry(entry, present(bound.groups_schema), bound, tables)
        parts = self._windowed_parts(holder, bound, tables, options, shown=entry.name)

        def consumer() -> Consumer:
            made = WindowedTableConsumer(self.context, holder, **parts())
            made.target = holder
            return made

        self._run(self._ingest_runner(holder, bound, consumer, options))
        return self._with_final(entry, bound, holder, tables, options)

    def _windowed_parts(
        self,
        holder: Entry,
        bound: BoundQuery,
        tables: Mapping[str, Entry],
        options: Options,
        *,
        shown: str,
        final: str | None = None,
    ) -> Callable[[], dict[str, Any]]:
        """What a consumer of windows is made of; `final` is what its groups go through on their way out."""
        aggregate = present(bound.plan.aggregate)
        windowing = Windowing(
            present(aggregate.window),
            self._kept_rows(holder, kept_rows_schema(present(bound.feed_schema))),
            present(bound.groups_schema),
            shown,
            bound.driving_source[0].shown,
            final,
        )
        return lambda: self._parts(bound, aggregate.feed, tables, options) | {"windowing": windowing}

    def _appending_parts(
        self, entry: Entry, bound: BoundQuery, tables: Mapping[str, Entry], options: Options
    ) -> Callable[[], dict[str, Any]]:
        """What a consumer is made of that gives rows which never change any more: by themselves, or of windows."""
        if bound.plan.map is not None:
            return lambda: self._parts(bound, present(bound.plan.map), tables, options)
        return self._windowed_parts(entry, bound, tables, options, shown=entry.name, final=bound.final)

    def _kept_rows(self, entry: Entry, schema: Schema) -> Entry:
        """The hidden table of the rows that a query still needs."""
        found = self.context.catalog.hidden(EntryKind.ROWS, entry.id)
        if found is None:
            name = f"rows of {entry.name}"
            found = self._hidden_table(name, kind=EntryKind.ROWS, identity=entry.id, schema=schema)
        return found

    def _may_keep_groups(self, entry: Entry) -> bool:
        """Whether partial results can be committed in one step with the rows of the view, and are not in Spark's
        state already.
        """
        if self.context.config.get(MAINTAIN) == "refresh" or not isinstance(self.context.table(entry.id), MemoryTable):
            return False
        holders = [entry, self.context.catalog.hidden(EntryKind.GROUPS, entry.id)]
        checkpoints = self.context.directory.folder("checkpoints")
        return not any(holder is not None and (checkpoints / holder.id).exists() for holder in holders)

    def _launch_streamed(self, entry: Entry, bound: BoundQuery, plan: StreamedPlan, options: Options) -> list[Entry]:
        tables = self.attach_tables(bound)
        feed, bare = present(bound.feed_schema), present(bound.groups_schema)
        state = PartialState(plan.grouped.keys, plan.grouped.partials, feed, bare)
        known = self.context.catalog.hidden(EntryKind.GROUPS, entry.id)
        begun = self.context.sequence.writer(entry.id) is not None
        if begun and (known is None or present(known.schema).to_json() != state.schema.to_json()):
            raise StateError.checkpoint(entry.name, reason="its groups have other columns than this SELECT gives them")
        kept = self._state_entry(entry, state.schema)
        groups = GroupTables(self.context, entry, plan.grouped, groups=kept, state=state, gives=bound.schema)
        if of_no_rows := groups.changed(changes_of(feed)):
            self.context.commit(Part(writes=of_no_rows))
        reads = {one.relation: one.schema for one in bound.inputs if one.kind is RelationKind.STREAM}

        def consumer() -> Consumer:
            parts = self._parts(bound, plan.feed, tables, options) | {"plan": plan}
            return GroupsConsumer(self.context, entry, reads=reads, gives=feed, groups=groups, **parts)

        self._run(self._ingest_runner(entry, bound, consumer, options))
        return self._reads(bound, tables)

    def _launch_stateful(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        aggregate = present(bound.plan.aggregate)
        feed_schema, groups_schema = present(bound.feed_schema), present(bound.groups_schema)
        tables = self.attach_tables(bound)
        holder = entry if bound.final is None else self._groups_entry(entry, groups_schema, bound, tables)
        feed = FeedFolder(self.context.directory.folder("feeds") / holder.id)

        def consumer() -> Consumer:
            made = FeedConsumer(self.context, holder, **self._parts(bound, aggregate.feed, tables, options))
            made.feed = feed
            made.recover()
            return made

        checkpoint = options.text("checkpoint")
        runner = AggregateRunner(
            self.context,
            holder,
            plan=aggregate,
            feed_schema=feed_schema,
            feed=feed,
            feeding=self._ingest_runner(holder, bound, consumer, options),
            checkpoint=Path(checkpoint) if checkpoint else self.context.directory.folder("checkpoints") / holder.id,
        )
        self._run(runner)
        return self._with_final(entry, bound, holder, tables, options)

    def _with_final(
        self, entry: Entry, bound: BoundQuery, holder: Entry, tables: Mapping[str, Entry], options: Options
    ) -> list[Entry]:
        """Start what makes the view of its groups, where they aren't the view; gives the entries it reads."""
        if bound.final is None:
            return self._reads(bound, tables)
        beside = {name: self.mirror(tables[name]) for name in present(bound.plan.aggregate).final_inputs}
        refresh = Refresh(self.context, entry, bound.final)
        self._run(self._view_runner(entry, refresh, beside | {GROUPS: holder}, options))
        return [holder, *beside.values()]

    def _groups_entry(self, entry: Entry, schema: Schema, bound: BoundQuery, tables: Mapping[str, Entry]) -> Entry:
        found = self.context.catalog.hidden(EntryKind.GROUPS, entry.id)
        if found is None:
            reads = tuple(read.id for read in self._reads(bound, tables))
            name = f"groups of {entry.name}"
            found = self._hidden_table(name, kind=EntryKind.GROUPS, identity=entry.id, schema=schema, reads=reads)
        return found

    def _launch_into_spool(self, entry: Entry, bound: BoundQuery, options: Options, spool: Spool) -> list[Entry]:
        tables = self.attach_tables(bound)
        parts, windowed = self._appending_parts(entry, bound, tables, options), bound.plan.map is None

        def consumer() -> Consumer:
            made = (WindowedSpoolConsumer if windowed else SpoolConsumer)(self.context, entry, **parts())
            made.spool = spool
            made.on_publish = self.wake
            made.recover()
            return made

        self._run(self._ingest_runner(entry, bound, consumer, options))
        return self._reads(bound, tables)

    def _state_entry(self, entry: Entry, schema: Schema) -> Entry:
        """The hidden table of what a view keeps beside its rows; a new one when its columns have become others."""
        found = self.context.catalog.hidden(EntryKind.GROUPS, entry.id)
        if found is not None and present(found.schema).to_json() == schema.to_json():
            return found
        fresh = Entry.new(f"groups of {entry.name}", kind=EntryKind.GROUPS, sql=entry.id, schema=schema)
        self.context.sequence.create_table(fresh.id, name=fresh.name, schema=schema)
        self.context.catalog.swap([] if found is None else [found], fresh)
        if found is not None:
            self.context.sequence.drop_table(found.id)
        return fresh

    def _maintenance(self, entry: Entry, bound: BoundQuery) -> Maintenance:
        found = delta_of(self.context, entry, bound, groups=self._state_entry)
        return found or Refresh(self.context, entry, bound.plan.sql)

    def _view_runner(
        self, entry: Entry, maintenance: Maintenance, inputs: Mapping[str, Entry], options: Options
    ) -> ViewRunner:
        gate = Gate([self.context.board(one) for one in inputs.values()], gate_policy(options))
        return ViewRunner(self.context, entry, inputs=inputs, maintenance=maintenance, loop=self.loop, gate=gate)

    def _run(self, runner: Runner) -> None:
        self.runners[runner.entry.id] = runner
        runner.start()

    def _ingest_runner(
        self, entry: Entry, bound: BoundQuery, consumer: Callable[[], Consumer], options: Options
    ) -> IngestRunner:
        driving = present(bound.driving)

        def paced() -> Consumer:
            made = consumer()
            made.pace = Pace(Trigger.of(options))
            return made

        self.context.board(entry).warn(*self.book.open(driving.reading).warnings)
        return IngestRunner(
            self.context,
            entry,
            ingest=lambda: self.ingest(driving),
            consumer=paced,
            release=self.release,
        )

    def _parts(self, bound: BoundQuery, plan: MapPlan, tables: Mapping[str, Entry], options: Options) -> dict[str, Any]:
        boards = [self.context.board(entry) for entry in tables.values()]
        return {
            "gate": Gate(boards, gate_policy(options)),
            "start": self._start_of(bound),
            "plan": plan,
            "tables": tables,
            "names": bound.names,
        }

    def _start_of(self, bound: BoundQuery) -> Offset:
        """Where reading of the driving stream begins, of a statement that has read nothing yet."""
        start = present(bound.driving).start
        return self.book.open(bound.driving_source[0]).initial_offset() if start is None else start

    @staticmethod
    def _reads(bound: BoundQuery, tables: Mapping[str, Entry]) -> list[Entry]:
        """The entries a stream query reads: its tables, and the stream itself when the catalog has it."""
        streams = [
            one.entry for one in bound.inputs if (one.kind is RelationKind.STREAM or one.kept) and one.entry is not None
        ]
        return [*tables.values(), *streams]


class PushedRows:
    """The batches of a SELECT over a stream. Iterate over it; `close` ends the query behind it."""

    def __init__(
        self,
        arrived: queue.Queue[pa.Table],
        runner: Runner,
        on_close: Callable[[], None],
        closing: threading.Event,
    ) -> None:
        self._arrived = arrived
        self._runner = runner
        self._on_close: Callable[[], None] | None = on_close
        self._closing = closing

    def __iter__(self) -> Iterator[pa.Table]:
        while self._on_close is not None and not self._closing.is_set():
            all_has_come = self._runner.has_ended
            try:
                yield self._arrived.get(timeout=0.2)
            except queue.Empty:
                self._runner.board.raise_if_dead()
                if all_has_come:
                    return

    def close(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class _QueueConsumer(TransformingConsumer):
    """Rows for someone who is looking; nothing of it is kept. Reads on only as fast as they are taken."""

    arrived: queue.Queue[pa.Table]

    def runnable(self) -> bool:
        return super().runnable() and not self.arrived.full()

    def run(self, batch: Batch) -> Outcome:
        rows = self.rows_of(batch)
        give = partial(self.arrived.put_nowait, rows) if rows.num_rows else None
        return Outcome(Part(), rows.num_rows, give)


def _folded_schema(schema: Schema, key: tuple[str, ...]) -> Schema:
    """The columns of a fold that a statement knows which was planned with this schema."""
    return Schema((*schema.columns, Column(ORIGIN, pa.string())), key)


def _has_columns(fold: Entry, schema: Schema, *, further: bool) -> bool:
    """Whether a source with this schema has been folded into that, with `further` columns maybe."""
    folded = [(column.name, column.type) for column in present(fold.schema).columns if column.name != ORIGIN]
    known = [(column.name, column.type) for column in schema.columns]
    key = tuple(name for name in present(fold.schema).key if name != ORIGIN)
    return key == schema.key and (set(known) <= set(folded) if further else known == folded)


def _readings_for(bound: BoundInput) -> Sequence[SourceSpec]:
    """The source as a statement would read it, and as others may do with whom it can share that: those get columns that
    come later, or have them left out.
    """
    spec = bound.reading
    return [spec, spec.adding(), spec.ignoring()] if bound.may_grow and not bound.grows else [spec]


def gate_policy(options: Options) -> GatePolicy:
    timeout = options.duration("table.wait.timeout") or timedelta(0)
    return GatePolicy(timeout, start_on_timeout=options.text("table.wait.on.timeout") == "start")
