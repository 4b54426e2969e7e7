"""MongoDB followed by its change stream: what is there at a moment, then every change after it.

The moment's time is noted first, the collection is read as of it, and the stream is followed from right after it: every
change is taken once. Where documents are read as they come, what changed meanwhile comes again and changes nothing.
Each piece of the stream brings the documents it is about to what they were at its end, whatever was done to them since.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.errors import Category, OptionError, SourceError
from velostream.model.schema import Schema
from velostream.sources.base import Lag, Offset, OnBad, Partition
from velostream.sources.bulk import Bulk, with_sign
from velostream.sources.capture import LogCapture, place_written, seconds_since
from velostream.sources.mongodb_driver import SNAPSHOT_GONE, moment_of, read_concern, text_of
from velostream.sources.mongodb_values import ID, Document, changes_of

if TYPE_CHECKING:
    from velostream.sources.mongodb import MongodbSource

_CHANGES_AT_ONCE = 100_000
_QUIET_SECONDS = 30.0
"""How long nothing may happen to the collection before the position goes on without it; the oplog forgets."""
_LOOKED_UP_AT_ONCE = 1_000
_WAIT_MILLISECONDS = 1
"""How long the server waits for an event that isn't there yet."""
_ENDS = frozenset({"drop", "rename", "dropDatabase", "invalidate"})
_LOST = frozenset({136, 260, 280, 286})
"""Codes of a server that no longer has what comes after a position."""


@dataclass
class _Look:
    """What a look at the stream gave. Changes of one time of the server's, a transaction's among them, are together."""

    start: Offset
    changes: list[tuple[Document, int]] = field(default_factory=list)
    end: Offset = None
    """After the last of the changes; the start where there are none."""
    beyond: Offset = None
    """After all that the server had when it was asked, where the stream was read to its end."""
    asked_at: str = ""
    """The server's time when it was asked."""


