"""How an HTTP server is talked to: addresses, credentials, patience with busy servers, and what its answers mean."""

from __future__ import annotations

import base64
import re
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, unquote_plus, urljoin, urlsplit

from velostream.errors import Category, OptionError, SourceError, StoreError
from velostream.model.confidential import is_confidential
from velostream.model.options import Option, Options, OptionType, expand_environment

if TYPE_CHECKING:
    import httpx

HTTP_OPTIONS: tuple[Option, ...] = (
    Option("http.headers.*", "a header of every request"),
    Option("http.params.*", "a parameter of the address, for names that are options here"),
    Option("http.auth", "how to show who asks", OptionType.CHOICE, None, ("bearer", "basic")),
    Option("http.token", "token for http.auth = bearer; better ${VARIABLE}"),
    Option("http.username", "user for http.auth = basic"),
    Option("http.password", "password for http.auth = basic; better ${VARIABLE}"),
    Option("connect.timeout", "how long to wait for a connection", OptionType.DURATION, "5s"),
    Option("socket.timeout", "how long to wait for an answer", OptionType.DURATION, "30s"),
    Option("ssl.rootcert", "file with the authorities to trust; default: those of the system"),
)
_ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?:(?P<user>[^/?#]*)@)?(?P<host>[^/?#@]*)(?P<path>/[^?#]*)?(?:\?(?P<query>[^#]*))?(?:#.*)?",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"""([^=&]+)(?:=("(?:[^"]|"")*"|'(?:[^']|'')*'|[^&]*))?(?:&|\Z)""")
_EXPECTED = "http://host/path or https://host/path"
_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
"""A server that wants more patience is left alone until then, and whoever asks meanwhile is told so."""
_MOST_REDIRECTS = 10
_SHOWN_BYTES = 200
_NOT_MODIFIED = 304
_BUSY = (408, 425, 429)
_KEEPING_THE_METHOD = (307, 308)
"""Redirects that ask for the same request elsewhere; after any other one a body would not arrive."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where to ask, taken apart; variables are put in, so that any character may stand in their values."""

    url: str
    """Without user and parameters, so that it may be shown."""
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, uri: str, known: Sequence[Option]) -> tuple[HttpAddress, dict[str, str]]:
        """The address, and those of its parameters that are options of the kind; all others go to the server."""
        parts = _ADDRESS.fullmatch(uri)
        if parts is None:
            # What can't be read may hold a password.
            raise OptionError.value("source", "http://…", expected=_EXPECTED)
        options: dict[str, str] = {}
        parameters: list[tuple[str, str]] = []
        for written in _PARAMETER.findall(parts["query"] or ""):
            name, value = unquote_plus(written[0]), _parameter_value(written[1])
            if any(option.covers(name.lower()) for option in known):
                options[name.lower()] = value
            else:
                parameters.append((name, expand_environment(value)))
        username, _, password = (parts["user"] or "").partition(":")
        path = expand_environment(parts["path"] or "/")
        url = f"{parts['scheme'].lower()}://{expand_environment(parts['host'])}{path}"
        plain = (expand_environment(unquote(part)) or None for part in (username, password))
        return cls(url, tuple(parameters), *plain), options

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int | None:
        try:
            return urlsplit(self.url).port
        except ValueError as error:
            raise OptionError.value("source", self.url, expected=_EXPECTED) from error


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request shows, or what must be shown to us."""

    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, address: HttpAddress, settings: Options) -> Credentials:
        token = settings.text("http.token")
        username = settings.text("http.username") or address.username
        password = settings.text("http.password") or address.password or ""
        method = (settings.text("http.auth") or ("basic" if username else "bearer" if token else "")).lower()
        if not method:
            return cls()
        missing = "http.token" if method == "bearer" and not token else None
        missing = "http.username" if method == "basic" and not username else missing
        if missing is not None:
            raise OptionError(
                f'option "{missing}" is missing',
                detail=f"http.auth is {method}",
                hint=f"WITH ('{missing}' = '${{VARIABLE}}')",
                code="missing-option",
            )
        if method == "bearer":
            return cls(f"Bearer {token}")
        return cls(f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said, its body read and unpacked."""

    status: int
    url: str
    """Where it came from in the end, parameters included: not to be shown."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    next: str | None = None
    """The address that its `Link` header calls the next one."""


class HttpClient:
    """Requests to one address. Connects when first asked, and holds connections until `close`. For one thread.

    Headers and credentials of the options go to the server of the address alone, wherever redirects and links lead.
    """

    def __init__(self, address: HttpAddress, settings: Options) -> None:
        self.address = address
        self._credentials = Credentials.of(address, settings)
        prefix = "http.headers."
        self._headers = {
            name.removeprefix(prefix): settings.text(name) or "" for name in settings if name.startswith(prefix)
        }
        prefix = "http.params."
        self._parameters = [
            *address.parameters,
            *((name.removeprefix(prefix), settings.text(name) or "") for name in settings if name.startswith(prefix)),
        ]
        named = [*self._headers.items(), *self._parameters]
        told = [settings.text("http.token"), settings.text("http.password"), address.password]
        self._secrets = [value for value in (*told, *(v for n, v in named if is_confidential(n))) if value]
        self._connect_seconds = _seconds(settings, "connect.timeout")
        self._answer_seconds = _seconds(settings, "socket.timeout")
        self._authorities = settings.text("ssl.rootcert")
        self._client: httpx.Client | None = None
        self._busy_until = 0.0
        self._busy: SourceError | None = None

    def ask(
        self,
        *,
        method: str = "GET",
        url: str | None = None,
        parameters: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        """The answer to a request, to the address or to another `url`; tried again where the server is busy or away.

        `parameters` replace those of the same names. What is returned was done as asked, or is a 304: answers that
        refuse, and redirects that would lose the method or the body, are `SourceError`s with their category. A server's
        `Retry-After` is kept to.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            if self._busy is not None and time.monotonic() < self._busy_until:
                raise self._busy
            try:
                answer = self._sent(method, url, parameters, headers or {}, body)
                if answer.status < 300 or answer.status == _NOT_MODIFIED:
                    self._busy = None
                    return answer
                error, pause = self._refused(answer), _retry_after(answer.headers.get("retry-after"))
            except SourceError as failed:
                error, pause = failed, None
            if pause is not None and pause > _LONGEST_PAUSE_SECONDS:
                self._busy, self._busy_until = error, time.monotonic() + pause
            if error.category is not Category.NETWORK or attempt == _ATTEMPTS or self._busy is error:
                raise error
            time.sleep(_FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) if pause is None else pause)
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def listening(self, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """An answer whose body comes for as long as the server likes. `SourceError` when it refuses or breaks off."""
        httpx = _httpx()
        with self._speaking():
            client = self._connected()
            request = client.build_request(
                "GET",
                self.address.url,
                params=httpx.QueryParams(self._parameters),
                headers=self._all_headers(headers),
                timeout=httpx.Timeout(self._connect_seconds, read=None),
            )
            response = client.send(request, stream=True)
            try:
                if response.status_code >= 300:
                    raise self._refused(_answer(response, response.read()))
                yield response
            finally:
                response.close()

    def unexpected(self, reason: str) -> SourceError:
        """The error for an answer that isn't what the address was taken for."""
        return SourceError(
            f'http server at "{self.address.url}" gives no such answer as was asked for',
            detail=reason,
            hint="check the address, its parameters and http.mode",
            code="source-refused",
            category=Category.CONFIGURATION,
        )

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _sent(
        self,
        method: str,
        url: str | None,
        parameters: Sequence[tuple[str, str]],
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Answer:
        httpx = _httpx()
        target = httpx.URL(self.address.url, params=self._parameters) if url is None else httpx.URL(url)
        for name, value in parameters:
            target = target.copy_set_param(name, value)
        with self._speaking():
            for _ in range(_MOST_REDIRECTS):
                ours = self._all_headers(headers) if _same_server(str(target), self.address.url) else _octets(headers)
                response = self._connected().request(method, target, headers=ours, content=body)
                followed = response.has_redirect_location and (
                    method == "GET" or response.status_code in _KEEPING_THE_METHOD
                )
                if not followed:
                    return _answer(response, response.content)
                target = target.join(response.headers["location"])
        raise self.unexpected(f"more than {_MOST_REDIRECTS} redirects")

    def _all_headers(self, further: Mapping[str, str]) -> dict[str, bytes]:
        shown = self._credentials.authorization
        return _octets(self._headers | ({} if shown is None else {"authorization": shown}) | dict(further))

    def _connected(self) -> httpx.Client:
        if self._client is None:
            httpx = _httpx()
            self._client = httpx.Client(
                timeout=httpx.Timeout(self._answer_seconds, connect=self._connect_seconds),
                verify=_trusted(self._authorities),
            )
        return self._client

    @contextmanager
    def _speaking(self) -> Iterator[None]:
        httpx = _httpx()
        try:
            yield
        except (httpx.HTTPError, httpx.StreamError) as error:
            reason = str(error) or type(error).__name__
            raise SourceError.unreachable("http", where=self.address.url, reason=reason) from error
        except httpx.InvalidURL as error:
            raise OptionError.value("source", self.address.url, expected=_EXPECTED) from error

    def _refused(self, answer: Answer) -> SourceError:
        text = answer.body[:_SHOWN_BYTES].decode("utf-8", "replace").strip()
        for secret in self._secrets:
            # A server may repeat what it was asked.
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
        reason = f"the server answers {answer.status}" + (f": {text}" if text else "")
        where = self.address.url
        match answer.status:
            case 401 | 403 | 407:
                hint = "WITH ('http.auth' = 'bearer', 'http.token' = '${TOKEN}'), or 'basic' with user and password"
                what, code, category = "refuses who asks", "source-refused", Category.AUTHENTICATION
            case 404 | 410:
                hint = "check the address, or wait for it: WITH ('http.wait.timeout' = '60s')"
                what, code, category = "has no such resource", "missing-resource", Category.MISSING
            case status if status < 400:
                hint = "write the address that it has moved to"
                what, code, category = "leads elsewhere", "source-refused", Category.CONFIGURATION
            case status if status >= 500 or status in _BUSY:
                hint = (
                    "it is tried again; check that the server is well, and ask less often: WITH ('poll.interval' = …)"
                )
                what, code, category = "can't answer now", "source-unreachable", Category.NETWORK
            case _:
                hint = "check the address, its parameters and http.method"
                what, code, category = "refuses what was asked", "source-refused", Category.CONFIGURATION
        return SourceError(f'http server at "{where}" {what}', detail=reason, hint=hint, code=code, category=category)


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise StoreError.missing_driver("http", module="httpx", extra="http") from error
    return httpx


@cache
def _trusted(authorities: str | None) -> ssl.SSLContext:
    """Which servers to believe. Takes long to make, and never changes."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        raise OptionError.value("ssl.rootcert", authorities or "", expected="a readable file") from error


def _parameter_value(written: str) -> str:
    """Quotes are SQL's way to let a value hold anything."""
    if len(written) > 1 and written[0] in "'\"":
        return written[1:-1].replace(written[0] * 2, written[0])
    return unquote_plus(written)


def _seconds(settings: Options, name: str) -> float | None:
    found = settings.duration(name)
    return None if found is None else found.total_seconds()


def _answer(response: httpx.Response, body: bytes) -> Answer:
    following = response.links.get("next", {}).get("url")
    return Answer(
        response.status_code,
        str(response.url),
        {name.lower(): value for name, value in response.headers.items()},
        body,
        None if following is None else urljoin(str(response.url), following),
    )


def _octets(headers: Mapping[str, str]) -> dict[str, bytes]:
    """Names of statements and ids of events may hold any letter."""
    return {name: value.encode() for name, value in headers.items()}


def _same_server(left: str, right: str) -> bool:
    def server(url: str) -> tuple[str, str | None, int | None]:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)

    return server(left) == server(right)


def _retry_after(written: str | None) -> float | None:
    """Seconds to wait, given as such or as a moment."""
    if written is None:
        return None
    if written.strip().isdigit():
        return float(written)
    try:
        moment = parsedate_to_datetime(written)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def without_parameters(url: str) -> str:
    """An address as anyone may see it."""
    return urlsplit(url)._replace(query="", fragment="").geturl()
