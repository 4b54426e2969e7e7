"""ClickHouse out of the wheel `chdb`: the engine is the real one, in a process of its own.

What stands in is the HTTP layer: `chdb` has none, so this module answers the requests that `clickhouse-connect` makes
(queries, bound parameters, inserts in any format, errors with their codes) with what the engine says. Nothing that is
tested here says anything about a server's own HTTP: compression, sessions, streams of results, limits of requests.
"""

from __future__ import annotations

import base64
import importlib.util
import itertools
import os
import re
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from email import message_from_bytes
from email.policy import HTTP
from http import HTTPStatus
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from velostream.errors import ServiceError
from velostream.testing.services.base import LOOPBACK, Service

USER, PASSWORD = "default", "velostream"
_DATABASE = "default"
_PARAMETER = "param_"
_CODE = re.compile(r"Code: (\d+)")
_INSERT = re.compile(r"\s*(?P<target>INSERT\s+INTO\s.+?)\s+FORMAT\s+(?P<format>\w+)\s*\Z", re.IGNORECASE | re.DOTALL)
_AUTHENTICATION_FAILED = 516


class ClickhouseService(Service):
    """A `chdb` session behind a small HTTP front. It takes one statement after the other."""

    kind: ClassVar[str] = "clickhouse"

    def __init__(self, *, url: str | None = None) -> None:
        super().__init__(url=url)
        self._numbers = itertools.count(1)

    @classmethod
    def fetch(cls) -> Path:
        # Looked up, never imported: the engine would be in the tests' own process.
        spec = importlib.util.find_spec("chdb")
        if spec is None or spec.origin is None:
            raise ServiceError("no ClickHouse to test with", hint="pip install chdb")
        return Path(spec.origin).parent

    def prepare(self) -> None:
        (self.folder / "data").mkdir()

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", __name__, str(self.folder / "data"), str(self.port)]

    def environment(self) -> Mapping[str, str]:
        # The server runs in a folder of its own, where a relative path to us would lead nowhere.
        return {"PYTHONPATH": os.pathsep.join(str(Path(place).absolute()) for place in sys.path if place)}

    def own_url(self) -> str:
        return f"clickhouse://{USER}:{PASSWORD}@{LOOPBACK}:{self.port}/{_DATABASE}"

    def ask(self) -> None:
        self.execute("SELECT 1")

    def execute(self, statement: str, **parameters: str) -> bytes:
        """Run a statement as another program would, with values for its `{name:Type}`; what it gives."""
        return self._post(statement.encode(), {f"{_PARAMETER}{name}": value for name, value in parameters.items()})

    def load(self, statement: str, data: bytes) -> None:
        """Run an `INSERT INTO … FORMAT …` with data in that format."""
        self._post(data, {"query": statement})

    def _post(self, body: bytes, asked: Mapping[str, str]) -> bytes:
        parts = urlsplit(self.url)
        query = urlencode({"database": parts.path.lstrip("/"), **asked})
        connection = HTTPConnection(str(parts.hostname), parts.port, timeout=30)
        try:
            connection.request("POST", f"/?{query}", body=body, headers=_credentials(parts.netloc))
            answer = connection.getresponse()
            found = answer.read()
        finally:
            connection.close()
        if answer.status != HTTPStatus.OK:
            raise ServiceError(f"{self.kind} refused a statement", detail=found.decode(errors="replace"))
        return found

    def new_database(self) -> str:
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()


class _Engine:
    """The one session of the process."""

    def __init__(self, folder: str) -> None:
        from chdb import session

        make: Any = session.Session
        self._session = make(folder)
        self._lock = threading.Lock()

    def run(self, statement: str, *, database: str, parameters: dict[str, str], data: bytes) -> bytes:
        """What the statement gives, in the format it names; raises `RuntimeError` with the engine's own text."""
        with self._lock, tempfile.NamedTemporaryFile() as rows:
            self._session.query(f"USE `{database}`")
            insert = _INSERT.match(statement)
            if insert is not None and data:
                rows.write(data)
                rows.flush()
                statement = f"{insert['target']} SELECT * FROM file('{rows.name}', {insert['format']})"
            # The format of what names none.
            return bytes(self._session.query(statement, "TabSeparated", params=parameters or None).bytes())


class _Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: ClassVar[_Engine]

    def do_GET(self) -> None:
        self._answer(HTTPStatus.OK, b"Ok.\n")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
        if self.headers.get("Authorization") != _credentials(f"{USER}:{PASSWORD}@")["Authorization"]:
            text = f"Code: {_AUTHENTICATION_FAILED}. DB::Exception: Authentication failed. (AUTHENTICATION_FAILED)"
            self._answer(HTTPStatus.FORBIDDEN, text.encode(), code=_AUTHENTICATION_FAILED)
            return
        content = self.headers.get("Content-Type", "")
        if content.startswith("multipart/form-data"):
            # What is too long for an address.
            asked |= _form(content, body)
            body = b""
        statement, data = (asked["query"], body) if "query" in asked else (body.decode(), b"")
        bound = {name.removeprefix(_PARAMETER): value for name, value in asked.items() if name.startswith(_PARAMETER)}
        try:
            found = self.engine.run(statement, database=asked.get("database", _DATABASE), parameters=bound, data=data)
        except RuntimeError as error:
            code = _CODE.search(str(error))
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, str(error).encode(), code=int(code[1]) if code else 1)
        else:
            self._answer(HTTPStatus.OK, found)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the seam's
        """Only what goes wrong is worth a line, and the engine writes that."""

    def _answer(self, status: HTTPStatus, body: bytes, *, code: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if code is not None:
            self.send_header("X-ClickHouse-Exception-Code", str(code))
        self.end_headers()
        self.wfile.write(body)


def _form(content_type: str, body: bytes) -> dict[str, str]:
    """The fields of a form, as the driver sends them."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    parts = message_from_bytes(head + body, policy=HTTP).iter_parts()
    return {
        str(part.get_param("name", header="content-disposition")): bytes(part.get_payload(decode=True)).decode()
        for part in parts
    }


def _credentials(place: str) -> dict[str, str]:
    """The header for the user and the password in front of a host."""
    return {"Authorization": "Basic " + base64.b64encode(place.rpartition("@")[0].encode()).decode()}


def main(arguments: list[str]) -> None:
    folder, port = arguments
    _Front.engine = _Engine(folder)
    ThreadingHTTPServer((LOOPBACK, int(port)), _Front).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
