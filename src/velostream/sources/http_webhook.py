"""A webhook: an HTTP endpoint of this process that takes records, and says so once they are durable.

Endpoints of one host and port share a server, told apart by their paths; several sources may share an endpoint.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from velostream.errors import Category, OptionError, SourceError
from velostream.model.http import Credentials, HttpAddress
from velostream.model.options import Options
from velostream.sources.http_receivers import Arrival, Inbox, Receiver, RecordCutter

_LOOPBACK = "127.0.0.1"
_LARGEST_BODY = 64 << 20
_SILENT_SECONDS = 30
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests are taken, and what they must show."""

    host: str
    port: int
    path: str
    shown: str
    """The path as it was written: variables in it may hold secrets."""
    credentials: Credentials = field(default_factory=Credentials)

    @classmethod
    def of(cls, address: HttpAddress, settings: Options) -> Endpoint:
        """`OptionError` when the address names no port, or asks for encryption."""
        parts = urlsplit(address.url)
        port = address.port
        if parts.scheme != "http" or port is None:
            expected = "http://127.0.0.1:port/path; a proxy in front of it may take https"
            raise OptionError.value("source", address.shown, expected=expected)
        path = settings.text("webhook.path") or parts.path
        host = address.host
        return cls(
            _LOOPBACK if host in ("", "localhost") else host,
            port,
            unquote(path if path.startswith("/") else f"/{path}"),
            settings.get("webhook.path") or "/" + address.shown.split("/", 3)[3],
            Credentials.of(address, settings),
        )

    def lets_in(self, shown: str) -> bool:
        """Whether a request with that `Authorization` may come in."""
        wanted = self.credentials.authorization
        return wanted is None or hmac.compare_digest(shown.encode(), wanted.encode())


class WebhookReceiver(Receiver):
    """One endpoint for one spool."""

    def __init__(self, endpoint: Endpoint, inbox: Inbox, cutter: RecordCutter) -> None:
        self.endpoint = endpoint
        self._inbox = inbox
        self._cutter = cutter
        self._changed = threading.Condition()
        self._busy = 0
        """How many requests are being taken in."""
        self._stopping = False

    def start(self) -> None:
        with _lock:
            place = (self.endpoint.host, self.endpoint.port)
            server = _servers.get(place)
            if server is None:
                server = _servers[place] = _Server(self.endpoint)
            server.receivers.append(self)

    def stop(self) -> None:
        with _lock:
            place = (self.endpoint.host, self.endpoint.port)
            server = _servers[place]
            server.receivers.remove(self)
            if not server.receivers:
                _servers.pop(place).end()
        with self._changed:
            self._stopping = True
            self._changed.wait_for(lambda: not self._busy, timeout=_SILENT_SECONDS)

    def take(self, body: bytes, content_type: str) -> None:
        """Returns when what was sent is durable. `OSError` when it can't be kept."""
        records = self._cutter.records_of(body, of_lines="ndjson" in content_type or "jsonl" in content_type)
        if not records:
            return
        with self._taking():
            place = f"{self.endpoint.shown} at {datetime.now(UTC).isoformat(timespec='milliseconds')}"
            self._inbox.put(Arrival(records, place))

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """Nothing is written once `stop` has returned: the folder may be gone by then."""
        with self._changed:
            if self._stopping:
                raise ConnectionAbortedError("the endpoint is closing")
            self._busy += 1
        try:
            yield
        finally:
            with self._changed:
                self._busy -= 1
                self._changed.notify_all()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, endpoint: Endpoint) -> None:
        self.receivers: list[WebhookReceiver] = []
        try:
            super().__init__((endpoint.host, endpoint.port), _Handler)
        except OSError as error:
            raise SourceError(
                f'webhook can\'t listen at "{endpoint.host}:{endpoint.port}"',
                detail=error.strerror or str(error),
                hint="choose another port, or end what listens there",
                code="source-unreachable",
                category=Category.NETWORK,
            ) from error
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="webhook", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        _log.info("a request from %s was broken off", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout: ClassVar[int] = _SILENT_SECONDS
    server: _Server

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        receivers = [one for one in list(self.server.receivers) if one.endpoint.path == path]
        welcome = [one for one in receivers if one.endpoint.lets_in(self.headers.get("Authorization", ""))]
        length = self.headers.get("Content-Length", "")
        if not receivers:
            self._answer(HTTPStatus.NOT_FOUND)
        elif not welcome:
            self._answer(HTTPStatus.UNAUTHORIZED)
        elif not length.isdigit():
            self._answer(HTTPStatus.LENGTH_REQUIRED)
        elif int(length) > _LARGEST_BODY:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                self._take(welcome, body)
            else:
                # Who sent half of it is gone, gets no answer, and will send all of it again.
                _log.info("a request from %s was broken off", self.client_address)
                self.close_connection = True

    do_PUT = do_POST  # noqa: N815 - the names that http.server looks for

    def _take(self, receivers: list[WebhookReceiver], body: bytes) -> None:
        try:
            for receiver in receivers:
                receiver.take(body, self.headers.get("Content-Type", "").lower())
        except OSError as error:
            _log.warning("what was sent to a webhook could not be kept: %s", error)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE)
        else:
            self._answer(HTTPStatus.OK)

    def _answer(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status is not HTTPStatus.OK:
            # The body that wasn't read must not be taken for the next request.
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server calls it by
        _log.debug(format, *args)


_lock = threading.Lock()
_servers: dict[tuple[str, int], _Server] = {}
