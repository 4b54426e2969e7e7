"""How an S3-compatible object store is reached: by options and the usual AWS_* variables, through two libraries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from velostream.errors import Category, OptionError
from velostream.model.object_store import ObjectStore
from velostream.model.options import Option, Options, OptionType

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

S3_OPTIONS: tuple[Option, ...] = (
    Option("s3.endpoint", "address of an S3-compatible store; default: Amazon's", default="${AWS_ENDPOINT_URL:-}"),
    Option("s3.region", "region of the bucket", default="${AWS_REGION:-us-east-1}"),
    Option("s3.access.key", "access key; default: the usual AWS_* variables and profiles"),
    Option("s3.secret.key", "secret of the access key"),
    Option("s3.path.style", "the bucket stands in the path; default: where an endpoint is given", OptionType.BOOLEAN),
)
_CODE = re.compile(r"AWS Error ([A-Z_]+)")
_CATEGORIES = {
    "NO_SUCH_BUCKET": Category.MISSING,
    "NO_SUCH_KEY": Category.MISSING,
    "RESOURCE_NOT_FOUND": Category.MISSING,
    "ACCESS_DENIED": Category.AUTHENTICATION,
    "EXPIRED_TOKEN": Category.AUTHENTICATION,
    "INVALID_ACCESS_KEY_ID": Category.AUTHENTICATION,
    "INVALID_CLIENT_TOKEN_ID": Category.AUTHENTICATION,
    "INVALID_SIGNATURE": Category.AUTHENTICATION,
    "MISSING_AUTHENTICATION_TOKEN": Category.AUTHENTICATION,
    "SIGNATURE_DOES_NOT_MATCH": Category.AUTHENTICATION,
    "UNRECOGNIZED_CLIENT": Category.AUTHENTICATION,
    "INTERNAL_FAILURE": Category.NETWORK,
    "NETWORK_CONNECTION": Category.NETWORK,
    "REQUEST_TIMEOUT": Category.NETWORK,
    "SERVICE_UNAVAILABLE": Category.NETWORK,
    "SLOW_DOWN": Category.NETWORK,
    "THROTTLING": Category.NETWORK,
}
"""By the codes that Arrow's client puts into its errors."""
_CONNECT_SECONDS = 5
_REQUEST_SECONDS = 60
_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class S3Store(ObjectStore):
    """A store that speaks S3, Amazon's or another."""

    scheme: ClassVar[str] = "s3"
    options: ClassVar[tuple[Option, ...]] = S3_OPTIONS
    reach_hint: ClassVar[str] = "check s3.endpoint, s3.region and that the store answers"
    access_hint: ClassVar[str] = (
        "WITH ('s3.access.key' = …, 's3.secret.key' = '${SECRET}'), and check what that user may do"
    )

    region: str
    endpoint: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    path_style: bool = False

    @classmethod
    def of(cls, options: Options, uri: str = "") -> S3Store:  # noqa: ARG003 - the options say it all
        endpoint = options.text("s3.endpoint") or None
        access_key, secret_key = options.text("s3.access.key"), options.text("s3.secret.key")
        if (access_key is None) != (secret_key is None):
            missing = "s3.secret.key" if secret_key is None else "s3.access.key"
            raise OptionError(f'option "{missing}" is missing', hint=f"WITH ('{missing}' = …)", code="missing-option")
        if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
            raise OptionError.value("s3.endpoint", endpoint, expected="an http:// or https:// address")
        return cls(
            options.text("s3.region") or "us-east-1",
            endpoint,
            access_key,
            secret_key,
            path_style=endpoint is not None if "s3.path.style" not in options else options.boolean("s3.path.style"),
        )

    def file_system(self) -> FileSystem:
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        settings: dict[str, Any] = {}
        if self.endpoint is not None:
            address = urlsplit(self.endpoint)
            settings = {"endpoint_override": address.netloc + address.path.rstrip("/"), "scheme": address.scheme}
            settings["force_virtual_addressing"] = not self.path_style
        if self.access_key is not None:
            settings |= {"access_key": self.access_key, "secret_key": self.secret_key}
        return S3FileSystem(
            region=self.region,
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_REQUEST_SECONDS,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
            **settings,
        )

    def storage_options(self) -> dict[str, str]:
        """The same for `deltalake`, under the names that it knows from the environment."""
        settings = {
            "AWS_REGION": self.region,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false" if self.path_style else "true",
            "connect_timeout": f"{_CONNECT_SECONDS}s",
            "timeout": f"{_REQUEST_SECONDS}s",
            "max_retries": str(_ATTEMPTS - 1),
        }
        if self.endpoint is not None:
            settings |= {"AWS_ENDPOINT_URL": self.endpoint, "AWS_ALLOW_HTTP": "true"}
        if self.access_key is not None and self.secret_key is not None:
            settings |= {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return settings

    def category_of(self, error: OSError) -> Category:
        if isinstance(error, FileNotFoundError):
            return Category.MISSING
        code = _CODE.search(str(error))
        return Category.UNKNOWN if code is None else _CATEGORIES.get(code[1], Category.UNKNOWN)
