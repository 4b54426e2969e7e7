"""How Google Cloud Storage is reached: by options, else by the application default credentials."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from velostream.errors import Category, OptionError
from velostream.model.object_store import ObjectStore
from velostream.model.options import Option, Options, OptionType

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_OPTIONS = (
    Option("gs.endpoint", "address of another store that speaks Google's JSON", default="${STORAGE_EMULATOR_HOST:-}"),
    Option("gs.anonymous", "ask without credentials; default: where an endpoint is given", OptionType.BOOLEAN),
    Option("gs.access.token", "an access token; default: the application default credentials"),
)
_CODE = re.compile(r"google::cloud::Status\(([A-Z_]+):")
_CATEGORIES = {
    "NOT_FOUND": Category.MISSING,
    "UNAUTHENTICATED": Category.AUTHENTICATION,
    "PERMISSION_DENIED": Category.AUTHENTICATION,
    "UNAVAILABLE": Category.NETWORK,
    "DEADLINE_EXCEEDED": Category.NETWORK,
    "RESOURCE_EXHAUSTED": Category.NETWORK,
    "ABORTED": Category.NETWORK,
    "INTERNAL": Category.NETWORK,
    "INVALID_ARGUMENT": Category.CONFIGURATION,
}
"""By the codes that Arrow's client puts into its errors."""
_PATIENCE = timedelta(seconds=4)
"""For how long a request is tried again."""
_TOKEN_LIFE = timedelta(hours=1)
"""How long Google's tokens live. Only the store knows for sure, and says so when one is over."""


@dataclass(frozen=True, slots=True)
class GoogleStore(ObjectStore):
    """Google Cloud Storage, or an emulator of it."""

    scheme: ClassVar[str] = "gs"
    options: ClassVar[tuple[Option, ...]] = _OPTIONS
    size_header: ClassVar[str] = "size"
    modified_header: ClassVar[str] = "updated"
    version_header: ClassVar[str] = "generation"
    reach_hint: ClassVar[str] = "check gs.endpoint and that the store answers"
    access_hint: ClassVar[str] = (
        "export GOOGLE_APPLICATION_CREDENTIALS=key.json, or WITH ('gs.access.token' = '${TOKEN}'), "
        "and check what that account may do"
    )

    endpoint: str | None = None
    access_token: str | None = field(default=None, repr=False)
    anonymous: bool = False

    @classmethod
    def of(cls, options: Options, uri: str) -> GoogleStore:  # noqa: ARG003 - the options say it all
        endpoint = options.text("gs.endpoint") or None
        if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
            raise OptionError.value("gs.endpoint", endpoint, expected="an http:// or https:// address")
        token = options.text("gs.access.token")
        assumed = endpoint is not None and token is None
        anonymous = options.boolean("gs.anonymous") if "gs.anonymous" in options else assumed
        if anonymous and token is not None:
            raise OptionError.value("gs.anonymous", "true", expected="false, as there is a gs.access.token")
        return cls(endpoint, token, anonymous)

    def file_system(self) -> FileSystem:
        from pyarrow.fs import GcsFileSystem

        settings: dict[str, Any] = {"retry_time_limit": _PATIENCE}
        if self.endpoint is not None:
            address = urlsplit(self.endpoint)
            settings |= {"endpoint_override": address.netloc + address.path.rstrip("/"), "scheme": address.scheme}
        if self.anonymous:
            settings["anonymous"] = True
        elif self.access_token is not None:
            expires_at = datetime.now(UTC) + _TOKEN_LIFE
            settings |= {"access_token": self.access_token, "credential_token_expiration": expires_at}
        return GcsFileSystem(**settings)

    def category_of(self, error: OSError) -> Category:
        if isinstance(error, FileNotFoundError):
            return Category.MISSING
        code = _CODE.search(str(error))
        return Category.UNKNOWN if code is None else _CATEGORIES.get(code[1], Category.UNKNOWN)
