"""How Azure's storage is reached: by options, else by the default credential of Azure's libraries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from velostream.errors import Category, OptionError
from velostream.model.object_store import ObjectStore
from velostream.model.options import Option, Options

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_OPTIONS = (
    Option("abfs.account", "the storage account", default="${AZURE_STORAGE_ACCOUNT_NAME:-}"),
    Option("abfs.account.key", "key of the account; default: the default credential of Azure's libraries"),
    Option("abfs.sas.token", "a shared access signature instead of the key"),
    Option("abfs.endpoint", "address of another server that speaks Azure's protocol, such as Azurite"),
)
_ANSWER = re.compile(r"Azure Error: \[(\w*)\](?: (\d{3})\b)?")
"""Its code and the status, as Arrow's client puts them into its errors. Without a status there was no answer."""
_CATEGORIES = {401: Category.AUTHENTICATION, 403: Category.AUTHENTICATION, 404: Category.MISSING}
_PASSING = (408, 429)
_SIGNATURE = re.compile(r"\bsig=[^&\s'\"]+")
"""Of a shared access signature: the client's errors name addresses with all of it."""
_NO_CREDENTIAL = re.compile(r"GetToken|Credential")


@dataclass(frozen=True, slots=True)
class AzureStore(ObjectStore):
    """A storage account, flat or with a hierarchical namespace."""

    scheme: ClassVar[str] = "abfs"
    options: ClassVar[tuple[Option, ...]] = _OPTIONS
    reach_hint: ClassVar[str] = "check abfs.account, abfs.endpoint and that the store answers"
    access_hint: ClassVar[str] = "WITH ('abfs.account.key' = '${KEY}'), and check what that account may do"

    account: str
    account_key: str | None = field(default=None, repr=False)
    sas_token: str | None = field(default=None, repr=False)
    endpoint: str | None = None

    @classmethod
    def of(cls, options: Options, uri: str) -> AzureStore:
        account = _account_in(uri) or options.text("abfs.account") or None
        if account is None:
            raise OptionError(
                'option "abfs.account" is missing',
                hint="write abfs://container@account.dfs.core.windows.net/…, or WITH ('abfs.account' = …)",
                code="missing-option",
            )
        key, token, endpoint = (options.text(f"abfs.{name}") for name in ("account.key", "sas.token", "endpoint"))
        if key is not None and token is not None:
            raise OptionError.value("abfs.sas.token", "***", expected="nothing, as there is an abfs.account.key")
        if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
            raise OptionError.value("abfs.endpoint", endpoint, expected="an http:// or https:// address")
        return cls(account, key, token, endpoint)

    @classmethod
    def path_of(cls, uri: str) -> str:
        """The container of `container@account.dfs.core.windows.net` is the bucket; the account is the store's."""
        authority, slash, key = uri.partition("://")[2].partition("/")
        return authority.partition("@")[0] + slash + key

    def file_system(self) -> FileSystem:
        from pyarrow.fs import AzureFileSystem

        settings: dict[str, Any] = {}
        if self.endpoint is not None:
            address = urlsplit(self.endpoint)
            for service in ("blob", "dfs"):
                settings[f"{service}_storage_authority"] = address.netloc
                settings[f"{service}_storage_scheme"] = address.scheme
        if self.account_key is not None:
            settings["account_key"] = self.account_key
        if self.sas_token is not None:
            # Arrow puts it behind the address as it is.
            settings["sas_token"] = "?" + self.sas_token.removeprefix("?")
        return AzureFileSystem(self.account, **settings)

    def told(self, error: OSError) -> str:
        return _SIGNATURE.sub("sig=***", str(error))

    def category_of(self, error: OSError) -> Category:
        if isinstance(error, FileNotFoundError):
            return Category.MISSING
        answer = _ANSWER.search(str(error))
        if answer is None:
            return Category.AUTHENTICATION if _NO_CREDENTIAL.search(str(error)) else Category.UNKNOWN
        if answer[2] is None:
            return Category.NETWORK
        status = int(answer[2])
        if status in _PASSING or status >= 500:
            return Category.NETWORK
        return _CATEGORIES.get(status, Category.UNKNOWN)


def _account_in(uri: str) -> str | None:
    """The account of `abfs://container@account.dfs.core.windows.net/…`."""
    authority = uri.partition("://")[2].partition("/")[0]
    host = authority.partition("@")[2]
    return host.partition(".")[0] or None