class MongodbCapture(LogCapture):
    """A collection by its change stream.

    An offset has the number of the `load` that its rows came by, the `time` of the server's up to which everything is
    taken in, and from the first change on the stream's resume `token`.
    """

    def __init__(self, source: MongodbSource) -> None:
        super().__init__(source)
        self._source = source
        self._bulk = Bulk(source)
        self._client: Any = None
        self._checked = False
        self._wanted = (0, 0)
        """The time that somebody waits for."""
        self._piece: _Look | None = None
        self._moved_at = time.monotonic()

    def latest(self, start: Offset, *, max_rows: int | None) -> Offset:
        if start is None:
            return self._begin(load=1)
        try:
            look = self._look(start, changes=1 if max_rows is None else min(max_rows, _CHANGES_AT_ONCE))
        except SourceError as error:
            if error.code != "log-lost" or self._source.settings.text("cdc.on.gap") != "snapshot":
                raise
            return self._begin(load=start["load"] + 1)
        at = _time(start)
        if look.end != start:
            self._moved_at = time.monotonic()
            if max_rows is None:
                # It takes a look at everything to know where the last of it ends; the present time will do as well.
                self._wanted = max(self._wanted, _parsed(look.asked_at), _time(look.end))
                return {"load": start["load"], "time": ",".join(map(str, self._wanted))}
            self._piece = look
            return look.end
        late = time.monotonic() - self._moved_at > _QUIET_SECONDS
        if max_rows is not None and look.beyond is not None and (self._wanted > at or late):
            self._moved_at = time.monotonic()
            self._piece = look
            return look.beyond
        return start

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        if start is not None and start["load"] == end["load"]:
            return [Partition({"start": start, "end": end})]
        if start is None and self._source.settings.text("initial.load") == "none":
            return ()
        self._bulk.begin(snapshot=end["time"])
        return self._bulk.partitions(replaces=start is not None, begun=True)

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        payload = partition.payload
        if "bulk" in payload:
            for batch in self._bulk.read(partition, schema, on_bad):
                yield batch if partition.replaces else with_sign(batch)
            return
        start, end = payload["start"], payload["end"]
        look = self._piece
        if look is None or look.start != start or end not in (look.end, look.beyond):
            look = self._look(start, changes=None, until=_time(end))
        if look.changes:
            yield from changes_of(look.changes, schema, on_bad).combine_chunks().to_batches()

    def reached(self, position: Offset, target: Offset) -> bool:
        return (position["load"], _time(position)) >= (target["load"], _time(target))

    def gauges(self, position: Offset) -> Mapping[str, int]:
        """The server's oplog forgets by its own rules; what counts is how far from its oldest entry we are."""
        from pymongo.errors import OperationFailure

        with self._source.driver.failures(name=self._name):
            if self._client is None:
                self._client = self._source.driver.client()
            try:
                oldest = self._client["local"]["oplog.rs"].find_one(sort=[("$natural", 1)], projection=["ts"])
            except OperationFailure:
                # Not everybody may see it, and routers of a sharded cluster have none.
                return {}
        return {} if oldest is None else {"oplog seconds in reserve": _time(position)[0] - oldest["ts"].time}

    def lag(self, position: Offset) -> Lag:
        """By the server's time up to which everything was taken."""
        return Lag(seconds=seconds_since(_time(position)[0]))

    def commit(self, end: Offset) -> None:
        self._bulk.close()

    def close(self) -> None:
        self._bulk.close()
        self._piece = None
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def check_again(self) -> None:
        self._checked = False

    def check(self, schema: Schema) -> None:
        """See that changes can be told and that they tell which rows they are of. Raises `SourceError`."""
        if self._checked:
            return
        if schema.key != (ID,):
            raise SourceError(
                f'the changes of collection "{self._name}" tell documents by "{ID}"',
                detail=f"the key here is {', '.join(schema.key) or 'none'}",
                hint=f'leave the key to the collection, and have "{ID}" among the columns',
                code="invalid-option",
                category=Category.CONFIGURATION,
            )
        session = self._source.driver.open()
        try:
            if session.snapshot is None:
                raise SourceError(
                    f'mongodb at "{self._source.driver.address}" has no changes to follow',
                    detail="it is a single server without a replica set",
                    hint="start mongod with --replSet rs0 and run rs.initiate(): one member is enough",
                    code="invalid-option",
                    category=Category.CONFIGURATION,
                )
        finally:
            session.close()
        self._checked = True

    @property
    def _name(self) -> str:
        return self._source.selection.shown

    def _begin(self, *, load: int) -> Offset:
        """Note the moment of a load, or of the first change where nothing is loaded."""
        session = self._source.driver.open()
        try:
            now = str(session.snapshot)
        finally:
            session.close()
        settings = self._source.settings
        if load == 1 and settings.text("initial.load") == "none":
            now = _first_time(place_written(settings) or "latest", now)
        return {"load": load, "time": now}

    def _look(self, start: Offset, *, changes: int | None, until: tuple[int, int] | None = None) -> _Look:
        """The changes after a position: about so many, or all those up to a time."""
        look = _Look(start, end=start)
        with self._stream(start, look) as stream:
            events = self._events(stream, look, most=changes, until=until)
            look.changes = self._changes(events, at=look.end["time"])
        return look

    def _events(
        self, stream: Any, look: _Look, *, most: int | None, until: tuple[int, int] | None
    ) -> Sequence[Document]:
        """The last event of each document, and in the look how far they reach."""
        newest: dict[bytes, Document] = {}
        count = 0
        last: Any = None
        while (event := stream.try_next()) is not None:
            at = event["clusterTime"]
            enough = most is not None and count >= most and at != last
            if enough or (until is not None and (at.time, at.inc) > until):
                return list(newest.values())
            if event["operationType"] in _ENDS:
                if count:
                    return list(newest.values())
                raise self._lost("the collection was dropped or renamed")
            identity = _identity(event["documentKey"])
            newest.pop(identity, None)
            newest[identity] = event
            look.end = _after(look.start, at, event["_id"])
            last, count = at, count + 1
        reached = max(moment_of(look.asked_at), last or moment_of(look.start["time"]))
        look.beyond = _after(look.start, reached, stream.resume_token)
        return list(newest.values())

    def _changes(self, events: Sequence[Document], *, at: str) -> list[tuple[Document, int]]:
        """What events do, up to a time; updates tell what they changed, and the documents are looked up as of it."""
        updated = self._documents(
            [event["documentKey"][ID] for event in events if event["operationType"] == "update"], at
        )
        changes: list[tuple[Document, int]] = []
        for event in events:
            if event["operationType"] == "delete":
                changes.append((event["documentKey"], -1))
                continue
            document = event.get("fullDocument") or updated.get(_identity(event["documentKey"]))
            if document is not None:
                # One that is gone, where the time can't be seen any more, will be deleted by an event to come.
                changes.append((document, 1))
        return changes

    def _documents(self, ids: Sequence[Any], at: str) -> dict[bytes, Document]:
        """Documents as of a time, so that what one transaction did to several is seen of all or of none."""
        from pymongo.errors import OperationFailure

        driver = self._source.driver
        database = self._client[driver.address.database]

        def found(chosen: Sequence[Any], *, of_one_moment: bool) -> list[Document]:
            concern = read_concern(at, of_one_moment=of_one_moment)
            command = {"find": self._source.selection.table, "filter": {ID: {"$in": chosen}}, "readConcern": concern}
            return list(database.cursor_command(command, codec_options=database.codec_options))

        documents: list[Document] = []
        of_one_moment = driver.of_one_moment
        for first in range(0, len(ids), _LOOKED_UP_AT_ONCE):
            chosen = ids[first : first + _LOOKED_UP_AT_ONCE]
            try:
                documents += found(chosen, of_one_moment=of_one_moment)
            except OperationFailure as error:
                if error.code not in SNAPSHOT_GONE:
                    raise
                # Too long ago: newer documents do as well, the changes that made them are still to come.
                of_one_moment = False
                documents += found(chosen, of_one_moment=False)
        return {_identity(document): document for document in documents}

    @contextmanager
    def _stream(self, start: Offset, look: _Look) -> Iterator[Any]:
        """The stream from a position on, with all that was acknowledged to anybody before now in it."""
        from pymongo.errors import OperationFailure

        driver = self._source.driver
        where: dict[str, Any] = {"resume_after": start["token"]} if "token" in start else {}
        if not where:
            after = moment_of(start["time"])
            where = {"start_at_operation_time": type(after)(after.time, after.inc + 1)}
        with driver.failures(name=self._name):
            if self._client is None:
                self._client = driver.client()
            try:
                with self._client.start_session(causal_consistency=True) as session:
                    self._client.admin.command("ping", session=session)
                    look.asked_at = text_of(session.operation_time)
                    collection = self._client[driver.address.database][self._source.selection.table]
                    with collection.watch(
                        max_await_time_ms=_WAIT_MILLISECONDS,
                        session=session,
                        **where,
                    ) as stream:
                        yield stream
            except OperationFailure as error:
                if error.code in _LOST:
                    raise self._lost("the server's oplog no longer has what comes after the position") from error
                raise

    def _lost(self, reason: str) -> SourceError:
        return SourceError.log_lost("mongodb", self._name, reason=reason)


def _identity(document: Document) -> bytes:
    """The `_id` of a document in a form that can be looked up."""
    import bson

    return bson.encode({ID: document[ID]})


def _after(start: Any, moment: Any, token: Any) -> Offset:
    return {"load": start["load"], "time": text_of(moment), "token": dict(token)}


def _time(offset: Any) -> tuple[int, int]:
    return _parsed(offset["time"])


def _parsed(text: str) -> tuple[int, int]:
    seconds, _, number = text.partition(",")
    return int(seconds), int(number)


def _first_time(written: str, now: str) -> str:
    if written.lower() == "latest":
        return now
    try:
        moment = datetime.fromisoformat(written)
    except ValueError as error:
        expected = "latest, or a time such as 2024-05-01T12:00:00Z"
        raise OptionError.value("cdc.start", written, expected=expected) from error
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return f"{int(moment.timestamp())},0"
