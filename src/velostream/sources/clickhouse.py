"""`clickhouse://`: tables, views and queries of ClickHouse, read once or polled."""

from __future__ import annotations

from typing import ClassVar

from velostream.model.clickhouse import PORT, SCHEMES, SSL_MODE, ClickhouseServer
from velostream.model.options import Option, Options, OptionType
from velostream.model.server import SERVER_OPTIONS, ServerAddress, connect_seconds
from velostream.sources.clickhouse_driver import ClickhouseDriver
from velostream.sources.database import DATABASE_OPTIONS, DatabaseSource

_URL = Option("url", "the address")
_SERVER = tuple(option for option in SERVER_OPTIONS if option.name != "read.replica.url")
_METHODS = {"none": "none", "lz4": "lz4_frame", "zstd": "zstd"}


class ClickhouseSource(DatabaseSource):
    """A table, view, materialized view or query of a ClickHouse server, by its HTTP interface.

    Delivery guarantee: exactly-once into tables; rows that come and go between two looks are never seen. Rows are read
    by one statement, which sees one state; where a large table is read in parts, each part sees a state of its own.
    """

    driver: ClickhouseDriver
    kind: ClassVar[str] = "clickhouse"
    takes_variables: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        *DATABASE_OPTIONS,
        *_SERVER,
        SSL_MODE,
        Option("socket.timeout", "how long the server may stay silent", OptionType.DURATION, "5m"),
        Option("compression", "of the rows on their way", OptionType.CHOICE, "lz4", tuple(_METHODS)),
    )

    def reach(self) -> tuple[ClickhouseDriver, str | None]:
        settings = self.settings
        given = {option.name: settings[option.name] for option in _SERVER if option.name in settings}
        address = ServerAddress.of(
            Options({"url": self.spec.uri, **given}, (*SERVER_OPTIONS, _URL)), schemes=SCHEMES, port=PORT
        )
        silence = settings.duration("socket.timeout")
        server = ClickhouseServer.at(
            address,
            ssl_mode=settings.text("ssl.mode"),
            connect_seconds=connect_seconds(settings),
            wait_seconds=300.0 if silence is None else silence.total_seconds(),
        )
        compression = _METHODS[(settings.text("compression") or "lz4").lower()]
        return ClickhouseDriver(server, compression, settings.text("timezone") or "UTC"), None
