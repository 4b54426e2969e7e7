"""pymongo for MongoDB as a source: reads of one moment, filters, and what the driver's errors mean.

A statement is a `find` command in extended JSON, which holds every value exactly, those that are bound included.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa

from velostream.errors import Category, OptionError, SourceError, StoreError
from velostream.model.mongodb import MongodbAddress, category_of
from velostream.model.schema import Schema
from velostream.sources.base import OnBad
from velostream.sources.common import names_of
from velostream.sources.database import DatabaseDriver, DatabaseSession, Selection, Statement
from velostream.sources.mongodb_values import ID, Document, bson_of, rows_of, schema_of

_SAMPLE = 1_000
_DOCUMENTS_AT_ONCE = 5_000
"""In memory, whatever `fetch.size` says: documents may be large."""
_DOCUMENTS_WORTH_A_PART = 100_000
_SAMPLES_PER_PART = 20
SNAPSHOT_GONE = frozenset({239, 246})
"""Codes of a server that no longer shows a moment, or doesn't show this collection as of moments."""
_FILTER_EXPECTED = (
    """a filter in extended JSON, such as {"status": "open", "at": {"$gt": {"$date": "2024-05-01T00:00:00Z"}}}"""
)


@dataclass(frozen=True)
class MongodbDriver(DatabaseDriver):
    """One database, read as one user."""

    kind: ClassVar[str] = "mongodb"

    address: MongodbAddress
    timeout: timedelta = timedelta(seconds=5)
    of_one_moment: bool = True
    """Whether what is read is of one moment, where the server can show one: replica sets can, for some minutes."""
    fields: tuple[str, ...] = ()
    """What is read of documents; everything where there are none."""

    def open(self, *, snapshot: str | None = None, shared: bool = False) -> MongodbSession:
        with self.failures():
            client = self.client()
            try:
                hello = client.admin.command("hello")
            except BaseException:
                client.close()
                raise
        # Single servers have no times at which they could be read.
        is_set = "setName" in hello or hello.get("msg") == "isdbgrid"
        moment = snapshot or (text_of(hello["operationTime"]) if is_set else None)
        return MongodbSession(self, client, moment)

    def client(self) -> Any:
        """A client of the driver, not connected yet. Raises `StoreError.missing_driver` and `SourceError`."""
        try:
            return self.address.client(self.timeout)
        except ImportError as error:
            raise StoreError.missing_driver(self.kind, module="pymongo", extra="mongodb") from error
        except (ValueError, TypeError) as error:
            raise self._refused(error, Category.CONFIGURATION) from error

    @contextmanager
    def failures(self, *, name: str | None = None) -> Iterator[None]:
        """Within, errors of pymongo become errors of this source; `name` is what was being read."""
        try:
            from pymongo.errors import PyMongoError
        except ImportError as error:
            raise StoreError.missing_driver(self.kind, module="pymongo", extra="mongodb") from error
        try:
            yield
        except PyMongoError as error:
            raise self._failure(error, name=name) from error

    def missing(self, name: str, *, reason: str = "there is no such collection") -> SourceError:
        return SourceError.missing_table(self.kind, name, where=str(self.address), reason=reason, what="collection")

    def quote(self, name: str) -> str:
        return name

    def marker(self, position: int) -> str:
        return str(position)

    def bindable(self, value: Any, type_: pa.DataType) -> Any:
        return bson_of(value)

    def relation(self, selection: Selection) -> Statement:
        return Statement(str(selection.table))

    def at_least(self, column: str, marker: str) -> str:
        return json.dumps({"at_least": [column, int(marker)]})

    def below(self, column: str, marker: str) -> str:
        return json.dumps({"below": [column, int(marker)]})

    def newest(self, selection: Selection, column: str) -> Statement:
        return _command(
            {
                "find": selection.table,
                "filter": filter_of(selection),
                "projection": {ID: 0, column: 1},
                "sort": {column: -1},
                "limit": 1,
            }
        )

    def select(
        self,
        selection: Selection,
        columns: Sequence[str],
        *,
        conditions: Sequence[str] = (),
        values: Sequence[Any] = (),
    ) -> Statement:
        command: dict[str, Any] = {"find": selection.table, "filter": filter_of(selection, conditions, values)}
        fields = columns or self.fields
        if fields and not any("." in name or name.startswith("$") for name in fields):
            command["projection"] = {ID: int(ID in fields)} | {name: 1 for name in fields if name != ID}
        if selection.order_by:
            command["sort"] = order_of(selection.order_by)
        if selection.limit is not None:
            command["limit"] = selection.limit
        if selection.limit == 0:
            # To the server that is no limit.
            command["filter"] = {ID: {"$in": []}}
        return _command(command)

    def _failure(self, error: BaseException, *, name: str | None) -> SourceError:
        category = category_of(error)
        if category is Category.MISSING and name is not None:
            return self.missing(name, reason=_reason(error))
        if getattr(error, "code", None) in SNAPSHOT_GONE:
            return SourceError(
                f'mongodb at "{self.address}" no longer shows the moment that is being read',
                detail=self.address.without_password(_reason(error)),
                hint="WITH ('transaction.isolation' = 'majority') reads documents as they come; "
                "a larger minSnapshotHistoryWindowInSeconds of the server keeps moments for longer",
                code="source-refused",
                category=Category.STATE,
            )
        if category is Category.NETWORK:
            reason = self.address.without_password(_reason(error))
            return SourceError.unreachable(self.kind, where=str(self.address), reason=reason, category=category)
        return self._refused(error, category)

    def _refused(self, error: BaseException, category: Category) -> SourceError:
        reason = self.address.without_password(_reason(error))
        return SourceError.refused(self.kind, where=str(self.address), reason=reason, category=category)


