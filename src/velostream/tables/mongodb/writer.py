"""The difference a write makes, brought into a collection within a transaction."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from velostream.tables.difference import Differ, Difference
from velostream.tables.memory.keys import key_values
from velostream.tables.mongodb.layout import Document, Layout
from velostream.tables.mongodb.reader import lists_for_commands

_DUPLICATE_KEY = 11000
_NEW = object()
"""Stands for the handle of a row that isn't there yet."""


@dataclass(frozen=True)
class Writer:
    """Writes to one collection in one transaction."""

    collection: Any
    layout: Layout
    differ: Differ
    session: Any

    def write(self, difference: Difference) -> None:
        """Raises `TableError.duplicate_key` for a key that is there."""
        removed, added = difference.removed, difference.added
        if not removed.handles:
            self._insert(added)
            return
        key = self.layout.schema.key
        there: dict[Hashable, Any] = {}
        if key and added.num_rows:
            there = dict(zip(key_values(removed.rows, key), removed.handles, strict=True))
            handles = [there.pop(row_key, _NEW) for row_key in key_values(added, key)]
            changed = [place for place, handle in enumerate(handles) if handle is not _NEW]
            self._change(_at(added, changed), [handles[place] for place in changed])
            added = _at(added, [place for place, handle in enumerate(handles) if handle is _NEW])
            self._delete(list(there.values()))
        else:
            self._delete(removed.handles)
        self._insert(added)

    def _insert(self, rows: pa.Table) -> None:
        from pymongo.errors import BulkWriteError

        if not rows.num_rows:
            return
        try:
            self.collection.insert_many(self.layout.documents(rows), session=self.session)
        except BulkWriteError as error:
            first: Document = next(iter((error.details or {}).get("writeErrors", ())), {})
            if first.get("code") == _DUPLICATE_KEY:
                raise self.differ.duplicate_key(rows, first["index"]) from error
            raise

    def _change(self, rows: pa.Table, handles: Sequence[Any]) -> None:
        """Give documents new values. Those of ours are replaced; the user's keep the fields that are no columns."""
        from pymongo import ReplaceOne, UpdateOne

        if not rows.num_rows:
            return
        documents = self.layout.documents(rows)
        pairs = zip(handles, documents, strict=True)
        requests: list[Any]
        if self.layout.own:
            requests = [ReplaceOne({"_id": handle}, document) for handle, document in pairs]
        else:
            requests = [UpdateOne({"_id": handle}, {"$set": _without_id(document)}) for handle, document in pairs]
        self.collection.bulk_write(requests, session=self.session)

    def _delete(self, handles: Sequence[Any]) -> None:
        for part in lists_for_commands(handles):
            self.collection.delete_many({"_id": {"$in": part}}, session=self.session)


def _without_id(document: Document) -> Document:
    return {name: value for name, value in document.items() if name != "_id"}


def _at(rows: pa.Table, places: Sequence[int]) -> pa.Table:
    return rows if len(places) == rows.num_rows else rows.take(pa.array(places, type=pa.int64()))
