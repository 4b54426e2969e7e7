"""Tables that copy a source get the columns that its records have later: `schema.evolution` = `add`.

Whoever reads the records stops ahead of the first one with an unknown column. The columns are put into the catalog, for
all statements that are concerned in one step; from then on they are meant to be there, and every start of a statement
gives its table what it lacks. Then all of them go on where they were. So a crash in between loses nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from velostream.engine.catalog import Entry, EntryKind, Wish
from velostream.engine.spark_failures import query_error
from velostream.engine.status import State
from velostream.errors import present
from velostream.model.schema import Column, Schema
from velostream.model.types import parse_type

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.engine.launch import Launcher
    from velostream.engine.supervisor import Supervisor
    from velostream.errors import FurtherColumnsError

_log = logging.getLogger(__name__)
_OF_TABLE = "table "


def table_identity(entry: Entry) -> str:
    """Under which the catalog keeps what columns of a growing table a statement was planned with."""
    return f"{_OF_TABLE}{entry.id}"


class Growing:
    """Has statements take in columns. May be called from any thread."""

    def __init__(self, context: EngineContext, launcher: Launcher, supervisor: Supervisor) -> None:
        self._context = context
        self._launcher = launcher
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def begin(self, entry_ids: Sequence[str], error: FurtherColumnsError) -> None:
        """Have these go on with the columns that they lack. They stop by themselves, and are started anew soon.

        Returns at once: whoever calls this is a thread that is about to be ended.
        """
        columns = [Column(name, parse_type(type_)) for name, type_ in error.columns]
        with self._lock:
            if self._context.closing.is_set():
                return
            thread = threading.Thread(
                target=self._take, args=(list(entry_ids), columns), name="further columns", daemon=True
            )
            self._threads = [*(one for one in self._threads if one.is_alive()), thread]
            thread.start()

    def close(self) -> None:
        """Wait for what has begun; when this returns, nothing is started any more. Called once `closing` is set."""
        with self._lock:
            threads = self._threads
        for thread in threads:
            thread.join(timeout=60)

    def _take(self, entry_ids: Sequence[str], columns: Sequence[Column]) -> None:
        catalog = self._context.catalog
        with self._supervisor.lock:
            known = [entry for entry in map(catalog.by_id, entry_ids) if entry is not None]
            folds = [entry for entry in known if entry.kind is EntryKind.SOURCE]
            views = [entry for entry in known if entry.kind is EntryKind.VIEW]
            views += [reader for fold in folds for reader in catalog.readers_of(fold.id) if reader.grows]
            try:
                for entry in views:
                    self._supervisor.suspend(entry)
                if self._context.closing.is_set():
                    return
                grown = [_with_sources(view, columns) for view in views]
                grown += [replace(fold, schema=_wider(present(fold.schema), columns)) for fold in folds]
                catalog.swap((*views, *folds), *grown)
                self._context.crash_point("growing.after-catalog")
                for fold in grown[len(views) :]:
                    self._launcher.hidden.widen(fold)
                for view in grown:
                    if self._context.closing.is_set():
                        return
                    if view.kind is EntryKind.VIEW and view.wish is Wish.RUNNING:
                        self._supervisor.start(view)
                        self._context.board(view).tally("columns added", len(columns))
            except Exception as trouble:  # noqa: BLE001 - whatever it is must show on the boards of those that stopped
                failure = query_error(trouble, "columns that came later could not be added")
                _log.warning("%s", failure)
                for entry in (*views, *folds):
                    self._context.board(entry).become(State.FAILED, failure.message, error=failure)


def _with_sources(view: Entry, columns: Sequence[Column]) -> Entry:
    """The statement, as if its source had had these columns when it was made."""
    sources = {
        identity: form if identity.startswith(_OF_TABLE) else _wider(Schema.from_json(form), columns).to_json()
        for identity, form in view.sources.items()
    }
    return replace(view, sources=sources)


def _wider(schema: Schema, columns: Sequence[Column]) -> Schema:
    further = tuple(column for column in columns if schema.find(column.name) is None)
    return Schema((*schema.columns, *further), schema.key)
