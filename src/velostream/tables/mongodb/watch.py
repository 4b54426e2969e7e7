"""Noticing what anybody writes to a collection, by its change stream."""

from __future__ import annotations

import threading
import uuid
from typing import Any

from velostream.tables.mongodb.client import Connection

_WAIT_MILLISECONDS = 1
"""How long the server waits for an event that isn't there yet."""
_UNAUTHORIZED = 13


class Watch:
    """Counts the changes of a collection from the first `stamp` on. Any thread may ask."""

    def __init__(self, connection: Connection, collection: str) -> None:
        self._connection = connection
        self._collection = collection
        self._lock = threading.Lock()
        self._stream: Any = None
        self._series = ""
        self._events = 0

    def stamp(self) -> str | None:
        """Another one than before once anybody may have changed the collection; never one of another process.

        None where the user may not watch.
        """
        from pymongo.errors import OperationFailure

        with self._lock, self._connection.told():
            try:
                return self._counted()
            except OperationFailure as error:
                if error.code != _UNAUTHORIZED:
                    raise
                return None

    def close(self) -> None:
        with self._lock:
            self._forget()

    def _counted(self) -> str:
        from pymongo.errors import PyMongoError

        if self._stream is None:
            self._series = uuid.uuid4().hex
            self._stream = self._open()
        try:
            while self._stream.try_next() is not None:
                self._events += 1
            if not self._stream.alive:
                self._forget()
        except PyMongoError:
            # The server may have given up what happened since; a new series says that anything may have.
            self._forget()
            self._series = uuid.uuid4().hex
            self._stream = self._open()
        return f"{self._series}:{self._events}"

    def _open(self) -> Any:
        collection = self._connection.database[self._collection]
        return collection.watch([{"$project": {"_id": 1}}], max_await_time_ms=_WAIT_MILLISECONDS)

    def _forget(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
