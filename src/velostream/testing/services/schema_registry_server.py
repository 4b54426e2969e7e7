"""A small stand-in for Confluent's schema registry, run as a program: schemas by number and by subject over HTTP.

It numbers schemas, keeps them over a restart and answers as the real one does for what our client asks. It does not
check whether a new schema is compatible with the ones before it. Requests need no user; a wrong one is refused.
"""

from __future__ import annotations

import base64
import json
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote

USERNAME = "registry"
PASSWORD = "registry-secret"  # noqa: S105 - the stand-in's only user


class Store:
    """The schemas, in one file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = Lock()
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        if file.exists():
            kept = json.loads(file.read_text())
            self._schemas, self._subjects = kept["schemas"], kept["subjects"]

    def by_number(self, number: int) -> dict[str, Any] | None:
        return self._schemas[number - 1] if 0 < number <= len(self._schemas) else None

    def subjects(self) -> list[str]:
        return sorted(self._subjects)

    def version(self, subject: str, version: str) -> dict[str, Any] | None:
        numbers = self._subjects.get(subject, [])
        index = len(numbers) if version == "latest" else int(version)
        if not 0 < index <= len(numbers):
            return None
        number = numbers[index - 1]
        return self._schemas[number - 1] | {"subject": subject, "version": index, "id": number}

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        with self._lock:
            if schema not in self._schemas:
                self._schemas.append(schema)
            number = self._schemas.index(schema) + 1
            numbers = self._subjects.setdefault(subject, [])
            if number not in numbers:
                numbers.append(number)
            self._file.write_text(json.dumps({"schemas": self._schemas, "subjects": self._subjects}))
            return number


class Handler(BaseHTTPRequestHandler):
    """`GET /subjects`, `GET /schemas/ids/N`, `GET /subjects/S/versions/V`, `POST /subjects/S/versions`."""

    store: Store

    def do_GET(self) -> None:
        if self._refused():
            return
        match self._path():
            case ["subjects"]:
                self._answer(HTTPStatus.OK, self.store.subjects())
            case ["schemas", "ids", number]:
                self._found(self.store.by_number(int(number)), 40403, "Schema not found")
            case ["subjects", subject, "versions", version]:
                self._found(self.store.version(subject, version), 40401, f"Subject '{subject}' not found.")
            case _:
                self._found(None, 404, "HTTP 404 Not Found")

    def do_POST(self) -> None:
        sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._refused():
            return
        match self._path():
            case ["subjects", subject, "versions"]:
                if sent.get("schemaType", "AVRO") != "PROTOBUF" and not _is_json(sent["schema"]):
                    refused = {"error_code": 42201, "message": "Invalid schema"}
                    self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, refused)
                else:
                    self._answer(HTTPStatus.OK, {"id": self.store.register(subject, sent)})
            case _:
                self._found(None, 404, "HTTP 404 Not Found")

    def _path(self) -> list[str]:
        return [unquote(part) for part in self.path.strip("/").split("/")]

    def _refused(self) -> bool:
        right = f"Basic {base64.b64encode(f'{USERNAME}:{PASSWORD}'.encode()).decode()}"
        if self.headers.get("Authorization", right) == right:
            return False
        self._answer(HTTPStatus.UNAUTHORIZED, {"error_code": 401, "message": "Unauthorized"})
        return True

    def _found(self, answer: object, code: int, message: str) -> None:
        if answer is None:
            self._answer(HTTPStatus.NOT_FOUND, {"error_code": code, "message": message})
        else:
            self._answer(HTTPStatus.OK, answer)

    def _answer(self, status: HTTPStatus, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def main(port: str, file: str) -> None:
    Handler.store = Store(Path(file))
    ThreadingHTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
