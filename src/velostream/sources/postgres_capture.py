"""PostgreSQL followed through its log: what is there at a moment, then every transaction after it.

A slot is made first, so that the log keeps all that comes. Then the table is read as of one moment, and the moment's
snapshot is noted: transactions of the log that it has seen are in the rows already, and are passed over. From there on
the log is looked into, and given up when what was found is committed with us; so every change is taken once.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.errors import Category, OptionError, SourceError, present
from velostream.model.change import CHANGE, UNCHANGED
from velostream.model.conform import TimeRules
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord, Lag, Offset, OnBad, Partition
from velostream.sources.bulk import Bulk, with_sign
from velostream.sources.capture import ChangedRows, LogCapture, partitions_of, place_written, seconds_since
from velostream.sources.pgoutput import Decoded, PgOutputDecoder
from velostream.sources.postgres_sharing import SlotReaders, offsets_of_slot, readers_of
from velostream.sources.postgres_slot import CapturedTable, PostgresSlot, SlotNames, position_of, text_of
from velostream.sources.postgres_types import columns_of_texts

if TYPE_CHECKING:
    from velostream.sources.postgres import PostgresSource

_CHANGES_AT_ONCE = 100_000
_QUIET_BYTES = 16 << 20
_QUIET_SECONDS = 30.0
_QUIET_SECONDS_OF_MANY = 1.0
"""How much of the log that isn't about the table, or for how long, may go by before it is given up."""


@dataclass(frozen=True)
class _Piece:
    """A decoded piece of the log."""

    start: Offset
    end: Offset
    decoded: Decoded


