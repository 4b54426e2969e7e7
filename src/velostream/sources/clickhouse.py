"""`clickhouse://`: tables, views and queries of ClickHouse, read once or polled."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from velostream.model.clickhouse import CONNECTION_OPTIONS, ClickhouseServer
from velostream.model.options import Option, OptionType
from velostream.sources.base import SourceCapabilities
from velostream.sources.clickhouse_driver import ClickhouseDriver
from velostream.sources.database import DATABASE_OPTIONS, DatabaseSource

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
        *CONNECTION_OPTIONS,
        Option("compression", "of the rows on their way", OptionType.CHOICE, "lz4", tuple(_METHODS)),
    )

    @property
    def capabilities(self) -> SourceCapabilities:
        return replace(super().capabilities, native=True)

    def reach(self) -> tuple[ClickhouseDriver, str | None]:
        compression = _METHODS[(self.settings.text("compression") or "lz4").lower()]
        server = ClickhouseServer.of(self.spec.uri, self.settings)
        return ClickhouseDriver(server, compression, self.settings.text("timezone") or "UTC"), None
