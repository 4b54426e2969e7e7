"""Ctrl-C and SIGTERM: work stops soon, and nothing is torn."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

_LOOK_SECONDS = 0.1


def interruptible(work: Callable[[], T], *, on_interrupt: Callable[[], None]) -> T:
    """Do something in a thread of its own, so that Ctrl-C never breaks into a conversation with the JVM."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def perform() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 -- raised again below, in the thread that asked
            failure.append(error)

    worker = threading.Thread(target=perform, name="velostream-statement", daemon=True)
    worker.start()
    try:
        while worker.is_alive():
            worker.join(timeout=_LOOK_SECONDS)
    except KeyboardInterrupt:
        on_interrupt()
        raise
    if failure:
        raise failure[0]
    return outcome[0]


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM, which service managers send, ends us the way Ctrl-C does."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
