"""Tables that the engine keeps for itself: each is made and started by the first statement that reads it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from velostream.engine.catalog import HIDDEN, Entry, EntryKind
from velostream.engine.maintain.delta import delta_of, may_follow
from velostream.engine.maintain.fold import FoldRunner
from velostream.engine.maintain.kept_streams import KeptStreamRunner, Lateness, kept_stream_schema
from velostream.engine.maintain.mirror import MirrorRunner
from velostream.engine.maintain.refresh import Refresh
from velostream.engine.options import query_options
from velostream.engine.planning import definition_of
from velostream.errors import present
from velostream.model.change import ORIGIN
from velostream.model.schema import Column, Schema
from velostream.sources.base import Emits
from velostream.sql.plan import RelationKind

if TYPE_CHECKING:
    from velostream.engine.binding import BoundInput, BoundQuery
    from velostream.engine.context import EngineContext
    from velostream.engine.maintain.base import Maintenance
    from velostream.engine.running import Running
    from velostream.engine.sourcing import SourceBook
    from velostream.model.options import Options
    from velostream.sources.base import Offset, SourceSpec
    from velostream.sql.plan import Expiry


class HiddenTables:
    """Folded sources, mirrors of stores, kept streams, parts of queries, and what queries keep beside their results."""

    def __init__(self, context: EngineContext, book: SourceBook, running: Running) -> None:
        self._context = context
        self._book = book
        self._running = running

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
        expiry = present(bound.plan.delta).expiry if may_follow(self._context, bound, ours=ours) else None
        if expiry is not None:
            return {one.relation: self.kept_stream(one, expiry, owner) for one in bound.inputs}
        whole = replace(bound, inputs=tuple(one for one in bound.inputs if one.part is None))
        return parts | {relation: self.mirror(entry) for relation, entry in self.attach_tables(whole).items()}

    def fold(self, bound: BoundInput) -> Entry:
        """The hidden table of a source that is no stream, with the columns that are known to who asks; made and started
        when it is the first.
        """
        with self._running.lock:
            entry, spec = self._folded(bound)
            if entry is None:
                # Records that stand for rows by another key than one of their columns say so by their origin.
                by_origin = self._book.open(spec).capabilities.emits is Emits.UPSERTS and not bound.schema.key
                schema = _folded_schema(bound.schema, (ORIGIN,) if by_origin else bound.schema.key)
                identity = f"{spec.identity()} {uuid.uuid4().hex[:16]}"
                entry = self._made(spec.shown, kind=EntryKind.SOURCE, identity=identity, schema=schema)
            if self._running.is_idle(entry):
                self._start_fold(entry, spec, bound.start)
            return replace(entry, schema=_folded_schema(bound.schema, present(entry.schema).key))

    def widen(self, fold: Entry) -> None:
        """Have a fold that has ended for lack of columns go on with those that it has by now."""
        with self._running.lock:
            former = self._running.runners.pop(fold.id, None)
            if isinstance(former, FoldRunner):
                former.suspend()
                self._start_fold(fold, former.spec, former.position)

    def _start_fold(self, entry: Entry, spec: SourceSpec, start: Offset | None) -> None:
        folded = present(entry.schema)
        self._context.sequence.add_columns(entry.id, folded)
        own = Schema(tuple(column for column in folded.columns if column.name != ORIGIN))
        schema = own.with_key(tuple(name for name in folded.key if name != ORIGIN))
        source = self._book.open(spec)
        self._running.start(FoldRunner(self._context, entry, source=source, schema=schema, start=start, spec=spec))

    def _folded(self, bound: BoundInput) -> tuple[Entry | None, SourceSpec]:
        """The fold of a source that has these columns, and the source as that reads it, or is to read it.

        A source may have got columns since others began to read it, who go on with those that they know.
        """
        folds = [entry for entry in self._context.catalog if entry.kind is EntryKind.SOURCE]
        for spec in bound.readings:
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
        with self._running.lock:
            entry = self._context.catalog.hidden(EntryKind.SOURCE, identity)
            if entry is None:
                schema = kept_stream_schema(bound.schema)
                entry = self._made(spec.shown, kind=EntryKind.SOURCE, identity=identity, schema=schema)
            if self._running.is_idle(entry):
                lateness = Lateness(column, expiry.watermark, expiry.late, owner.name)
                source, start = self._book.open(spec), bound.start
                self._running.start(
                    KeptStreamRunner(
                        self._context, entry, source=source, schema=bound.schema, lateness=lateness, start=start
                    )
                )
            return entry

    def mirror(self, table: Entry) -> Entry:
        """The hidden copy of a table in a store that views read, made and started when it is the first to ask.

        A table of ours is its own.
        """
        store = self._context.stores.find(table.id)
        if store is None:
            return table
        with self._running.lock:
            entry = self._context.catalog.hidden(EntryKind.MIRROR, table.id)
            if entry is None:
                schema = present(table.schema)
                entry = self._made(
                    table.name, kind=EntryKind.MIRROR, identity=table.id, schema=schema, reads=(table.id,)
                )
            if entry.id not in self._running.runners:
                interval = present(query_options(definition_of(table).options).duration("poll.interval"))
                self._running.start(MirrorRunner(self._context, entry, store=store, poll_interval=interval))
            return entry

    def follow(self, table: Entry, deadline: float) -> Entry:
        """What has the versions of a table, for a subscriber: the table itself, or its mirror, which is now up to date.

        Refuses a table in a store of a kind that doesn't tell its changes.
        """
        store = self._context.stores.find(table.id)
        if store is None:
            return table
        store.require("changes")
        entry = self.mirror(table)
        if not entry.followed:
            entry = replace(entry, followed=True)
            self._context.catalog.update(entry)
        self._running.runners[entry.id].drain(deadline)
        return entry

    def part(self, bound: BoundQuery, options: Options, owner: Entry) -> Entry:
        """The hidden view of a part of a query, made and started when it is the first to ask."""
        tables = self.attach_versioned(bound, options, owner=owner, ours=True)
        inputs = {relation: table.id for relation, table in tables.items()}
        identity = hashlib.sha256(repr((bound.plan.sql, inputs)).encode()).hexdigest()[:16]
        with self._running.lock:
            entry = self._context.catalog.hidden(EntryKind.PART, identity)
            if entry is None:
                entry = self._made(
                    f"part {identity[:8]}",
                    kind=EntryKind.PART,
                    identity=identity,
                    schema=bound.schema,
                    reads=tuple(inputs.values()),
                )
            if self._running.is_idle(entry):
                self._running.start(self._running.view_runner(entry, self.maintenance(entry, bound), tables, options))
            return entry

    def maintenance(self, entry: Entry, bound: BoundQuery) -> Maintenance:
        """How a view over tables is brought along."""
        found = delta_of(self._context, entry, bound, groups=self.state)
        return found or Refresh(self._context, entry, bound.plan.sql)

    def behind(self, hidden: Entry) -> list[Entry]:
        """The hidden tables that one is made of, and itself: what the engine keeps of a statement's own sources."""
        return [one for one in self._context.catalog.upstream(hidden) if one.kind in HIDDEN]

    def kept_rows(self, entry: Entry, schema: Schema) -> Entry:
        """The hidden table of the rows that a query still needs."""
        found = self._context.catalog.hidden(EntryKind.ROWS, entry.id)
        if found is None:
            name = f"rows of {entry.name}"
            found = self._made(name, kind=EntryKind.ROWS, identity=entry.id, schema=schema)
        return found

    def groups(self, entry: Entry, schema: Schema, reads: Sequence[Entry]) -> Entry:
        """The hidden table of the groups that a view over a stream is made of."""
        found = self._context.catalog.hidden(EntryKind.GROUPS, entry.id)
        if found is None:
            ids = tuple(read.id for read in reads)
            name = f"groups of {entry.name}"
            found = self._made(name, kind=EntryKind.GROUPS, identity=entry.id, schema=schema, reads=ids)
        return found

    def state(self, entry: Entry, schema: Schema) -> Entry:
        """The hidden table of what a view keeps beside its rows; a new one when its columns have become others."""
        found = self._context.catalog.hidden(EntryKind.GROUPS, entry.id)
        if found is not None and present(found.schema).to_json() == schema.to_json():
            return found
        fresh = Entry.new(f"groups of {entry.name}", kind=EntryKind.GROUPS, sql=entry.id, schema=schema)
        self._context.sequence.create_table(fresh.id, name=fresh.name, schema=schema)
        self._context.catalog.swap([] if found is None else [found], fresh)
        if found is not None:
            self._context.sequence.drop_table(found.id)
        return fresh

    def _made(self, name: str, *, kind: EntryKind, identity: str, schema: Schema, reads: tuple[str, ...] = ()) -> Entry:
        """A table that the engine keeps for itself, in the catalog under an identity."""
        entry = replace(Entry.new(name, kind=kind, sql=identity, schema=schema), reads=reads)
        self._context.sequence.create_table(entry.id, name=entry.name, schema=schema)
        self._context.catalog.add(entry)
        return entry


def _folded_schema(schema: Schema, key: tuple[str, ...]) -> Schema:
    """The columns of a fold that a statement knows which was planned with this schema."""
    return Schema((*schema.columns, Column(ORIGIN, pa.string())), key)


def _has_columns(fold: Entry, schema: Schema, *, further: bool) -> bool:
    """Whether a source with this schema has been folded into that, with `further` columns maybe."""
    folded = [(column.name, column.type) for column in present(fold.schema).columns if column.name != ORIGIN]
    known = [(column.name, column.type) for column in schema.columns]
    key = tuple(name for name in present(fold.schema).key if name != ORIGIN)
    return key == schema.key and (set(known) <= set(folded) if further else known == folded)