class PostgresCapture(LogCapture):
    """A table by its log.

    An offset has the `slot` and the `publication`, which of them we `made`, the number of the `load` that its rows came
    by, and the position in the log (`lsn`); until the log has passed the load, also its `snapshot`; and the `server`
    where the slot is one that others may read, too.
    """

    def __init__(self, source: PostgresSource) -> None:
        super().__init__(source)
        self._source = source
        self._bulk = Bulk(source)
        self._slot = PostgresSlot(source.driver)
        self._table: CapturedTable | None = None
        self._loaded: Offset = None
        """The end of a load that was begun and is not committed."""
        self._wanted = 0
        """The position that somebody waits for."""
        self._piece: _Piece | None = None
        self._own = ""
        self._given_up_at = time.monotonic()
        self._readers: SlotReaders | None = None
        """All that read the slot, of which this is one."""

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        if start is None:
            return self._begin(start)
        if self.lacks_values(start):
            return self._begin(start)
        at = position_of(start["lsn"])
        if self._readers is None:
            self._shared(start["slot"]).hold(self, at)
        confirmed = self._slot.confirmed(start["slot"])
        if confirmed is None or confirmed > at:
            return self._after_a_gap(start, confirmed)
        before = self._slot.readable_end()
        piece = self._look(start, changes=1 if max_rows is None else min(max_rows, _CHANGES_AT_ONCE))
        if piece is not None:
            if max_rows is None:
                # It takes a look at everything to know where the last of it ends; the present end will do as well.
                self._wanted = max(self._wanted, before, position_of(piece.end["lsn"]))
                return _after(start, self._wanted)
            self._piece = piece
            return piece.end
        quiet = before - at
        # The others look through all that is kept for us, again and again.
        alone = not self._shared(start["slot"]).others(self)
        late = time.monotonic() - self._given_up_at > (_QUIET_SECONDS if alone else _QUIET_SECONDS_OF_MANY)
        if max_rows is not None and quiet > 0 and (quiet > _QUIET_BYTES or late or self._wanted > at):
            return _after(start, before)
        return start

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        if start is None or start["load"] != end["load"]:
            if start is None and self._source.settings.text("initial.load") == "none":
                return ()
            with self._loading():
                return self._bulk.partitions(replaces=start is not None, begun=True)
        return partitions_of(self._decoded(start, end).pieces, start, end)

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        payload = partition.payload
        if "bulk" in payload:
            self.check_loaded(schema)
            with self._loading():
                for batch in self._bulk.read(partition, schema, on_bad):
                    yield batch if partition.replaces else with_sign(batch)
            return
        if payload["number"] is None:
            return
        decoded = self._decoded(payload["start"], payload["end"])
        yield from self._rows(decoded.pieces[payload["number"]], schema, on_bad, at=payload["end"]["lsn"])

    def reached(self, position: Offset, target: Offset) -> bool:
        at, to = (position["load"], position_of(position["lsn"])), (target["load"], position_of(target["lsn"]))
        return at >= to

    def gauges(self, position: Offset) -> Mapping[str, int]:
        retained = self._slot.retained(position["slot"])
        return {} if retained is None else {"retained log bytes": retained}

    def lag(self, position: Offset) -> Lag:
        """By when the last transaction that was taken was committed."""
        piece = self._piece
        if piece is None or piece.end != position:
            return Lag()
        return Lag(seconds=seconds_since(piece.decoded.committed_at))

    def commit(self, end: Offset) -> None:
        self._loaded = None
        self._bulk.close()
        readers, at = self._shared(end["slot"]), position_of(end["lsn"])
        readers.hold(self, at)
        with readers.turn():
            remembered = (position_of(other["lsn"]) for other in self._remembered(end["slot"]))
            self._slot.advance(end["slot"], min([at, *readers.others(self), *remembered]))
        self._given_up_at = time.monotonic()

    def forget(self, position: Offset) -> None:
        kept = position or self._loaded
        self._bulk.close()
        if kept is None:
            return
        readers = self._shared(kept["slot"])
        readers.release(self)
        with readers.turn():
            if not readers.others(self) and not self._remembered(kept["slot"]):
                made = kept["made"]
                slot = kept["slot"] if "slot" in made else None
                self._slot.drop(slot, kept["publication"] if "publication" in made else None)

    def close(self) -> None:
        if self._readers is not None:
            self._readers.release(self)
        self._bulk.close()
        self._slot.close()

    def _shared(self, slot: str) -> SlotReaders:
        """All that read the slot; only one that was named can have others."""
        if self._readers is None:
            named = "slot.name" in self._source.settings
            self._readers = readers_of(self._slot.server(), slot) if named else SlotReaders()
        return self._readers

    def _remembered(self, slot: str) -> list[dict[str, Any]]:
        """Positions in the slot of those whom the engine knows, whether they run or not."""
        companions = self._source.companions
        if companions is None or "slot.name" not in self._source.settings:
            return []
        return offsets_of_slot(companions(), server=self._slot.server(), slot=slot)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        try:
            yield
        except SourceError:
            # The moment that was read is gone with the connection; the next attempt takes another.
            self._loaded = None
            raise

    def _begin(self, start: Offset) -> Offset:
        """Make what is needed, and note the moment of the load."""
        if self._loaded is not None:
            return self._loaded
        names = self._chosen_names()
        table = self._captured()
        readers = self._shared(names.slot)
        with readers.turn():
            made, confirmed = self._join(names, table, readers, made=() if start is None else start["made"])
            readers.hold(self, confirmed)
        load = 1 if start is None else start["load"] + 1
        offset = {
            "slot": names.slot,
            "publication": names.publication,
            "temporary": names.temporary,
            "made": sorted(made),
            "load": load,
            **self.columns_loaded(),
        }
        if "slot.name" in self._source.settings:
            offset["server"] = self._slot.server()
        if self._source.settings.text("initial.load") == "none" and start is None:
            self._loaded = offset | {"lsn": text_of(self._first_position(confirmed))}
            return self._loaded
        session: Any = self._bulk.begin()
        ((snapshot,),) = session.ask("SELECT pg_current_snapshot()::text")
        seen_by = self._slot.written_end()
        self._loaded = offset | {"lsn": text_of(confirmed), "snapshot": snapshot, "seen_by": text_of(seen_by)}
        return self._loaded

    def _join(
        self, names: SlotNames, table: CapturedTable, readers: SlotReaders, *, made: Iterable[str]
    ) -> tuple[set[str], int]:
        """Find or make the publication and the slot: what of them is ours, and where the slot stands."""
        ours = {*made, *(thing for other in self._remembered(names.slot) for thing in other["made"]), *readers.made}
        if "publication.name" not in self._source.settings:
            ours.add("publication")
        if self._slot.publish(names, table, shown=self._source.selection.shown, ours="publication" in ours):
            ours.add("publication")
        confirmed = self._slot.confirmed(names.slot)
        if "slot.name" not in self._source.settings or (confirmed is None and "slot" in ours):
            # Of a start that ended before anything was committed, or one that has lost what it should hold.
            self._slot.drop(names.slot, None)
            confirmed = None
        if confirmed is None:
            self._slot.make(names)
            ours.add("slot")
            confirmed = present(self._slot.confirmed(names.slot))
        readers.made |= ours
        return ours, confirmed

    def _first_position(self, confirmed: int) -> int:
        written = place_written(self._source.settings) or "latest"
        match written.lower():
            case "latest":
                return max(confirmed, self._slot.written_end())
            case "earliest":
                return confirmed
        try:
            position = position_of(written)
        except ValueError as error:
            expected = "latest, earliest, or a position such as 16/B374D848"
            raise OptionError.value("cdc.start", written, expected=expected) from error
        return max(confirmed, position)

    def _after_a_gap(self, start: Offset, confirmed: int | None) -> Offset:
        """The log no longer has what comes after the position."""
        reason = "the slot is gone, or the server has dropped what it held"
        if confirmed is not None:
            reason = f"the slot was given up to {text_of(confirmed)} by someone else; we are at {start['lsn']}"
        if start["temporary"] or self._source.settings.text("cdc.on.gap") == "snapshot":
            return self._begin(start)
        raise SourceError.log_lost("postgres", start["slot"], reason=reason)

    def _chosen_names(self) -> SlotNames:
        settings = self._source.settings
        slot, publication = settings.text("slot.name"), settings.text("publication.name")
        reader = self._source.reader
        if not self._own:
            self._own = hashlib.sha256((reader or uuid.uuid4().hex).encode()).hexdigest()[:16]
        return SlotNames(
            slot or f"velostream_{self._own}",
            publication or f"velostream_{slot or self._own}",
            temporary=slot is None and reader is None,
        )

    def have_values(self, columns: Sequence[str]) -> bool:
        relation = self._source.driver.relation(self._source.selection).sql
        return self._slot.fills(relation, columns)

    def check_again(self) -> None:
        self._table = None

    def check(self, schema: Schema) -> None:
        """See that the log can tell which rows of the table change."""
        if self._table is not None:
            return
        shown = self._source.selection.shown
        # Over a connection of its own: planning asks, too, and keeps nothing open.
        slot = PostgresSlot(self._source.driver)
        try:
            table = slot.table(self._source.driver.relation(self._source.selection).sql, shown=shown)
        finally:
            slot.close()
        if table.identity is not None and {name.lower() for name in table.identity} != {n.lower() for n in schema.key}:
            raise SourceError(
                f'the log of table "{shown}" tells rows by another key',
                detail=f"by {', '.join(table.identity)}, and the key here is {', '.join(schema.key) or 'none'}",
                hint=f"WITH ('key' = '{','.join(table.identity)}')",
                code="invalid-option",
                category=Category.CONFIGURATION,
            )
        self._table = table
        self.warn(
            f'column "{name}" of {shown} is generated: the log doesn\'t tell it, so it is left out'
            for name in table.generated
        )

    def _captured(self) -> CapturedTable:
        self.check(present(self._source.schema()))
        return present(self._table)

    def _decoder(self) -> PgOutputDecoder:
        table = self._captured()
        key = present(self._source.schema()).key
        stored = present(self._source.discovered())
        return PgOutputDecoder(
            schema=table.schema, table=table.name, key=tuple(stored.column(name).name for name in key)
        )

    def _look(self, start: Offset, *, changes: int) -> _Piece | None:
        """The next transactions, about so many changes; None when there are none."""
        at = position_of(start["lsn"])
        read = -1
        while True:
            with self._shared(start["slot"]).turn():
                messages = self._slot.peek(_names(start), changes=changes)
            decoded = self._decoder().decode(messages, after=at, is_known=_known(start))
            if decoded.end > at:
                return _Piece(start, _after(start, decoded.end), decoded)
            if len(messages) == read or not messages:
                return None
            # All of it was taken before, and is not given up yet.
            read, changes = len(messages), changes * 8

    def _decoded(self, start: Offset, end: Offset) -> Decoded:
        """What a range of the log holds; looked up again where it isn't at hand, as in a worker."""
        if self._piece is None or (self._piece.start, self._piece.end) != (start, end):
            after, until = position_of(start["lsn"]), position_of(end["lsn"])
            with self._shared(start["slot"]).turn():
                messages = self._slot.peek(_names(start), changes=None, up_to=until)
            decoded = self._decoder().decode(messages, after=after, until=until, is_known=_known(start))
            self._piece = _Piece(start, end, decoded)
        return self._piece.decoded

    def _rows(self, piece: ChangedRows, schema: Schema, on_bad: OnBad, *, at: str) -> Iterator[pa.RecordBatch]:
        declares = self._source.declares_columns
        self.note_new(piece.columns, schema, left_out=present(self._source.discovered()).names if declares else ())
        columns = {name: pa.array(values, pa.binary()).cast(pa.string()) for name, values in piece.columns.items()}
        columns[CHANGE] = pa.array(piece.signs, pa.int8())
        wanted = (*schema.columns, Column(CHANGE, pa.int8()))
        rejected: set[int] = set()

        def reject(index: int, reason: str) -> None:
            rejected.add(index)
            raw = repr({name: values[index] for name, values in piece.columns.items()}).encode()
            on_bad(BadRecord(raw, f"change {index + 1} before {at}", reason))

        partial = [sign < 0 or index in piece.unchanged for index, sign in enumerate(piece.signs)]
        exempt = pa.chunked_array([pa.array(partial, pa.bool_())])
        times = TimeRules(self._source.driver.timezone)
        rows = columns_of_texts(columns, Schema(wanted, schema.key), reject, times=times, exempt=exempt)
        if piece.unchanged:
            rows = rows.append_column(UNCHANGED, pa.array(_unchanged(piece, rejected), pa.list_(pa.string())))
        yield from rows.combine_chunks().to_batches()


