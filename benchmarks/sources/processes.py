"""What this process and all it has started take of the machine."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS = 0.02
_STATUS = Path("/proc/self/status")


def cpu_seconds() -> float:
    """CPU time so far of this process, of those it has started, of those that these have started and so on.

    Test servers count, too: what they do is the same for all contenders. Those that have ended count by their parents.
    """
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for number, fields in _processes():
        parents[number] = int(fields[1])
        ticks[number] = sum(int(field) for field in fields[11:15])
    ours = {os.getpid()}
    while more := {number for number, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks.get(number, 0) for number in ours) / _TICKS


def _processes() -> Iterator[tuple[int, list[str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            # It may have ended since it was listed.
            with suppress(OSError):
                yield int(folder.name), (folder / "stat").read_text().rpartition(") ")[2].split()


class PeakMemory:
    """The most memory this process had at once while it is entered, in bytes, seen every 20 ms.

    What is mapped from files is told apart: the system takes it back when it needs the memory.
    """

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak memory", daemon=True)
        self.before = self.own = _resident("RssAnon")
        self.mapped_before = self.mapped = _resident("RssFile")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            self.own = max(self.own, _resident("RssAnon"))
            self.mapped = max(self.mapped, _resident("RssFile"))


def _resident(kind: str) -> int:
    for line in _STATUS.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == kind:
            return int(value.split()[0]) << 10
    raise LookupError(kind)
