"""An HTTP server for tests, in this process: resources that tests put there, in good and in bad days.

It is real HTTP over a real socket. What it serves is under the test's control at every moment, which is why it isn't a
program of its own as the other servers are.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from velostream.testing.services.base import LOOPBACK

_EVENT_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked."""

    method: str
    path: str
    parameters: Mapping[str, str]
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    broken_off: bool = False
    """The connection ends in the middle of the body."""


class HttpServer:
    """A server on a free port of 127.0.0.1, for one test: `with HttpServer() as server:`."""

    def __init__(self) -> None:
        self._resources: dict[str, Callable[[Request], Reply]] = {}
        self._troubles: list[Reply] = []
        self._events: dict[str, list[str]] = {}
        self._server: _Server | None = None
        self.port = 0
        self.requests: list[Request] = []
        """All that were answered, the newest at the end."""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def put(self, path: str, body: bytes | str, *, content_type: str = "application/json") -> str:
        """Make a body available, with an ETag; gives its address."""
        data = body.encode() if isinstance(body, str) else body
        etag = f'"{hashlib.blake2b(data, digest_size=8).hexdigest()}"'

        def reply(request: Request) -> Reply:
            if request.headers.get("if-none-match") == etag:
                return Reply(status=304, headers={"ETag": etag})
            return Reply(data, headers={"Content-Type": content_type, "ETag": etag})

        return self.answer(path, reply)

    def answer(self, path: str, reply: Callable[[Request], Reply]) -> str:
        """Answer requests to a path by a function; gives its address."""
        self._resources[path] = reply
        return self.url + path

    def fail(self, *replies: Reply) -> None:
        """Give these replies to the next requests, whatever they ask for."""
        self._troubles += replies

    def events(self, path: str) -> str:
        """A stream of server-sent events, numbered from 1; gives its address."""
        self._events.setdefault(path, [])
        return self.url + path

    def send(self, path: str, *data: str) -> None:
        """Send events to all who listen, now or later; those who name the last event they have get what follows."""
        self._events[path] += data

    def hang_up(self) -> None:
        """Break off all connections."""
        if self._server is not None:
            self._server.hang_up()

    def start(self) -> None:
        self._server = _Server(self, self.port)
        self.port = self._server.server_address[1]

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.end()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The server is away inside, and back afterwards on the same port."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def reply_to(self, request: Request) -> Reply:
        """What the server's threads ask for."""
        self.requests.append(request)
        if self._troubles:
            return self._troubles.pop(0)
        made = self._resources.get(request.path)
        return Reply(b"nothing here", 404) if made is None else made(request)

    def events_after(self, path: str, number: int) -> list[str] | None:
        """The events of a stream that come after the one of that number; None when it is no stream."""
        found = self._events.get(path)
        return None if found is None else found[number:]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: HttpServer, port: int) -> None:
        self.owner = owner
        self.ending = threading.Event()
        self._connections: set[socket.socket] = set()
        super().__init__((LOOPBACK, port), _Handler)
        threading.Thread(target=self.serve_forever, args=(0.02,), name="http", daemon=True).start()

    def connected(self, connection: socket.socket) -> None:
        self._connections.add(connection)

    def disconnected(self, connection: socket.socket) -> None:
        self._connections.discard(connection)

    def hang_up(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self.ending.set()
        self.shutdown()
        self.server_close()
        self.hang_up()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is none of the test's business."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connected(self.connection)

    def finish(self) -> None:
        self.server.disconnected(self.connection)
        super().finish()

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        parameters = {name: values[-1] for name, values in parse_qs(address.query, keep_blank_values=True).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", "0")))
        request = Request(self.command, address.path, parameters, headers, body)
        reply = self.server.owner.reply_to(request)
        is_stream = self.server.owner.events_after(address.path, 0) is not None
        if is_stream and reply.status == 404:
            self._stream(address.path, int(headers.get("last-event-id", "0")))
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body) + (1 if reply.broken_off else 0)))
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = self.close_connection or reply.broken_off

    do_POST = do_GET  # noqa: N815 - the names that http.server looks for
    do_PUT = do_GET  # noqa: N815

    def _stream(self, path: str, number: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        while not self.server.ending.wait(_EVENT_LOOK_SECONDS):
            for data in self.server.owner.events_after(path, number) or ():
                number += 1
                lines = "".join(f"data: {line}\n" for line in data.split("\n"))
                self.wfile.write(f": comment\nid: {number}\n{lines}\n".encode())
            self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server calls it by
        """Tests look at `requests` instead."""
