"""Google Cloud Storage out of the wheel `gcp-storage-emulator`: buckets, objects and listings over real HTTP.

It takes everybody for a friend: what a store that asks for credentials says is tried elsewhere. Everything is kept in
memory and does not survive `stopped`.
"""

from __future__ import annotations

import importlib.util
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from velostream.errors import ServiceError
from velostream.testing.services.base import LOOPBACK, Service

if TYPE_CHECKING:
    from pyarrow.fs import GcsFileSystem


class GsService(Service):
    """An object store; `url` is its endpoint, `options` are what a statement says to reach it."""

    kind: ClassVar[str] = "gs"

    @classmethod
    def fetch(cls) -> Path:
        spec = importlib.util.find_spec("gcp_storage_emulator")
        if spec is None or spec.origin is None:
            raise ServiceError("no Google Cloud Storage to test with", hint="pip install gcp-storage-emulator")
        return Path(spec.origin).parent

    def prepare(self) -> None:
        """Nothing is kept in the folder."""

    def command(self) -> Sequence[str]:
        options = ("--host", LOOPBACK, "--port", str(self.port), "--in-memory", "--quiet")
        return [sys.executable, "-m", "gcp_storage_emulator", "start", *options]

    def own_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def options(self) -> Mapping[str, str]:
        """The `gs.*` options of a source or sink on this server."""
        return {"gs.endpoint": self.url}

    def file_system(self) -> GcsFileSystem:
        """The server's objects as `bucket/key` paths, for putting and looking at them in tests."""
        # Slow to import, and asking whether the server is there must not need it before that.
        from pyarrow.fs import GcsFileSystem

        endpoint = urlsplit(self.url)
        return GcsFileSystem(
            anonymous=True, endpoint_override=endpoint.netloc, scheme=endpoint.scheme, project_id="velostream"
        )

    def ask(self) -> None:
        import httpx

        httpx.get(f"{self.url}/storage/v1/b", params={"project": "velostream"}).raise_for_status()

    def new_database(self) -> str:
        """A new, empty bucket."""
        bucket = f"velostream-{uuid.uuid4().hex[:12]}"
        self.file_system().create_dir(bucket)
        return f"gs://{bucket}"
