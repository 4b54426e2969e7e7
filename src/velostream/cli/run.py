"""`velostream run`: a script whose tables are kept up to date until Ctrl-C, or once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import velostream
from velostream.cli.interrupts import interruptible, termination_as_interrupt
from velostream.cli.output import OutputFormat
from velostream.cli.shell import ENDLESS, notice, show
from velostream.engine.status import State
from velostream.errors import UnsupportedError

if TYPE_CHECKING:
    from velostream.engine.connection import Connection
    from velostream.engine.status import Status

_LOOK_SECONDS = 0.5
_INTERRUPTED = 130


def run_script(text: str, *, state: Path | None, once: bool, form: OutputFormat) -> int:
    """Run a script; gives the exit code.

    Without `once` it ends by Ctrl-C or SIGTERM, which is success unless a query has failed. Statements that the state
    directory knows already are continued.
    """
    with termination_as_interrupt(), velostream.connect(state) as connection:
        watcher = _Watcher(connection)
        try:
            interruptible(lambda: _start(connection, text, once=once, form=form), on_interrupt=connection.interrupt)
            if once:
                interruptible(connection.drain_all, on_interrupt=connection.interrupt)
            else:
                notice("running; Ctrl-C stops it" + (", the same command continues it" if state else ""))
                watcher.look_until_interrupted()
        except KeyboardInterrupt:
            if once:
                return _INTERRUPTED
        watcher.look()
        return 1 if watcher.failed else 0


def _start(connection: Connection, text: str, *, once: bool, form: OutputFormat) -> None:
    for result in connection.run_script(text):
        if once and result.rowcount == ENDLESS:
            result.close()
            raise UnsupportedError(
                "a SELECT over a stream has no end, and --once has",
                hint="CREATE TABLE … AS SELECT … keeps its rows; select from that",
                code="endless-select",
            )
        show(result, form=form)


class _Watcher:
    """Tells on standard error when a table or query changes its state."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._told: dict[str, tuple[str, str]] = {}
        self.failed = False

    def look_until_interrupted(self) -> None:
        never = threading.Event()
        while not never.wait(_LOOK_SECONDS):
            self.look()

    def look(self) -> None:
        statuses = self._connection.status()
        for status in statuses:
            seen = (str(status.state), status.error or status.reason)
            if self._told.get(status.name) != seen:
                self._told[status.name] = seen
                notice(_line(status))
        self.failed = any(status.state in (State.FAILED, State.DEGRADED) for status in statuses)


def _line(status: Status) -> str:
    figures = [f"{status.rows:,} rows"] if status.rows is not None else []
    reason = status.error or status.reason
    return f"{status.kind} {status.name}: {status.state}" + "".join(f", {part}" for part in [*figures, reason] if part)
