"""The gate: what holds a query back until the tables it reads are ready."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from velostream.engine.status import State, StatusBoard
from velostream.errors import WaitTimeoutError

if TYPE_CHECKING:
    from velostream.model.options import Options

DEFAULT_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class GatePolicy:
    """`table.wait.timeout` and `table.wait.on.timeout`."""

    timeout: timedelta = DEFAULT_TIMEOUT
    start_on_timeout: bool = False

    @classmethod
    def of(cls, options: Options) -> GatePolicy:
        timeout = options.duration("table.wait.timeout") or timedelta(0)
        return cls(timeout, start_on_timeout=options.text("table.wait.on.timeout") == "start")


class Gate:
    """Closed until every table has been ready once; then open for good.

    The stream loses nothing meanwhile: its position is only advanced by batches that ran.
    """

    def __init__(self, tables: Sequence[StatusBoard], policy: GatePolicy) -> None:
        self._waiting_for = list(tables)
        self._policy = policy
        self._deadline = time.monotonic() + policy.timeout.total_seconds()

    def is_open(self, board: StatusBoard) -> bool:
        """Look at the tables; say on the query's board what is still missing. Raises when the time is up."""
        self._waiting_for = [table for table in self._waiting_for if not table.was_ready]
        if not self._waiting_for:
            return True
        first = self._waiting_for[0].status
        reason = f'{first.kind} "{first.name}" is {first.state}'
        if time.monotonic() < self._deadline:
            if board.status.reason != reason:
                board.become(State.WAITING, reason)
            return False
        if self._policy.start_on_timeout:
            board.warn(f"started after {self._policy.timeout} though {reason}")
            self._waiting_for = []
            return True
        raise WaitTimeoutError(
            f'query "{board.status.name}" waited too long for {first.kind} "{first.name}"',
            detail=f"after {self._policy.timeout} it is {first.state}" + (f": {first.error}" if first.error else ""),
            hint="WITH ('table.wait.timeout' = '30m') waits longer, ('table.wait.on.timeout' = 'start') starts anyway",
            code="gate-timeout",
        )
