"""Server-sent events: a connection that is held, and made again from the last event on when it breaks off."""

from __future__ import annotations

import re
import socket
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from velostream.errors import SourceError, VelostreamError
from velostream.model.http import HttpClient
from velostream.model.retry import RetryPolicy
from velostream.sources.http_receivers import Arrival, Inbox, Receiver, RecordCutter

if TYPE_CHECKING:
    import httpx

LAST_EVENT = "event"
"""Under this name the spool remembers the id of the last event that it holds."""
_RETRY = RetryPolicy(interval=timedelta(milliseconds=500), multiplier=2, max_delay=timedelta(seconds=15))
_SETTLED_SECONDS = 10.0
_BYTE_ORDER_MARK = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")
"""A carriage return at the end of a piece may be half of a line end."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event, as the server wrote it."""

    data: str
    id: str | None = None
    """The last id that was sent, with this event or before it."""


class EventParser:
    """Finds the events in a text that comes in pieces."""

    def __init__(self) -> None:
        self._rest = ""
        self._begun = False
        self._data: list[str] = []
        self._last: str | None = None

    def feed(self, text: str) -> list[Event]:
        """The events that are complete with this piece; one is when the empty line after it is there."""
        found: list[Event] = []
        if text and not self._begun:
            self._begun = True
            text = text.removeprefix(_BYTE_ORDER_MARK)
        *lines, self._rest = _LINE_END.split(self._rest + text)
        for line in lines:
            if line:
                self._take(line)
            elif self._data:
                found.append(Event("\n".join(self._data), self._last))
                self._data = []
        return found

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._last = value


class EventReceiver(Receiver):
    """Listens to one address. Asks for what came after the last event it has, if the server numbers its events.

    Without such numbers, events that are sent between two connections are lost.
    """

    def __init__(self, client: HttpClient, inbox: Inbox, cutter: RecordCutter) -> None:
        self._client = client
        self._inbox = inbox
        self._cutter = cutter
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._response: httpx.Response | None = None
        self._thread = threading.Thread(target=self._run, name=f"events of {client.address.shown}", daemon=True)

    def start(self) -> None:
        """Returns when the server has answered, or failed to; what it said then is the `trouble`."""
        self._thread.start()
        self._settled.wait(_SETTLED_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        response = self._response
        if response is not None:
            _hang_up(response)
        self._thread.join(timeout=5)

    def _run(self) -> None:
        attempts = 0
        while not self._stopping.is_set():
            try:
                # That a server ends a stream now and then is no trouble: it is there when it is asked again.
                self._listen()
            except VelostreamError as error:
                self.trouble = error
            except Exception as error:  # noqa: BLE001 - whatever it is must show, and not end the thread
                self.trouble = SourceError(
                    f'events of "{self._client.address.shown}" can\'t be kept',
                    detail=self._client.without_secrets(f"{type(error).__name__}: {error}"),
                    hint="check that there is room on the disk of the state directory",
                )
            attempts = 1 if self._response is not None else attempts + 1
            self._response = None
            self._settled.set()
            self._stopping.wait(_RETRY.delay(attempts).total_seconds())
        self._client.close()

    def _listen(self) -> None:
        with self._client.listening(self._headers()) as response:
            content_type = response.headers.get("content-type", "")
            if "event-stream" not in content_type:
                raise self._client.unexpected(f'it is "{content_type}", not "text/event-stream"')
            self._response = response
            self.trouble = None
            self._settled.set()
            parser = EventParser()
            for text in response.iter_text():
                if self._stopping.is_set():
                    return
                arrivals = [self._arrival(event) for event in parser.feed(text)]
                if arrivals:
                    self._inbox.put(*arrivals)

    def _arrival(self, event: Event) -> Arrival:
        records = self._cutter.records_of(event.data.encode())
        if event.id is None:
            return Arrival(records, f"{self._client.address.shown} event")
        return Arrival(records, f"{self._client.address.shown} event {event.id}", {LAST_EVENT: event.id})

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "text/event-stream", "cache-control": "no-store"}
        newest = self._inbox.spool.count()
        last = self._inbox.spool.note(newest).get(LAST_EVENT) if newest else None
        return headers if last is None else headers | {"last-event-id": last}


def _hang_up(response: httpx.Response) -> None:
    """End a connection that another thread is reading from, which closing it would not."""
    stream: Any = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The server was faster.
            return
