"""Reading a collection: inside a transaction, or as of one instant without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from velostream.model.change import Scope
from velostream.tables.content_hash import content_hashes
from velostream.tables.difference import Present
from velostream.tables.memory.compare import hashable_rows
from velostream.tables.mongodb.client import Connection
from velostream.tables.mongodb.layout import HASH, Document, Layout
from velostream.tables.mongodb.values import BsonValue

_FIRST_BATCH = 100_000
_LARGEST_LIST_BYTES = 8_000_000
"""Of the 16 MB a command may have."""
_BYTES_OF_A_VALUE = 48


@dataclass(frozen=True)
class Reader:
    """One collection as of one state. A `StoredRows` for the commit whose transaction `session` is."""

    connection: Connection
    collection: str
    layout: Layout
    session: Any = None
    at: Any = None
    """The instant to read, for a reader without a transaction."""

    def find(
        self, filter_: Document, columns: Sequence[str] | None = None, *, skip: int = 0, limit: int = 0
    ) -> list[Document]:
        """Documents in the order of their `_id`; all fields for no columns."""
        return self._run(self._finding(filter_, columns, skip=skip, limit=limit))

    def pages(self, columns: Sequence[str], *, size: int, skip: int) -> Iterator[pa.Table]:
        """All rows from the `skip`-th on, over one cursor of the server's."""
        command = self._as_of({**self._finding({}, columns, skip=skip), "batchSize": size})
        cursor = self.connection.read(lambda: self.connection.database.cursor_command(command))
        try:
            while True:
                with self.connection.told():
                    documents = list(islice(cursor, size))
                if not documents:
                    return
                yield self.layout.rows(documents, columns)
        finally:
            cursor.close()

    def count(self, filter_: Document) -> int:
        counted = self.aggregate([{"$match": filter_}, {"$count": "rows"}])
        return int(counted[0]["rows"]) if counted else 0

    def aggregate(self, stages: Sequence[Document]) -> list[Document]:
        """What an aggregation pipeline gives."""
        return self._run({"aggregate": self.collection, "pipeline": list(stages), "cursor": {}, "allowDiskUse": True})

    def rows(
        self, filter_: Document, columns: Sequence[str] | None = None, *, skip: int = 0, limit: int = 0
    ) -> pa.Table:
        return self.layout.rows(self.find(filter_, columns, skip=skip, limit=limit), columns)

    def rows_having(self, on: Sequence[str], values: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Rows that have one of the values, which are distinct, in the columns `on`."""
        wanted = [*columns, *(name for name in on if name not in columns)]
        documents = self._having(on, values, wanted)
        rows = self.layout.rows(documents, wanted)
        kept = _exactly(rows, on, values)
        return (rows if kept is None else rows.take(pa.array(kept, type=pa.int64()))).select(list(columns))

    def of_keys(self, keys: pa.Table) -> Present:
        names = self.layout.schema.key
        documents = self._having(names, keys, None)
        rows = self.layout.rows(documents)
        kept = _exactly(rows, names, keys)
        if kept is not None:
            rows, documents = rows.take(pa.array(kept, type=pa.int64())), [documents[place] for place in kept]
        return Present(rows, [document["_id"] for document in documents])

    def equal_to(self, rows: pa.Table) -> Present:
        layout = self.layout
        if layout.own:
            hashes = content_hashes(rows).tolist()
            return self._present([d for part in lists_for_commands(hashes) for d in self.find({HASH: {"$in": part}})])
        conditions: list[Document] = [
            {layout.paths[name]: {"$in": _distinct(layout.values[name].encode(rows.column(name)))}}
            for name in layout.schema.names
            if layout.values[name].comparable
        ]
        return self._present(self.find({"$and": conditions} if conditions else {}))

    def all(self, scope: Scope | None) -> Present:
        if scope is None:
            return self._present(self.find({}))
        column = self.layout.schema.column(scope.column)
        values = self.layout.values[column.name]
        if not values.comparable:
            return self._present(self.find({})).within(scope)
        value = values.encode(pa.array([scope.value], column.type))[0]
        return self._present(self.find({self.layout.paths[column.name]: {"$eq": value}}))

    def _present(self, documents: Sequence[Document]) -> Present:
        return Present(self.layout.rows(documents), [document["_id"] for document in documents])

    def _having(self, on: Sequence[str], values: pa.Table, columns: Sequence[str] | None) -> list[Document]:
        """At least the documents that have the values."""
        layout = self.layout
        if layout.key_in_id and tuple(on) == layout.schema.key:
            lists = {"_id": layout.ids(values)}
        else:
            lists = {layout.paths[name]: layout.values[name].encode(values.column(name)) for name in on}
        if len(lists) > 1:
            return self.find({path: {"$in": _distinct(listed)} for path, listed in lists.items()}, columns)
        ((path, listed),) = lists.items()
        return self._find_in(path, listed, columns)

    def _find_in(self, path: str, listed: Sequence[BsonValue], columns: Sequence[str] | None) -> list[Document]:
        parts = lists_for_commands(listed)
        return [document for part in parts for document in self.find({path: {"$in": part}}, columns)]

    def _finding(self, filter_: Document, columns: Sequence[str] | None, *, skip: int = 0, limit: int = 0) -> Document:
        command: Document = {
            "find": self.collection,
            "filter": filter_,
            "sort": {"_id": 1},
            "batchSize": _FIRST_BATCH,
            "allowDiskUse": True,
        }
        if columns is not None:
            command["projection"] = self.layout.projection(columns)
        if skip:
            command["skip"] = skip
        if limit:
            command["limit"] = limit
        return command

    def _as_of(self, command: Document) -> Document:
        if self.at is not None:
            command["readConcern"] = {"level": "snapshot", "atClusterTime": self.at}
        if not self.layout.own:
            # Whatever collation the user's collection has, SQL compares bytes.
            command["collation"] = {"locale": "simple"}
        return command

    def _run(self, command: Document) -> list[Document]:
        command = self._as_of(command)

        def ask() -> list[Document]:
            return list(self.connection.database.cursor_command(command, session=self.session).to_list())

        # Inside a transaction the whole of it is tried again, not a single read.
        return ask() if self.session is not None else self.connection.read(ask)


def _exactly(rows: pa.Table, on: Sequence[str], values: pa.Table) -> list[int] | None:
    """Which rows have one of the values; None for all of them, which a single column's list guarantees."""
    if len(on) == 1:
        return None
    wanted = set(hashable_rows(values.select(list(on))))
    return [place for place, value in enumerate(hashable_rows(rows.select(list(on)))) if value in wanted]


def lists_for_commands(values: Sequence[BsonValue]) -> Iterator[list[BsonValue]]:
    """Values of one type in lists that fit into a command each."""
    if not any(isinstance(value, str | bytes | dict) for value in values):
        step = _LARGEST_LIST_BYTES // _BYTES_OF_A_VALUE
        yield from (list(values[start : start + step]) for start in range(0, len(values), step))
        return
    part: list[BsonValue] = []
    size = 0
    for value in values:
        weight = _BYTES_OF_A_VALUE + _length(value)
        if part and size + weight > _LARGEST_LIST_BYTES:
            yield part
            part, size = [], 0
        part.append(value)
        size += weight
    if part:
        yield part


def _length(value: BsonValue) -> int:
    """At most so many bytes beyond those of a number."""
    if isinstance(value, dict):
        return sum(len(name) + _BYTES_OF_A_VALUE + _length(item) for name, item in value.items())
    return len(value) * 4 if isinstance(value, str | bytes) else 0


def _distinct(values: Sequence[BsonValue]) -> list[BsonValue]:
    """Every value once; a Decimal128 can't be hashed, its bytes can."""
    return list({(type(value), getattr(value, "bid", value)): value for value in values}.values())
