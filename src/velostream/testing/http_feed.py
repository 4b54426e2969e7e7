"""Feeds of the HTTP source: resources, events and requests, over real sockets."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from velostream.errors import Category
from velostream.formats.base import FormatSettings
from velostream.formats.registry import make_format
from velostream.model.spool import Spool
from velostream.plugins import Group, load
from velostream.sources.base import Emits, Source, SourceSpec
from velostream.testing.feeds import SourceFeed, Trouble, numbered_rows
from velostream.testing.services.base import LOOPBACK, free_port
from velostream.testing.services.http import HttpServer, Reply, Request

_EVERYTHING = 10_000
"""A resource is fetched as a whole."""
_PAGE = 20
_ARRIVAL_SECONDS = 20.0


class ResourceFeed(SourceFeed):
    """A resource that holds all rows; with `pages` a few on each page."""

    limit_slack = _EVERYTHING
    secrets = ("t0ken",)

    def __init__(self, suffix: str, *, pages: bool = False, **options: str) -> None:
        self._server = HttpServer()
        self._server.start()
        self._suffix = suffix
        self._format = make_format({"json": "json_array"}.get(suffix, suffix), FormatSettings())
        self._options = {name.replace("_", "."): value for name, value in options.items()}
        self._options |= {"http.auth": "bearer", "http.token": self.secrets[0]}
        if pages:
            self._options |= {"http.paging": "page", "http.page.size": str(_PAGE)}
        self._pages = pages
        self._rows = numbered_rows(self.first_number, 0)
        self._bad = b""
        self._server.answer(f"/rows.{suffix}", self._reply)

    def source(self) -> Source:
        return self._source(f"/rows.{self._suffix}")

    def append(self, count: int) -> bool:
        more = numbered_rows(self.first_number + self._rows.num_rows, count)
        self._rows = pa.concat_tables([self._rows, more])
        return True

    def append_bad_record(self) -> bool:
        if self._suffix == "json":
            return False
        self._bad = b"\x00\xff broken\n"
        return True

    def update(self, number: int, name: str) -> bool:
        return self._rewrite(lambda row: row | {"name": name} if row["id"] == number else row)

    def delete(self, number: int) -> bool:
        return self._rewrite(lambda row: None if row["id"] == number else row)

    def missing_source(self) -> Source | None:
        return self._source("/nowhere")

    def troubles(self) -> Sequence[Trouble]:
        return (
            Trouble("the server is away", Category.NETWORK, self._away),
            Trouble("another token", Category.AUTHENTICATION, self._as_another, passes=False),
        )

    def close(self) -> None:
        self._server.stop()

    def _source(self, path: str) -> Source:
        made: Source = load(Group.SOURCES, "http")(SourceSpec("http", self._server.url + path, self._options))
        return made

    @contextmanager
    def _away(self, source: Source) -> Iterator[Source]:
        with self._server.stopped():
            yield source

    @contextmanager
    def _as_another(self, source: Source) -> Iterator[Source]:
        yield type(source)(SourceSpec("http", source.spec.uri, {**source.spec.options, "http.token": "another"}))

    def _reply(self, request: Request) -> Reply:
        if request.headers.get("authorization") != f"Bearer {self.secrets[0]}":
            return Reply(b"who are you?", 401)
        rows = self._rows
        if self._pages:
            rows = rows.slice((int(request.parameters["page"]) - 1) * _PAGE, _PAGE)
        head, bad = (self._format.encode(rows), self._bad) if rows.num_rows else (self._format.encode(rows), b"")
        return Reply(head + bad)

    def _rewrite(self, edit: Callable[[dict[str, Any]], dict[str, Any] | None]) -> bool:
        if self.source().capabilities.emits is not Emits.CHANGES:
            return False
        edited = [row for row in map(edit, self._rows.to_pylist()) if row is not None]
        self._rows = pa.Table.from_pylist(edited, self._rows.schema)
        return True


class ReceivedFeed(SourceFeed):
    """What arrives by itself: `sse` or `webhook`. Somebody listens from the beginning, so that all of it is kept."""

    def __init__(self, folder: Path, mode: str) -> None:
        self._server = HttpServer()
        self._server.start()
        self._mode = mode
        url = self._server.events("/rows") if mode == "sse" else f"http://{LOOPBACK}:{free_port()}/rows"
        self._spool = Spool(folder / "received")
        self._spec = SourceSpec("http", url, {"http.mode": mode, "spool": str(self._spool.directory)})
        self._listener = self.source()
        self._listener.latest_offset(self._listener.initial_offset())
        self._sent = 0
        self._next = self.first_number

    def source(self) -> Source:
        made: Source = load(Group.SOURCES, "http")(self._spec)
        return made

    def append(self, count: int) -> bool:
        lines = make_format("jsonl", FormatSettings()).encode(numbered_rows(self._next, count)).decode().splitlines()
        self._next += count
        self._send(lines)
        return True

    def append_bad_record(self) -> bool:
        self._send(["broken"])
        return True

    def close(self) -> None:
        self._listener.close()
        self._server.stop()

    def _send(self, lines: list[str]) -> None:
        self._sent += len(lines)
        if self._mode == "sse":
            self._server.send("/rows", *lines)
            self._await_arrival()
        else:
            body = "\n".join(lines).encode()
            asked = urllib.request.Request(  # noqa: S310 - our own server
                self._spec.uri, data=body, headers={"Content-Type": "application/x-ndjson"}, method="POST"
            )
            with urllib.request.urlopen(asked, timeout=_ARRIVAL_SECONDS):  # noqa: S310 - likewise
                pass

    def _await_arrival(self) -> None:
        deadline = time.monotonic() + _ARRIVAL_SECONDS
        while sum(self._spool.rows(number) for number in range(1, self._spool.count() + 1)) < self._sent:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._sent} events were sent and did not arrive")
            time.sleep(0.005)
        with self._spool.appending():
            # Whoever wrote the last of them has closed it now.
            return
