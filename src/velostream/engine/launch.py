"""From a bound query to what runs it: which runner a plan gets, and who shares which ingest."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from velostream.engine.binding import MAINTAIN, Binder, BoundInput, BoundQuery
from velostream.engine.catalog import HIDDEN, Entry, EntryKind
from velostream.engine.changing import ChangeConsumer, ChangePlanner, StreamChange, options_of
from velostream.engine.consumer import Consumer
from velostream.engine.consumers import (
    IngestRunner,
    SinkConsumer,
    SpoolConsumer,
    TableConsumer,
)
from velostream.engine.context import EngineContext
from velostream.engine.gate import Gate, GatePolicy
from velostream.engine.hidden import HiddenTables
from velostream.engine.maintain.aggregate import AggregateRunner, FeedConsumer, FeedFolder
from velostream.engine.maintain.groups import GroupTables
from velostream.engine.maintain.once import BoundedInput, OnceRunner
from velostream.engine.maintain.outgoing import OutgoingChanges
from velostream.engine.maintain.partials import PartialState
from velostream.engine.maintain.refresh import Refresh
from velostream.engine.maintain.steps import changes_of
from velostream.engine.maintain.streamed import GroupsConsumer
from velostream.engine.maintain.windows import (
    WindowedSinkConsumer,
    WindowedSpoolConsumer,
    WindowedTableConsumer,
    Windowing,
    kept_rows_schema,
)
from velostream.engine.options import query_options
from velostream.engine.pushing import BATCHES_AHEAD, PushedRows, QueueConsumer
from velostream.engine.realtime.job import job_of, refuse_plan, refuse_source
from velostream.engine.realtime.runner import RealtimeRunner
from velostream.engine.running import Running
from velostream.engine.sourcing import SourceBook
from velostream.engine.straight import StraightWay
from velostream.engine.trigger import Pace, Trigger
from velostream.errors import StateError, present
from velostream.model.options import Options
from velostream.model.spool import Spool
from velostream.sources.base import Offset, Source
from velostream.sql.aggregates import GROUPS
from velostream.sql.plan import MapPlan, RelationKind, Strategy, StreamedPlan
from velostream.tables.memory.sequence import Part
from velostream.tables.memory.table import MemoryTable

if TYPE_CHECKING:
    from velostream.engine.planning import Lens
    from velostream.sql.plan import QueryPlan
    from velostream.sql.statements import OptionValue, SourceRef


class Launcher:
    """Builds the runners of queries and starts them."""

    def __init__(self, context: EngineContext, book: SourceBook) -> None:
        self.context = context
        self.book = book
        self.binder = Binder(context, book)
        self.changes = ChangePlanner(context, self.binder)
        self.running = Running(context, book)
        self.hidden = HiddenTables(context, book, self.running)
        self._pushed: dict[str, set[str]] = {}
        """Ids of the tables that each SELECT over a stream reads just now."""

    def launch_view(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        """Start what keeps a view up to date; gives the entries it reads."""
        strategy = bound.plan.strategy
        if strategy is Strategy.AGGREGATE:
            return self._launch_aggregate(entry, bound, options)
        if strategy is Strategy.MAP:
            tables = self.hidden.attach_tables(bound)

            def consumer() -> Consumer:
                made = TableConsumer(
                    self.context, entry, **self._parts(bound, present(bound.plan.map), tables, options)
                )
                made.target = entry
                return made

            self.running.start(self._ingest_runner(entry, bound, consumer, options))
            return self._reads(bound, tables)
        if bound.is_bounded:
            inputs = {
                one.relation: BoundedInput(self._opened(one), one.schema)
                for one in bound.inputs
                if one.spec is not None
            }
            straight = StraightWay.of_linear(bound)
            self.running.start(OnceRunner(self.context, entry, sql=bound.plan.sql, inputs=inputs, straight=straight))
            return []
        ours = isinstance(self.context.table(entry.id), MemoryTable)
        tables = self.hidden.attach_versioned(bound, options, owner=entry, ours=ours)
        runner = self.running.view_runner(entry, self.hidden.maintenance(entry, bound), tables, options)
        runner.pace = Pace(Trigger.of(options))
        if runner.pace.once:
            hidden = [one for table in tables.values() if table.kind in HIDDEN for one in self.hidden.behind(table)]
            runner.first = [
                partial(self.running.runners.get, one.id) for one in hidden if one.id in self.running.runners
            ]
        self.running.start(runner)
        return [*tables.values(), *(one.entry for one in bound.inputs if one.kept and one.entry is not None)]

    def _opened(self, bound: BoundInput) -> Source:
        """A source for a reader of its own."""
        as_asked = bound.reading == bound.spec
        return bound.opened if bound.opened is not None and as_asked else self.book.open(bound.reading)

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
        tables = self.hidden.attach_tables(bound)
        parts, windowed = self._appending_parts(entry, bound, tables, options), bound.plan.map is None
        if isinstance(target, Entry):

            def into_table() -> Consumer:
                made = (WindowedTableConsumer if windowed else TableConsumer)(self.context, entry, **parts())
                made.target = target
                return made

            self.running.start(self._ingest_runner(entry, bound, into_table, options))
        else:
            sink = self.book.open_sink(target, given, bound.schema)

            def into_sink() -> Consumer:
                made = (WindowedSinkConsumer if windowed else SinkConsumer)(self.context, entry, **parts())
                made.sink = sink
                made.on_written = self.running.wake
                return made

            self.running.start(self._ingest_runner(entry, bound, into_sink, options))
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
        self.running.start(RealtimeRunner(self.context, entry, source=source, sink=sink, start=start, job=job))
        return self._reads(bound, {})

    def _launch_outgoing(
        self, entry: Entry, bound: BoundQuery, given: tuple[OptionValue, ...], target: SourceRef
    ) -> list[Entry]:
        """The changes of a query over tables into a sink."""
        options = query_options(given)
        sink = self.book.open_sink(target, given, bound.schema, changes=True)
        view = self.hidden.part(bound, options, entry)
        gate = Gate([self.context.board(view)], GatePolicy.of(options))
        runner = OutgoingChanges(self.context, entry, view=view, sink=sink, gate=gate, on_written=self.running.wake)
        runner.pace = Pace(Trigger.of(options))
        self.running.start(runner)
        return [view]

    def launch_changes(self, entry: Entry, changes: Sequence[StreamChange]) -> list[Entry]:
        """Statements over one stream that change tables, as one query; gives the entries they read."""
        attached = [(change, self.hidden.attach_tables(change.bound)) for change in changes]
        options = query_options(tuple(option for change in changes for option in options_of(change.plan.statement)))
        driving = changes[0].bound
        boards = [self.context.board(table) for _, tables in attached for table in tables.values()]

        def consumer() -> Consumer:
            start = self._start_of(driving)
            gate = Gate(boards, GatePolicy.of(options))
            return ChangeConsumer(self.context, entry, gate, start=start, changes=attached)

        self.running.start(self._ingest_runner(entry, driving, consumer, options))
        return [read for change, tables in attached for read in self._reads(change.bound, tables)]

    def push(self, bound: BoundQuery, options: Options) -> PushedRows:
        """Rows of a stream as they come, from now until they are closed."""
        entry = Entry.new("select", kind=EntryKind.INSERT, sql="")
        tables = self.hidden.attach_tables(bound)
        arrived: queue.Queue[pa.Table] = queue.Queue(maxsize=BATCHES_AHEAD)

        def consumer() -> Consumer:
            made = QueueConsumer(self.context, entry, **self._parts(bound, present(bound.plan.map), tables, options))
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

    def _launch_aggregate(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        if present(bound.plan.aggregate).window is not None:
            return self._launch_windowed(entry, bound, options)
        streamed = present(bound.plan.aggregate).streamed
        if streamed is not None and self._may_keep_groups(entry):
            return self._launch_streamed(entry, bound, streamed, options)
        return self._launch_stateful(entry, bound if streamed is None else self.binder.in_spark_state(bound), options)

    def _launch_windowed(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        tables = self.hidden.attach_tables(bound)
        holder = entry
        if bound.final is not None:
            holder = self.hidden.groups(entry, present(bound.groups_schema), self._reads(bound, tables))
        parts = self._windowed_parts(holder, bound, tables, options, shown=entry.name)

        def consumer() -> Consumer:
            made = WindowedTableConsumer(self.context, holder, **parts())
            made.target = holder
            return made

        self.running.start(self._ingest_runner(holder, bound, consumer, options))
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
            self.hidden.kept_rows(holder, kept_rows_schema(present(bound.feed_schema))),
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
        tables = self.hidden.attach_tables(bound)
        feed, bare = present(bound.feed_schema), present(bound.groups_schema)
        state = PartialState(plan.grouped.keys, plan.grouped.partials, feed, bare)
        known = self.context.catalog.hidden(EntryKind.GROUPS, entry.id)
        begun = self.context.sequence.writer(entry.id) is not None
        if begun and (known is None or present(known.schema).to_json() != state.schema.to_json()):
            raise StateError.checkpoint(entry.name, reason="its groups have other columns than this SELECT gives them")
        kept = self.hidden.state(entry, state.schema)
        groups = GroupTables(self.context, entry, plan.grouped, groups=kept, state=state, gives=bound.schema)
        if of_no_rows := groups.changed(changes_of(feed)):
            self.context.commit(Part(writes=of_no_rows))
        reads = {one.relation: one.schema for one in bound.inputs if one.kind is RelationKind.STREAM}

        def consumer() -> Consumer:
            parts = self._parts(bound, plan.feed, tables, options) | {"plan": plan}
            return GroupsConsumer(self.context, entry, reads=reads, gives=feed, groups=groups, **parts)

        self.running.start(self._ingest_runner(entry, bound, consumer, options))
        return self._reads(bound, tables)

    def _launch_stateful(self, entry: Entry, bound: BoundQuery, options: Options) -> list[Entry]:
        aggregate = present(bound.plan.aggregate)
        feed_schema, groups_schema = present(bound.feed_schema), present(bound.groups_schema)
        tables = self.hidden.attach_tables(bound)
        holder = entry if bound.final is None else self.hidden.groups(entry, groups_schema, self._reads(bound, tables))
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
        self.running.start(runner)
        return self._with_final(entry, bound, holder, tables, options)

    def _with_final(
        self, entry: Entry, bound: BoundQuery, holder: Entry, tables: Mapping[str, Entry], options: Options
    ) -> list[Entry]:
        """Start what makes the view of its groups, where they aren't the view; gives the entries it reads."""
        if bound.final is None:
            return self._reads(bound, tables)
        beside = {name: self.hidden.mirror(tables[name]) for name in present(bound.plan.aggregate).final_inputs}
        refresh = Refresh(self.context, entry, bound.final)
        self.running.start(self.running.view_runner(entry, refresh, beside | {GROUPS: holder}, options))
        return [holder, *beside.values()]

    def _launch_into_spool(self, entry: Entry, bound: BoundQuery, options: Options, spool: Spool) -> list[Entry]:
        tables = self.hidden.attach_tables(bound)
        parts, windowed = self._appending_parts(entry, bound, tables, options), bound.plan.map is None

        def consumer() -> Consumer:
            made = (WindowedSpoolConsumer if windowed else SpoolConsumer)(self.context, entry, **parts())
            made.spool = spool
            made.on_publish = self.running.wake
            made.recover()
            return made

        self.running.start(self._ingest_runner(entry, bound, consumer, options))
        return self._reads(bound, tables)

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
            ingest=lambda: self.running.ingest(driving),
            consumer=paced,
            release=self.running.release,
        )

    def _parts(self, bound: BoundQuery, plan: MapPlan, tables: Mapping[str, Entry], options: Options) -> dict[str, Any]:
        boards = [self.context.board(entry) for entry in tables.values()]
        return {
            "gate": Gate(boards, GatePolicy.of(options)),
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
