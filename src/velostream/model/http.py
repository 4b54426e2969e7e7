"""How an HTTP server is talked to: addresses, credentials, patience with busy servers, and what its answers mean."""

from __future__ import annotations

import base64
import html
import json
import re
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urljoin, urlsplit

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
_VARIABLE = re.compile(r"\$\{[^{}]*\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~\w-]+", re.ASCII)
_HEADER_VALUE = re.compile(r"[\t -~]*")
_PARAMETER = re.compile(r"""([^=&]+)(?:=("(?:[^"]|"")*"|'(?:[^']|'')*'|[^&]*))?(?:&|\Z)""")
_EXPECTED = "http://host/path or https://host/path"
_ATTEMPTS = 4
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
"""A server that wants more patience is left alone until then, and whoever asks meanwhile is told so."""
_MOST_REDIRECTS = 10
_SHOWN_CHARACTERS = 200
_SEARCHED_BYTES = 64 << 10
"""So much of an answer is searched for secrets before it is cut to what is shown, so that no half of one is."""
_SHORTEST_HIDDEN_VARIABLE = 4
_HIDDEN = "***"
_SILENCE_SECONDS = 300.0
"""After that a stream of events is asked for again, unless socket.timeout says when."""
_KEEP_ALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
_NOT_MODIFIED = 304
_BUSY = (408, 425, 429)
_KEEPING_THE_METHOD = (307, 308)
"""Redirects that ask for the same request elsewhere; after any other one a body would not arrive."""


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where to ask, taken apart; variables are put in, so that any character may stand in their values."""

    url: str = field(repr=False)
    """Without user and parameters. Variables may hold secrets, so it is never shown."""
    shown: str
    """The same for everybody's eyes: variables are as they were written."""
    parameters: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Values that were put in, and the variables that stood there."""

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
        shown = f"{parts['scheme'].lower()}://{parts['host']}{parts['path'] or '/'}"
        url = expand_environment(shown)
        try:
            _ = urlsplit(url).port
        except ValueError as error:
            raise OptionError.value("source", shown, expected=_EXPECTED) from error
        user, secret = (expand_environment(unquote(part)) or None for part in (username, password))
        variables = tuple((expand_environment(written), written) for written in _VARIABLE.findall(uri))
        return cls(url, shown, tuple(parameters), user, secret, variables), options

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def port(self) -> int | None:
        return urlsplit(self.url).port


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request shows, or what must be shown to us."""

    authorization: str | None = field(default=None, repr=False)

    @classmethod
    def of(cls, address: HttpAddress, settings: Options) -> Credentials:
        token = (settings.text("http.token") or "").strip()
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
            _check_header("http.token", token)
            return cls(f"Bearer {token}")
        return cls(f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said, its body read and unpacked."""

    status: int
    url: str
    """Where it came from in the end, parameters included: not to be shown."""
    shown: str
    """The same for everybody's eyes."""
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
            name.removeprefix(prefix): (settings.text(name) or "").strip()
            for name in settings
            if name.startswith(prefix)
        }
        for name, value in self._headers.items():
            _check_header(f"{prefix}{name}", value, name=name)
        prefix = "http.params."
        self._parameters = [
            *address.parameters,
            *((name.removeprefix(prefix), settings.text(name) or "") for name in settings if name.startswith(prefix)),
        ]
        named = [*self._headers.items(), *self._parameters]
        told = [settings.text("http.token"), settings.text("http.password"), address.password]
        sent = [self._credentials.authorization, *(value for name, value in named if is_confidential(name))]
        self._hidden = _hidden_texts([value for value in (*told, *sent) if value], address.variables)
        self._connect_seconds = _seconds(settings, "connect.timeout")
        self._answer_seconds = _seconds(settings, "socket.timeout")
        self._silence_seconds = self._answer_seconds if "socket.timeout" in settings else _SILENCE_SECONDS
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
        """An answer whose body comes for as long as the server likes. `SourceError` when it refuses or breaks off.

        A server that is silent for longer than socket.timeout has ended it, too: it may have died without a word.
        """
        httpx = _httpx()
        target = self._own_target()
        with self._speaking():
            client = self._connected()
            request = client.build_request(
                "GET",
                target,
                headers=self._all_headers(headers),
                timeout=httpx.Timeout(self._connect_seconds, read=self._silence_seconds),
            )
            response = client.send(request, stream=True)
            try:
                if response.status_code >= 300:
                    raise self._refused(self._answer(response, response.read()))
                _keep_alive(response)
                with suppress(httpx.ReadTimeout):
                    yield response
            finally:
                response.close()

    def unexpected(self, reason: str) -> SourceError:
        """The error for an answer that isn't what the address was taken for."""
        return SourceError(
            f'http server at "{self.address.shown}" gives no such answer as was asked for',
            detail=self.without_secrets(reason),
            hint="check the address, its parameters and http.mode",
            code="source-refused",
            category=Category.CONFIGURATION,
        )

    def without_secrets(self, text: str) -> str:
        """What may be shown of a text that comes from a server, or from a library that knows what was sent to it."""
        for secret, shown in self._hidden:
            text = text.replace(secret, shown)
        return text

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
        target = self._own_target() if url is None else self._given_target(url)
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
                    return self._answer(response, response.content)
                target = self._given_target(_joined(str(target), response.headers["location"]))
        raise self.unexpected(f"more than {_MOST_REDIRECTS} redirects")

    def _own_target(self) -> httpx.URL:
        try:
            own = _checked_url(self.address.url)
        except ValueError as error:
            raise OptionError.value("source", self.address.shown, expected=_EXPECTED) from error
        return own.copy_merge_params(_httpx().QueryParams(self._parameters)) if self._parameters else own

    def _given_target(self, url: str) -> httpx.URL:
        """Where the server says that something is."""
        try:
            return _checked_url(url)
        except ValueError as error:
            raise SourceError(
                f'http server at "{self.address.shown}" leads to what is no address',
                detail=self.without_secrets(f'"{without_parameters(url)}": {error}'),
                hint="check http.paging and http.cursor.field, and that the server is well",
                code="unreadable-answer",
                category=Category.UNKNOWN,
            ) from error

    def _answer(self, response: httpx.Response, body: bytes) -> Answer:
        url = str(response.url)
        own = without_parameters(url) == without_parameters(str(self._own_target()))
        following = response.links.get("next", {}).get("url")
        return Answer(
            response.status_code,
            url,
            self.address.shown if own else self.without_secrets(without_parameters(url)),
            {name.lower(): value for name, value in response.headers.items()},
            body,
            None if following is None else _joined(url, following),
        )

    def _all_headers(self, further: Mapping[str, str]) -> dict[bytes, bytes]:
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
            reason = self.without_secrets(str(error) or type(error).__name__)
            raise SourceError.unreachable("http", where=self.address.shown, reason=reason) from error

    def _refused(self, answer: Answer) -> SourceError:
        # A server may repeat what it was asked.
        text = self.without_secrets(answer.body[:_SEARCHED_BYTES].decode("utf-8", "replace"))
        text = text.strip()[:_SHOWN_CHARACTERS]
        reason = f"the server answers {answer.status}" + (f": {text}" if text else "")
        where = self.address.shown
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


