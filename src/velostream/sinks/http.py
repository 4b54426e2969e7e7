"""`http://` as a target, a webhook of others: rows are sent as the bodies of requests.

Each request says in `Idempotency-Key` which part of which batch it is, so that a server can tell one that is repeated
after a crash, or because its answer was lost.
Delivery guarantee: at-least-once; exactly-once if the server keeps to `Idempotency-Key`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from velostream.errors import SourceError, StoreError
from velostream.formats.options import DELIMITER, HEADER, format_settings
from velostream.formats.registry import make_format
from velostream.model.change import Epoch
from velostream.model.http import HTTP_OPTIONS, HttpAddress, HttpClient
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec

_CONTENT_TYPES = {"json": "application/json", "jsonl": "application/x-ndjson", "csv": "text/csv"}
_OPTIONS: tuple[Option, ...] = (
    Option("format", "how to write: json is an array of objects", OptionType.CHOICE, "json", tuple(_CONTENT_TYPES)),
    DELIMITER,
    HEADER,
    *HTTP_OPTIONS,
    Option("http.method", "method of the requests", OptionType.CHOICE, "post", ("post", "put", "patch")),
    Option("batch.size", "most rows of a request", OptionType.INTEGER, "1000"),
)


class HttpSink(Sink):
    """One address. Delivery guarantee: at-least-once."""

    kind = "http"
    keeps_parameters: ClassVar[bool] = True
    capabilities = SinkCapabilities(guarantee="at-least-once")
    options = _OPTIONS

    def __init__(self, spec: SinkSpec) -> None:
        address, parameters = HttpAddress.of(spec.uri, _OPTIONS)
        given = {name.lower(): value for name, value in spec.options.items()}
        super().__init__(replace(spec, options=parameters | given))
        self._client = HttpClient(address, self.settings)
        self._method = (self.settings.text("http.method") or "post").upper()
        self._size = self.settings.integer("batch.size") or 1
        name = (self.settings.text("format") or "json").lower()
        self._content_type = _CONTENT_TYPES[name]
        self._format = make_format("json_array" if name == "json" else name, format_settings(self.settings))

    def open(self, schema: Schema) -> None:
        """Nothing can be asked of the server that it wouldn't take for rows."""

    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        try:
            for number, start in enumerate(range(0, rows.num_rows, self._size)):
                part = f"{epoch.writer}-{epoch.number}-{number}"
                headers = {"content-type": self._content_type, "idempotency-key": part}
                body = self._format.encode(rows.slice(start, self._size))
                self._client.ask(method=self._method, headers=headers, body=body)
        except SourceError as error:
            raise StoreError(
                error.message, detail=error.detail, hint=error.hint, code=error.code, category=error.category
            ) from error
        finally:
            # Until the next batch the server would have hung up, and we would find that out by a lost request.
            self._client.close()
