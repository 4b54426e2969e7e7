"""A schema registry for tests. It is a stand-in of ours, not Confluent's: see `schema_registry_server`."""

from __future__ import annotations

import sys
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from velostream.testing.services import schema_registry_server
from velostream.testing.services.base import LOOPBACK, Service


class SchemaRegistryService(Service):
    """Schemas over HTTP. `VELOSTREAM_TEST_SCHEMA_REGISTRY_URL` may name a real one."""

    kind: ClassVar[str] = "schema_registry"
    username: ClassVar[str] = schema_registry_server.USERNAME
    password: ClassVar[str] = schema_registry_server.PASSWORD

    @classmethod
    def fetch(cls) -> Path:
        return Path(schema_registry_server.__file__).parent

    def prepare(self) -> None:
        """The server makes its file with its first schema."""

    def command(self) -> Sequence[str]:
        return [
            *(sys.executable, "-I", schema_registry_server.__file__),
            *(str(self.port), str(self.folder / "schemas.json")),
        ]

    def own_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def ask(self) -> None:
        with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:  # noqa: S310 - our own server
            answer.read()

    def new_database(self) -> str:
        """A subject nobody has used."""
        return f"subject-{uuid.uuid4().hex}"
