"""`REFRESH TABLE t`: a view computed anew from what its inputs hold now, whatever it was computed from before."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from velostream.engine.catalog import HIDDEN, Entry, EntryKind
from velostream.engine.declared import split_off_nulls
from velostream.engine.maintain.fold import FoldRunner
from velostream.engine.maintain.mirror import MirrorRunner
from velostream.engine.maintain.once import OnceRunner
from velostream.engine.maintain.views import ViewRunner
from velostream.engine.planning import definition_of
from velostream.errors import NotExecutableError, QueryError, present
from velostream.model.change import Epoch, Mode, Write
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.engine.launch import Launcher
    from velostream.engine.pulling import Puller
    from velostream.engine.supervisor import Supervisor

_PATIENCE_SECONDS = 300.0


class Refresher:
    """Computes tables anew. Stateless; may be used from many threads."""

    def __init__(self, context: EngineContext, launcher: Launcher, supervisor: Supervisor, puller: Puller) -> None:
        self._context = context
        self._launcher = launcher
        self._supervisor = supervisor
        self._puller = puller

    def refresh(self, entry: Entry) -> None:
        """Return when the table holds what its query gives over what is there now.

        A source behind it that is polled is polled, one that is read once is read again. Readers see the old rows or
        the new ones. What a stream has brought can't be computed again: refused.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        if entry.kind is EntryKind.TABLE and not any(entry.id in other.writes for other in self._context.catalog):
            return
        runner = self._launcher.running.runners.get(entry.id)
        if not isinstance(runner, ViewRunner | OnceRunner) or (isinstance(runner, ViewRunner) and runner.forgets):
            self._refuse(entry, is_running=runner is not None)
        if isinstance(runner, ViewRunner) and runner.has_ended:
            self._refuse(entry, is_running=False)
        self._context.wait_ready(entry, deadline)
        if isinstance(runner, OnceRunner):
            self._read_again(entry)
            return
        for one in self._context.catalog.upstream(entry):
            running = self._launcher.running.runners.get(one.id)
            if isinstance(running, MirrorRunner):
                running.catch_up()
            elif isinstance(running, FoldRunner) or (isinstance(running, ViewRunner) and running.forgets):
                running.drain(deadline)
            elif isinstance(running, ViewRunner) and (one.id == entry.id or one.kind in HIDDEN):
                running.forget_what_it_reflects()
                running.drain(deadline)

    def _refuse(self, entry: Entry, *, is_running: bool) -> None:
        if entry.is_query and not is_running:
            raise QueryError(f'query "{entry.name}" is not running', hint=f'RESUME QUERY "{entry.name}" starts it')
        raise NotExecutableError(
            f'table "{entry.name}" holds what a stream has brought, which can\'t be computed again',
            hint="CREATE OR REPLACE TABLE … AS reads a source that keeps its records from the beginning",
        )

    def _read_again(self, entry: Entry) -> None:
        """Replace the rows of a view over sources that are read once, in one commit."""
        bound = self._supervisor.bind(definition_of(entry), replace(entry, sources={}))
        table = self._context.table_of(entry)
        rows = self._puller.bound_rows(bound).rename_columns(list(table.schema.names))
        kept, refused = split_off_nulls(rows, table.schema)
        writes = [(table, Write(Mode.REPLACE, kept))]
        if refused:
            writes.append(self._context.dead_letter_write(entry.name, entry.name, refused))
        known = present(self._context.sequence.writer(entry.id))
        epoch = Epoch(entry.id, known.epoch + 1)
        self._context.commit(Part(writes=writes, epoch=epoch, position=dict(known.position)))
