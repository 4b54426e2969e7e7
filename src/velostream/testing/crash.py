"""Ending a process at a chosen instant, for tests of what survives.

The engine names the instants that matter (`EngineContext.crash_point`): before and after each of its commits. A test
ends the process at one of them (`VELOSTREAM_CRASH_AT` in a child's environment), or freezes the threads that reach
them, so that one SIGKILL catches many connections, each at its own instant. SIGKILL is the only end that proves
anything: nothing is flushed, closed or told.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from velostream.engine.context import EngineContext
from velostream.errors import WaitTimeoutError

CRASH_AT = "VELOSTREAM_CRASH_AT"

BEFORE_VIEW_COMMIT = frozenset({"aggregate.before-commit", "refresh.before-commit", "mirror.before-commit"})
AFTER_VIEW_COMMIT = frozenset({"aggregate.after-commit", "refresh.after-commit", "mirror.after-commit"})
BEFORE_COMMIT = BEFORE_VIEW_COMMIT | {"ingest.before-commit", "fold.before-commit", "once.before-commit"}
AFTER_COMMIT = AFTER_VIEW_COMMIT | {
    "ingest.after-commit",
    "fold.after-commit",
    "once.after-commit",
    "sink.after-write",
    "store.after-write",
}


def kill_me() -> None:
    """End this process as a power cut would. Does not return."""
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


class Freezer:
    """Stops, for good, the threads of chosen connections that reach one of the named points.

    A connection is known by its state directory. Only for a process that is killed afterwards: what a frozen thread
    holds is never given back.
    """

    def __init__(self, on_frozen: Callable[[Path], None]) -> None:
        self._on_frozen = on_frozen
        self._armed: dict[Path, Collection[str]] = {}
        self._lock = threading.Lock()

    def install(self) -> None:
        EngineContext.at_crash_point = self._reached

    def arm(self, directory: Path, points: Collection[str]) -> None:
        with self._lock:
            self._armed[directory] = points

    def disarm(self, directory: Path) -> None:
        with self._lock:
            self._armed.pop(directory, None)

    def _reached(self, directory: Path, point: str) -> None:
        with self._lock:
            if point not in self._armed.get(directory, ()):
                return
            self._on_frozen(directory)
        threading.Event().wait()


class Child:
    """A Python process of ours whose printed lines are read as they come, and which is killed when the block ends.

    Its errors go to `log`, which is added to, so that the story of many processes is in one file.
    """

    def __init__(
        self, arguments: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """`arguments` are what follows `python`: a file and its arguments, or `-m module`."""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and our own arguments
                [sys.executable, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=_environment(environment or {}),
            )
        self._log = log
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name="child output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def line(self, timeout: float) -> str:
        """The next line it prints; `WaitTimeoutError` when none comes in time, or ever."""
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise self._trouble(f"said nothing for {timeout:g} s") from None
        if line is None:
            raise self._trouble(f"ended with {self._process.wait()}")
        return line

    def await_line(self, begins: str, timeout: float) -> str:
        """Read on until a line that begins like this."""
        deadline = time.monotonic() + timeout
        while not (line := self.line(max(0.0, deadline - time.monotonic()))).startswith(begins):
            pass
        return line

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone. What it printed last is dropped."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._close_output()

    def wait(self, timeout: float) -> int:
        """The exit code, negative for a signal; `WaitTimeoutError` when it goes on."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._trouble(f"did not end within {timeout:g} s") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _close_output(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _trouble(self, what: str) -> WaitTimeoutError:
        words = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        return WaitTimeoutError(f"process {self.pid} {what}", detail="\n".join(words))


def play_until_crash(text: str, *, folder: Path, point: str, timeout: float = 120.0) -> None:
    """Play a script on `folder/state` in a process of its own until that kills itself at the named point.

    The script must end with a query that can't be answered before. Any other end is an `AssertionError`.
    """
    script = folder / "crashing.view"
    script.write_text(text)
    log = folder / "crashing.log"
    with Child(["-m", "velostream.testing.script", script, folder], log=log, environment={CRASH_AT: point}) as child:
        code = child.wait(timeout)
    if code != -signal.SIGKILL:
        raise AssertionError(f'the process ended with {code} and never came to "{point}"\n{log.read_text()}')


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the modules we see, and without crash points meant for us."""
    ours = {name: value for name, value in os.environ.items() if name != CRASH_AT}
    return (
        ours | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONUNBUFFERED": "1"} | dict(more)
    )