def _check_header(option: str, value: str, *, name: str = "authorization") -> None:
    """`OptionError` for what no request could carry; the value may be a secret."""
    if _HEADER_NAME.fullmatch(name) is None or _HEADER_VALUE.fullmatch(value) is None:
        raise OptionError(
            f'option "{option}" can\'t be sent as a header',
            detail="names and values of headers are of printable ASCII characters",
            hint="write other characters as the server expects them, percent-encoded for example",
            code="invalid-option-value",
        )


def _hidden_texts(secrets: Sequence[str], variables: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What must not be shown, in all the ways a server may write it, and what is shown for it; the longest first."""
    # `Bearer x` and `Basic x` are as secret as x.
    plain = {part.strip() for secret in secrets for part in (secret, secret.partition(" ")[2])}
    named = {value.strip(): written for value, written in variables if len(value) >= _SHORTEST_HIDDEN_VARIABLE}
    found = {
        form: shown
        for value, shown in (named | dict.fromkeys(plain, _HIDDEN)).items()
        for form in (
            value,
            quote(value),
            quote(value, safe=""),
            quote_plus(value),
            html.escape(value),
            json.dumps(value)[1:-1],
            json.dumps(value, ensure_ascii=False)[1:-1],
        )
        if form
    }
    return sorted(found.items(), key=lambda pair: -len(pair[0]))


def _checked_url(written: str) -> httpx.URL:
    """`ValueError` where nothing can be asked."""
    library = _httpx()
    try:
        _ = urlsplit(written).port
        url: httpx.URL = library.URL(written)
    except library.InvalidURL as error:
        raise ValueError(str(error)) from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"expected {_EXPECTED}")
    url.host.encode("idna")
    return url


def _joined(base: str, written: str) -> str:
    """An address that a server gave, made complete; one that can't be read stays as it is, for whoever asks there."""
    try:
        return urljoin(base, written)
    except ValueError:
        return written


def _keep_alive(response: httpx.Response) -> None:
    """Have the system find out when the other end of a silent connection is gone."""
    stream: Any = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE:
        # Not every system knows all of them.
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _octets(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    """Names of statements and ids of events may hold any letter."""
    return {name.encode(): value.encode() for name, value in headers.items()}


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
    """An address without what is secret in most of them: user, password and parameters."""
    scheme, mark, rest = url.partition("#")[0].partition("?")[0].partition("://")
    server, slash, path = rest.partition("/")
    return f"{scheme}{mark}{server.rpartition('@')[2]}{slash}{path}"