def _unchanged(piece: ChangedRows, rejected: set[int]) -> list[list[str] | None]:
    """What each row that is left keeps, see `UNCHANGED`; half a change of a key, whose other was rejected, is none."""
    left = (index for index in range(len(piece.signs)) if index not in rejected)
    kept = ((index, piece.unchanged.get(index)) for index in left)
    return [None if names == [] and index + 1 in rejected else names for index, names in kept]


def _names(offset: Any) -> SlotNames:
    return SlotNames(offset["slot"], offset["publication"], offset["temporary"])


def _after(start: Any, position: int) -> Offset:
    """The offset at a later position; once the log has passed the load, its snapshot is of no more use."""
    end = start | {"lsn": text_of(position)}
    if "seen_by" in end and position >= position_of(end["seen_by"]):
        end = {name: value for name, value in end.items() if name not in ("snapshot", "seen_by")}
    return end


def _known(offset: Any) -> Any:
    """Whether the load has seen a transaction, by its 32-bit number."""
    if "snapshot" not in offset:
        return lambda _: False
    first, after, running = offset["snapshot"].split(":")
    low, high = int(first), int(after)
    in_progress = {int(number) for number in running.split(",") if number}

    def known(short: int) -> bool:
        number = (high & ~0xFFFFFFFF) | short
        if number > high + (1 << 31):
            # The numbers have wrapped around since.
            number -= 1 << 32
        elif number < high - (1 << 31):
            number += 1 << 32
        return number < low or (number < high and number not in in_progress)

    return known
