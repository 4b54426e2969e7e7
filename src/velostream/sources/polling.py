"""Databases read again and again, or asked for rows with newer values of a column."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import OptionError, present
from velostream.model.change import ORIGIN, JsonValue, signed
from velostream.model.duration import parse_duration
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord, Emits, Offset, OnBad, Partition, Replay, SourceCapabilities
from velostream.sources.bulk import Bulk, OneReading, with_sign
from velostream.sources.database import ReadingMode, Statement

if TYPE_CHECKING:
    from velostream.sources.database import DatabaseSource

_DEFAULT_OVERLAP = timedelta(seconds=10)
_DEFAULT_OVERLAP_OF_NUMBERS = 1_000


def polling_mode(source: DatabaseSource) -> ReadingMode:
    """The way of reading that the options ask for."""
    settings = source.settings
    if settings.text("incremental.column"):
        return IncrementalPolling(source)
    if "poll.query" in settings:
        raise OptionError(
            'option "poll.query" needs "incremental.column"',
            detail="rows that the query gives are told apart by their values of that column",
            hint="WITH ('poll.query' = 'SELECT … WHERE changed_at > :last', 'incremental.column' = 'changed_at')",
        )
    if settings.boolean("watch") or "poll.interval" in settings:
        return RepeatedReading(source)
    return OneReading(source)


class RepeatedReading(ReadingMode):
    """Everything is read again and again; an offset holds the digest of what was read, and how many looks changed it.

    What was read while it was looked at is kept until it is committed, so that it needn't be read twice.
    """

    capabilities = SourceCapabilities(emits=Emits.CHANGES, incremental=True, follows=True)

    def __init__(self, source: DatabaseSource) -> None:
        self._source = source
        self._bulk = Bulk(source)
        self._seen: tuple[str, list[pa.RecordBatch], list[BadRecord]] | None = None

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        if start is None:
            return {"digest": "", "looks": 0}
        schema = present(self._source.schema())
        bad: list[BadRecord] = []
        (whole,) = self._bulk.partitions(replaces=True)
        batches = list(self._bulk.read(whole, schema, bad.append))
        digest = _digest(batches)
        if digest == start["digest"]:
            return start
        self._seen = (digest, batches, bad)
        return {"digest": digest, "looks": start["looks"] + 1}

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        if start is None:
            return self._bulk.partitions()
        return [Partition({"digest": end["digest"]}, replaces=True)]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        if "bulk" in partition.payload:
            for batch in self._bulk.read(partition, schema, on_bad):
                yield with_sign(batch)
            return
        if self._seen is None or self._seen[0] != partition.payload["digest"]:
            (whole,) = self._bulk.partitions(replaces=True)
            yield from self._bulk.read(whole, schema, on_bad)
            return
        for record in self._seen[2]:
            on_bad(record)
        yield from self._seen[1]

    def reached(self, position: Offset, target: Offset) -> bool:
        return bool(position["looks"] >= target["looks"])

    def commit(self, end: Offset) -> None:
        self._seen = None
        self._bulk.close()

    def close(self) -> None:
        self._seen = None
        self._bulk.close()


@dataclass(frozen=True)
class _Look:
    """What a look for newer rows gave: those that the one before hadn't."""

    start: Offset
    end: Offset
    rows: pa.Table
    origins: list[str]
    bad: tuple[BadRecord, ...]


@dataclass(frozen=True)
class _Found:
    """All that a look came by, those rows included that were seen before."""

    rows: pa.Table
    fresh: list[int]
    """Where in them those are that were not."""
    origins: list[str]
    """Of the fresh ones."""
    unseen: tuple[BadRecord, ...]
    digests: set[str]
    is_complete: bool


