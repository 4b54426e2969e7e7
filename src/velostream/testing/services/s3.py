"""S3 out of the wheel `moto`: buckets, objects, listings and conditional writes over real HTTP.

The server keeps everything in memory: what it holds does not survive `stopped`, only its port does.
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
    from pyarrow.fs import S3FileSystem

_REGION = "us-east-1"


class S3Service(Service):
    """An object store; `url` is its endpoint, `options` are what a statement says to reach it.

    `VELOSTREAM_TEST_S3_URL` may name another one, whose credentials are then `velostream` / `velostream-secret` too.
    """

    kind: ClassVar[str] = "s3"
    access_key: ClassVar[str] = "velostream"
    secret_key: ClassVar[str] = "velostream-secret"  # noqa: S105 - the server takes any

    @classmethod
    def fetch(cls) -> Path:
        spec = importlib.util.find_spec("moto.server")
        if spec is None or spec.origin is None:
            raise ServiceError("no S3 to test with", hint="pip install 'moto[s3]' flask flask-cors")
        return Path(spec.origin).parent

    def prepare(self) -> None:
        """Nothing is kept in the folder."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self.port)]

    def own_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def options(self) -> Mapping[str, str]:
        """The `s3.*` options of a source or table on this server."""
        return {
            "s3.endpoint": self.url,
            "s3.region": _REGION,
            "s3.access.key": self.access_key,
            "s3.secret.key": self.secret_key,
            "s3.path.style": "true",
        }

    def file_system(self) -> S3FileSystem:
        """The server's objects as `bucket/key` paths, for putting and looking at them in tests."""
        # Slow to import, and asking whether the server is there must not need it before that.
        from pyarrow.fs import S3FileSystem

        endpoint = urlsplit(self.url)
        return S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            endpoint_override=endpoint.netloc,
            scheme=endpoint.scheme,
            region=_REGION,
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def ask(self) -> None:
        from pyarrow.fs import FileSelector

        self.file_system().get_file_info(FileSelector("", recursive=False))

    def new_database(self) -> str:
        """A new, empty bucket."""
        bucket = f"velostream-{uuid.uuid4().hex[:12]}"
        self.file_system().create_dir(bucket)
        return f"s3://{bucket}"