class MongodbSession(DatabaseSession):
    """A client that reads as of one moment, where the server can."""

    def __init__(self, driver: MongodbDriver, client: Any, moment: str | None) -> None:
        self._driver = driver
        self._client = client
        self._database = client[driver.address.database]
        self.snapshot = moment

    def discover(self, selection: Selection) -> Schema | None:
        """Judged by the first documents in the order of `_id`, so that later ones change nothing."""
        self._check(selection.shown)
        sample = {"find": selection.table, "filter": filter_of(selection), "sort": {ID: 1}, "limit": _SAMPLE}
        with self._driver.failures(name=selection.shown):
            return schema_of(list(self._ask(sample)), self._driver.fields)

    def rows(self, statement: Statement, schema: Schema, on_bad: OnBad, *, size: int) -> Iterator[pa.RecordBatch]:
        from bson import json_util

        command: dict[str, Any] = json_util.loads(statement.sql)
        size = min(size, _DOCUMENTS_AT_ONCE)
        with self._driver.failures(name=command["find"]):
            concern = read_concern(self.snapshot, of_one_moment=self._driver.of_one_moment)
            cursor = self._ask({**command, "batchSize": size, "readConcern": concern})
            cursor.batch_size(size)
        try:
            found = False
            while True:
                with self._driver.failures(name=command["find"]):
                    documents: list[Document] = cursor.to_list(size)
                if not documents:
                    break
                found = True
                yield from rows_of(documents, schema, on_bad).combine_chunks().to_batches()
            if not found:
                # To the server a collection that isn't there is an empty one.
                self._check(command["find"])
        finally:
            with self._driver.failures():
                cursor.close()

    def parts(self, selection: Selection, count: int) -> Sequence[str]:
        """Ranges of `_id`, of about as many documents each."""
        from bson import json_util

        collection = self._database[selection.table]
        with self._driver.failures(name=selection.shown):
            count = min(count, collection.estimated_document_count() // _DOCUMENTS_WORTH_A_PART)
            if count < 2:
                return ()
            ends = [collection.find_one({}, {ID: 1}, sort={ID: direction}) for direction in (1, -1)]
            if not all(end and ID in end for end in ends) or len({_bracket(end[ID]) for end in ends}) > 1:
                # Comparisons find only values of a kind, and here are several.
                return ()
            sampled = [{"$sample": {"size": count * _SAMPLES_PER_PART}}, {"$project": {ID: 1}}, {"$sort": {ID: 1}}]
            ids = [document[ID] for document in collection.aggregate(sampled)]
        if len(ids) < count:
            return ()
        bounds = [ids[len(ids) * number // count] for number in range(1, count)]
        ranges = [
            ({"$gte": low} if low is not None else {}) | ({"$lt": high} if high is not None else {})
            for low, high in pairwise([None, *bounds, None])
        ]
        return [json_util.dumps({"filter": {ID: one}}, json_options=json_util.CANONICAL_JSON_OPTIONS) for one in ranges]

    def close(self) -> None:
        self._client.close()

    def _ask(self, command: Mapping[str, Any]) -> Any:
        # Commands are decoded by the driver's defaults unless told.
        return self._database.cursor_command(command, codec_options=self._database.codec_options)

    def _check(self, name: str) -> None:
        with self._driver.failures(name=name):
            if not self._database.list_collection_names(filter={"name": name}, authorizedCollections=True):
                raise self._driver.missing(name)


def filter_of(selection: Selection, conditions: Sequence[str] = (), values: Sequence[Any] = ()) -> Mapping[str, Any]:
    """The documents of a selection for which further conditions hold."""
    from bson import json_util

    parts: list[Any] = []
    if selection.where:
        try:
            parts.append(json_util.loads(selection.where))
        except (ValueError, TypeError) as error:
            raise OptionError.value("where", selection.where, expected=_FILTER_EXPECTED) from error
        if not isinstance(parts[0], dict):
            raise OptionError.value("where", selection.where, expected=_FILTER_EXPECTED)
    for text in conditions:
        ((kind, argument),) = json_util.loads(text).items()
        match kind:
            case "filter":
                parts.append(argument)
            case "at_least":
                parts.append(_at_least(argument[0], values[argument[1]]))
            case _:
                parts.append({"$nor": [_at_least(argument[0], values[argument[1]])]})
    return {"$and": parts} if parts else {}


def order_of(text: str) -> dict[str, int]:
    """`at DESC, name` as the server takes it."""
    order: dict[str, int] = {}
    for part in names_of(text):
        name, _, direction = part.partition(" ")
        if direction.strip().upper() not in ("", "ASC", "DESC"):
            raise OptionError.value("order.by", text, expected="fields with ASC or DESC, such as at DESC, name")
        order[name] = -1 if direction.strip().upper() == "DESC" else 1
    return order


def read_concern(moment: str | None, *, of_one_moment: bool) -> Mapping[str, Any]:
    """What makes a read show the state of a moment, or one that is no older; of servers that know no moments, any."""
    if moment is None:
        return {"level": "majority"}
    if of_one_moment:
        return {"level": "snapshot", "atClusterTime": moment_of(moment)}
    return {"level": "majority", "afterClusterTime": moment_of(moment)}


def text_of(moment: Any) -> str:
    """A time of the server's, as it stands in an offset."""
    return f"{moment.time},{moment.inc}"


def moment_of(text: str) -> Any:
    """The time that `text_of` was given."""
    from bson.timestamp import Timestamp

    seconds, _, number = text.partition(",")
    return Timestamp(int(seconds), int(number))


def _at_least(field: str, value: Any) -> Mapping[str, Any]:
    """An ObjectId came as its text, which the server doesn't compare with ObjectIds."""
    from bson.objectid import ObjectId

    forms = [value, ObjectId(value)] if isinstance(value, str) and ObjectId.is_valid(value) else [value]
    return {"$or": [{field: {"$gte": form}} for form in forms]}


def _command(command: Mapping[str, Any]) -> Statement:
    from bson import json_util

    return Statement(json_util.dumps(command, json_options=json_util.CANONICAL_JSON_OPTIONS))


def _bracket(value: Any) -> type:
    """Values of one kind to the server's comparisons."""
    from bson.decimal128 import Decimal128

    return float if isinstance(value, int | float | Decimal128) and not isinstance(value, bool) else type(value)


def _reason(error: BaseException) -> str:
    """What the driver says, without what it says about itself."""
    text = str(error).strip() or type(error).__name__
    return text.partition(", full error:")[0].partition(", Timeout:")[0]