class IncrementalPolling(ReadingMode):
    """Rows with newer values of a column are asked for again and again; rows that are deleted go unnoticed.

    A transaction may commit rows with values below those already seen, so each look reaches back by an overlap. Taking
    a row in twice changes nothing: it replaces the one of its key, or without a key the one that had all the same
    values. Which rows were seen is remembered in memory, so that a look that finds nothing new costs no commit.

    What is newer is taken in the order of the column, so that a look may end when it has found enough and the next one
    goes on behind it; where the database orders values otherwise than we do, a look takes all there is.

    An offset has the `last` value, the number of `looks` that found something and were complete, of one that was not
    which `part` of the next it is, and without a load also the `floor`: the last value at the start, and what isn't
    above it is never taken in.
    """

    capabilities = SourceCapabilities(emits=Emits.UPSERTS, replay=Replay.UNTIL_COMMIT, incremental=True, follows=True)

    def __init__(self, source: DatabaseSource) -> None:
        self._source = source
        self._bulk = Bulk(source)
        self._column = str(source.settings.text("incremental.column"))
        self._query = source.settings.text("poll.query")
        self._look: _Look | None = None
        self._remembered: dict[tuple[int, int], set[str]] = {}
        """Digests of the rows within the overlap, by the looks and the part that their position is after."""

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        if start is None:
            return self._first()
        schema = self._schema()
        seen = self._remembered.get(_mark(start), set())
        found = self._find(start, schema, seen, most=max_rows if self._may_end_early(schema) else None)
        if not found.fresh and not found.unseen and found.is_complete and "part" not in start:
            return start
        end = {name: value for name, value in start.items() if name != "part"}
        end |= {"last": self._newest(found.rows, start, schema)}
        end |= {"looks": start["looks"] + 1} if found.is_complete else {"part": start.get("part", 0) + 1}
        self._remembered = {_mark(start): seen, _mark(end): found.digests}
        self._look = _Look(start, end, found.rows.take(pa.array(found.fresh, pa.int64())), found.origins, found.unseen)
        return end

    def _find(self, start: Any, schema: Schema, seen: set[str], *, most: int | None) -> _Found:
        """The rows after a position, with those of the overlap; not many more than `most` of those not seen yet."""
        statement = self._newer(start, schema, in_order=most is not None)
        size = self._fetch_size if most is None else min(self._fetch_size, most)
        bad: list[BadRecord] = []
        batches: list[pa.RecordBatch] = []
        counts: dict[str, int] = {}
        origins: list[str] = []
        fresh: list[int] = []
        is_complete = True
        session = self._source.driver.open()
        try:
            for batch in session.rows(statement, schema, bad.append, size=size):
                rows = self._above_floor(pa.Table.from_batches([batch]), start, schema)
                digests = _digests(rows, counts)
                fresh += [len(origins) + index for index, digest in enumerate(digests) if digest not in seen]
                origins += digests
                batches += rows.to_batches()
                if most is not None and len(fresh) >= most:
                    is_complete = False
                    break
        finally:
            session.close()
        refused = {_digest_of(record.raw): record for record in bad}
        return _Found(
            _table(iter(batches), schema),
            fresh,
            [origins[index] for index in fresh],
            tuple(record for digest, record in refused.items() if digest not in seen),
            {*origins, *refused},
            is_complete,
        )

    def _may_end_early(self, schema: Schema) -> bool:
        """Whether what comes in the column's order comes in ours."""
        type_ = schema.column(self._column).type
        known = pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
        known = known or pa.types.is_timestamp(type_) or pa.types.is_date(type_)
        return known and self._source.driver.orders(type_)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        if start is not None:
            look = self._looked(start, end)
            fresh = [] if look is None else look.origins
            return [Partition({"start": start, "end": end, "fresh": fresh})]
        if self._source.settings.text("initial.load") == "none":
            return ()
        if end["last"] is None:
            return self._bulk.partitions()
        # Nothing bounds the load above: what is newer than the position comes again, and changes nothing.
        if self._bulk.limit is not None:
            return self._bulk.partitions(whole=True)
        column, driver = self._schema().column(self._column), self._source.driver
        marker = driver.marker(len(driver.relation(self._source.selection).values))
        reach = _json(self._back(_value(end["last"], column.type)))
        older = self._bulk.partitions(conditions=[driver.below(column.name, marker)], values=[reach])
        newer = driver.at_least(column.name, marker)
        near = self._bulk.partitions(conditions=[newer], values=[reach], whole=True, begun=True)
        return [*near, *older]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        payload = partition.payload
        if "bulk" in payload:
            yield from self._read_bulk(partition, schema, on_bad)
            return
        look = self._looked(payload["start"], payload["end"])
        if look is None:
            self._remembered = {}
            self.latest(payload["start"], max_rows=None)
            look = present(self._look)
            fresh = set(payload["fresh"])
            chosen = [index for index, origin in enumerate(look.origins) if origin in fresh]
            rows = look.rows.take(pa.array(chosen, pa.int64()))
            look = replace(look, rows=rows, origins=[look.origins[index] for index in chosen])
        for record in look.bad:
            on_bad(record)
        yield from _upserted(look.rows, schema, look.origins)

    def reached(self, position: Offset, target: Offset) -> bool:
        """A look that comes later than another has found all that the other has."""
        return bool(position["looks"] >= target["looks"])

    def commit(self, end: Offset) -> None:
        self._bulk.close()

    def close(self) -> None:
        self._bulk.close()

    def _looked(self, start: Offset, end: Offset) -> _Look | None:
        """What a look gave, where it was taken here; workers look again."""
        look = self._look
        return look if look is not None and (look.start, look.end) == (start, end) else None

    @property
    def _fetch_size(self) -> int:
        return self._source.settings.integer("fetch.size") or 1

    def _schema(self) -> Schema:
        schema = present(self._source.schema())
        schema.column(self._column)
        return schema

    def _first(self) -> Offset:
        """Before the first look: the newest value there is. The rows near it are in the load that follows."""
        schema = self._schema()
        only = schema.select([self._column])
        newest = self._source.driver.newest(self._source.selection, only.names[0])
        session = self._source.driver.open()
        try:
            found = _table(session.rows(newest, only, _ignore, size=1), only)
            last = found.column(0)[0].as_py() if found.num_rows else None
            first = {"last": None if last is None else _json(last), "looks": 0}
            if self._source.settings.text("initial.load") == "none" and last is not None:
                first["floor"] = first["last"]
            near = self._newer(first, schema)
            rows = _table(session.rows(near, schema, _ignore, size=self._fetch_size), schema)
        finally:
            session.close()
        self._remembered = {_mark(first): set(_digests(rows, {}))}
        return first

    def _read_bulk(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        """Rows near the end are known by their values, as looks will find them again; those before needn't be."""
        bulk = partition.payload["bulk"]
        bound = Partition({"bulk": {**bulk, "values": [self._bound(value, schema) for value in bulk["values"]]}})
        batches = self._bulk.read(bound, schema, on_bad)
        if bulk["whole"]:
            rows = _table(batches, schema)
            yield from _upserted(rows, schema, _digests(rows, {}))
            return
        place = uuid.uuid4().hex
        for number, batch in enumerate(batches):
            rows = pa.Table.from_batches([batch])
            origins = [] if schema.key else [f"{place}-{number}-{index}" for index in range(batch.num_rows)]
            yield from _upserted(rows, schema, origins)

    def _newer(self, start: Any, schema: Schema, *, in_order: bool = False) -> Statement:
        """The rows after a position, with those of the overlap."""
        driver, column = self._source.driver, schema.column(self._column)
        columns = self._source.columns_of(schema)
        order = driver.quote(column.name) if in_order else None
        everything = replace(self._source.selection.unlimited, order_by=order)
        if start["last"] is None:
            return driver.select(everything, columns)
        reach = self._back(_value(start["last"], column.type))
        if "floor" in start:
            reach = max(reach, _value(start["floor"], column.type))
        since = driver.bindable(reach, column.type)
        if self._query is not None:
            asked = self._source.selection.for_query(self._query, {"last": since})
            return driver.select(replace(asked, order_by=order), columns)
        marker = driver.marker(len(driver.relation(self._source.selection).values))
        condition = driver.at_least(column.name, marker)
        return driver.select(everything, columns, conditions=[condition], values=[since])

    def _above_floor(self, rows: pa.Table, start: Any, schema: Schema) -> pa.Table:
        """Compared here: a database may keep its times as texts, and a query may reach below."""
        if "floor" not in start:
            return rows
        column = schema.column(self._column)
        floor = pa.scalar(_value(start["floor"], column.type), column.type)
        return rows.filter(pc.fill_null(pc.greater(rows[column.name], floor), fill_value=True))

    def _newest(self, rows: pa.Table, start: Any, schema: Schema) -> JsonValue:
        """The largest value so far."""
        column = schema.column(self._column)
        newest = pc.max(rows[column.name]).as_py()
        if newest is None:
            return start["last"]
        return _json(newest if start["last"] is None else max(newest, _value(start["last"], column.type)))

    def _back(self, value: Any) -> Any:
        """A value less the overlap; other values than numbers and times have no distance."""
        written = self._source.settings.text("incremental.overlap")
        if isinstance(value, datetime):
            return value - (_DEFAULT_OVERLAP if written is None else parse_duration(written))
        if isinstance(value, date):
            return value - (timedelta(days=1) if written is None else parse_duration(written))
        if isinstance(value, int | float | Decimal):
            kind: Any = type(value)
            try:
                return value - kind(_DEFAULT_OVERLAP_OF_NUMBERS if written is None else written)
            except (ValueError, InvalidOperation) as error:
                expected = f'a number, as column "{self._column}" is of numbers'
                raise OptionError.value("incremental.overlap", str(written), expected=expected) from error
        return value

    def _bound(self, value: JsonValue, schema: Schema) -> Any:
        type_ = schema.column(self._column).type
        return self._source.driver.bindable(_value(value, type_), type_)


def _upserted(rows: pa.Table, schema: Schema, origins: list[str]) -> Iterator[pa.RecordBatch]:
    """Rows that are there, known by their key or else by their origins."""
    rows = signed(rows, 1)
    if not schema.key:
        rows = rows.append_column(ORIGIN, pa.array(origins, pa.string()))
    yield from rows.to_batches()


def _ignore(_: BadRecord) -> None:
    """It will come again, and be set aside then."""


def _table(batches: Iterator[pa.RecordBatch], schema: Schema) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema=schema.arrow)


def _digest(batches: list[pa.RecordBatch]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for batch in batches:
        digest.update(batch.serialize())
    return digest.hexdigest()


def _mark(offset: Any) -> tuple[int, int]:
    return offset["looks"], offset.get("part", 0)


def _digests(rows: pa.Table, counts: dict[str, int]) -> list[str]:
    """One for each row; equal rows are told apart by how many there were before, which `counts` keeps."""
    found: list[str] = []
    for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        digest = _digest_of(repr(row).encode())
        count = counts[digest] = counts.get(digest, 0) + 1
        found.append(digest if count == 1 else f"{digest}-{count}")
    return found


def _digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _json(value: Any) -> JsonValue:
    """A value of a column as it stands in an offset."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _value(form: JsonValue, type_: pa.DataType) -> Any:
    """The value that `_json` was given."""
    if pa.types.is_timestamp(type_):
        return datetime.fromisoformat(form)
    if pa.types.is_date(type_):
        return date.fromisoformat(form)
    return Decimal(form) if pa.types.is_decimal(type_) else form
