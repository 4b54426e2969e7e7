"""What every test server is: started on a free port of 127.0.0.1, taken away and brought back, gone with the tests.

`PostgresService.shared()` is the server all tests of a process use; `with PostgresService() as server:` is one of the
test's own, for tests that stop it. A server that runs already is used instead of a shared one when its URL stands in
the environment: `VELOSTREAM_TEST_POSTGRES_URL` and so on.
"""

from __future__ import annotations

import atexit
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from velostream.errors import ServiceError
from velostream.testing.services import guard

LOOPBACK = "127.0.0.1"

_READY_SECONDS = 60.0
_PORT_ATTEMPTS = 3
_LOG_LINES_SHOWN = 15
_shared_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Account:
    """Who a server runs as when it isn't who runs the tests."""

    user: int
    group: int


class Service(ABC):
    """One server in a folder of its own. A kind says where its programs come from and how they are started.

    Not started before `start`, `shared` or `with`. `new_database` is what a test should ask for: the server is shared.
    """

    kind: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    crash_signal: ClassVar[signal.Signals] = signal.SIGKILL
    """What ends the server, its own children included, without a chance to finish what it does."""
    refuses_root: ClassVar[bool] = False

    _shared: ClassVar[Self | None] = None

    def __init__(self, *, url: str | None = None) -> None:
        """`url` is that of a server which runs already: it is used and never stopped."""
        self._given_url = url
        self._guard: subprocess.Popen[str] | None = None
        self.folder = Path()
        self.port = 0

    @classmethod
    def shared(cls) -> Self:
        """The running server that all tests of this process share."""
        with _shared_lock:
            if cls._shared is None:
                service = cls(url=os.environ.get(cls.url_variable(), "").strip() or None)
                service.start()
                cls._shared = service
            return cls._shared

    @classmethod
    def url_variable(cls) -> str:
        """Environment variable with the URL of a server to use instead of starting one."""
        return f"VELOSTREAM_TEST_{cls.kind.upper()}_URL"

    @classmethod
    @abstractmethod
    def fetch(cls) -> Path:
        """The folder with the server's programs, downloaded into the cache if they are nowhere to be had.

        May take long the first time, and tells its progress then; safe in several processes at once.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Fill the empty folder with what the server needs to start; called once, `folder` and `port` are known."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command that runs the server in the foreground; it may run several times over one folder."""

    def environment(self) -> Mapping[str, str]:
        """Variables the server needs besides ours."""
        return {}

    @abstractmethod
    def own_url(self) -> str:
        """The URL of the server at `port`."""

    @abstractmethod
    def ask(self) -> None:
        """Have a real query answered, or raise whatever the driver raises."""

    @abstractmethod
    def new_database(self) -> str:
        """The URL of a new, empty database on this server."""

    @property
    def url(self) -> str:
        return self._given_url or self.own_url()

    @property
    def account(self) -> Account | None:
        """The unprivileged user a server that refuses root runs as when the tests run as root."""
        if not self.refuses_root or os.geteuid() != 0:
            return None
        nobody = pwd.getpwnam("nobody")
        return Account(user=nobody.pw_uid, group=nobody.pw_gid)

    def start(self) -> None:
        """Start the server for the first time; returns when it answers."""
        if self._given_url is not None:
            self._await_answer()
            return
        self.fetch()
        for attempt in range(_PORT_ATTEMPTS):
            self.port = free_port()
            self.folder = Path(tempfile.mkdtemp(prefix=f"velostream-{self.kind}-"))
            if self.account is not None:
                os.chown(self.folder, self.account.user, self.account.group)
            try:
                self.prepare()
                self.resume()
            except BaseException:
                self.close()
                if attempt == _PORT_ATTEMPTS - 1 or not _listens(self.port):
                    raise
                # Somebody took the port between our choice and the server's start.
            else:
                atexit.register(self.close)
                return

    def resume(self) -> None:
        """Start the server again over its data, on its port; returns when it answers."""
        order = {
            "command": list(self.command()),
            "environment": dict(os.environ) | dict(self.environment()),
            "folder": str(self.folder),
            "log": str(self.log),
            "stop_signal": int(self.stop_signal),
            "crash_signal": int(self.crash_signal),
        }
        if self.account is not None:
            order |= {"user": self.account.user, "group": self.account.group}
        self._guard = subprocess.Popen(  # noqa: S603
            # Isolated: the guard must start whatever the tests have set for their own children.
            [sys.executable, "-I", "-S", guard.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            text=True,
        )
        self._await_answer()

    def stop(self, *, suddenly: bool = False) -> None:
        """Take the server away, with or without a chance to finish what it does; its data stays for `resume`."""
        if self._given_url is not None:
            raise ServiceError(
                f"{self.kind} of {self.url_variable()} can't be stopped",
                hint="tests that stop a server start one of their own",
            )
        self._tell_guard("kill\n" if suddenly else "stop\n")

    @contextmanager
    def stopped(self, *, suddenly: bool = False) -> Iterator[None]:
        """The server is away inside and back afterwards, on the same port and with its data."""
        self.stop(suddenly=suddenly)
        try:
            yield
        finally:
            self.resume()

    def close(self) -> None:
        """End the server and remove its folder. Done by itself when the process ends."""
        atexit.unregister(self.close)
        self._tell_guard("")
        if self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def log(self) -> Path:
        """What the server has written to its standard output and error."""
        return self.folder / "server.log"

    def run(self, command: Sequence[str | Path], **variables: str) -> None:
        """Run one of the server's tools to its end, as the server's user, in its folder."""
        account = self.account
        as_other: dict[str, Any] = {}
        if account is not None:
            as_other = {"user": account.user, "group": account.group, "extra_groups": []}
        done = subprocess.run(  # noqa: S603
            [str(part) for part in command],
            cwd=self.folder,
            env=dict(os.environ) | dict(self.environment()) | variables,
            capture_output=True,
            text=True,
            check=False,
            **as_other,
        )
        if done.returncode != 0:
            raise ServiceError(
                f"{self.kind} could not be prepared: {Path(command[0]).name} ended with {done.returncode}",
                detail=(done.stderr + done.stdout).strip()[-2000:],
            )

    def _tell_guard(self, word: str) -> None:
        running, self._guard = self._guard, None
        if running is None:
            return
        try:
            running.communicate(word)
        except BrokenPipeError:
            # The server has ended by itself and its guard with it.
            running.wait()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                self.ask()
            except Exception as error:
                ended = self._guard is not None and self._guard.poll() is not None
                if not ended and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                said = "ended by itself" if ended else f"did not answer within {_READY_SECONDS:.0f} s"
                raise ServiceError(f"{self.kind} {said}", detail=self._log_end() or str(error)) from error
            else:
                return

    def _log_end(self) -> str:
        if not self.log.is_file():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at just now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0
