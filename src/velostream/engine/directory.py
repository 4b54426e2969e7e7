"""The state directory: one folder that holds everything a connection must not lose, and its lock."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from velostream.errors import Category, StateError

LOADS = "loads"
"""The folder of files with rows on their way into tables. Each attempt at a load has a folder of its own in it."""
_REWRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
_DEAD_HOLDER_PATIENCE_SECONDS = 10.0
"""How long to wait for the JVM of a killed process: it inherits the lock and ends a few seconds later."""


class StateDirectory:
    """A locked folder. Without a path it is a private temporary one, removed at close.

    The lock is an open file descriptor with `flock`, inherited by the JVM we start, because an orphaned JVM may
    still write a checkpoint: the directory is free only when both are gone.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.durable = path is not None
        if path is None:
            self.path = Path(tempfile.mkdtemp(prefix="velostream-"))
        else:
            self.path = Path(path).expanduser().absolute()
            _make_folder(self.path)
        self.lock_descriptor = _lock(self.path / "lock")

    def folder(self, *parts: str) -> Path:
        """A folder below the directory, made if it isn't there."""
        path = self.path.joinpath(*parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    def close(self) -> None:
        # Closing alone would leave the lock with a JVM that has inherited it and goes on for other connections.
        fcntl.flock(self.lock_descriptor, fcntl.LOCK_UN)
        os.close(self.lock_descriptor)
        if not self.durable:
            shutil.rmtree(self.path, ignore_errors=True)


def write_atomically(path: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a small file such that a crash leaves the old or the new content, never a mixture.

    A private one can be read by nobody but its owner, at no time.
    """
    temporary = path.with_name(path.name + ".tmp")
    if private:
        temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, _REWRITE, 0o600 if private else 0o666), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make what was written to a file, or the names in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f'state directory "{path}" can\'t be made',
            detail=error.strerror,
            hint="check the path and its permissions",
            category=Category.CONFIGURATION,
        ) from error


def _lock(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StateError(
            f'state directory "{path.parent}" can\'t be written',
            detail=error.strerror,
            hint="check its permissions",
            category=Category.CONFIGURATION,
        ) from error
    deadline = time.monotonic() + _DEAD_HOLDER_PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = _holder(path)
            if _alive(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise StateError.locked(str(path.parent), holder=_describe(holder)) from None
            time.sleep(0.1)
    record = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": " ".join(sys.argv)[:200],
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(record).encode(), 0)
    return descriptor


def _holder(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _alive(holder: dict[str, object]) -> bool:
    pid = holder.get("pid")
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _describe(holder: dict[str, object]) -> str:
    if not holder:
        return "an unknown process"
    return f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}: {holder.get('command')}"
