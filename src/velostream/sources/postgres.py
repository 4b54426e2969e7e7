"""`postgres://`: tables and queries of PostgreSQL, read once, polled, or followed through the log."""

from __future__ import annotations

from typing import ClassVar

from velostream.model.options import Option, OptionType
from velostream.model.server import SERVER_OPTIONS, connect_seconds, server_and_table
from velostream.sources.capture import CAPTURE_OPTIONS, refuse_what_only_a_log_tells
from velostream.sources.capture_fallback import capture_by_options
from velostream.sources.database import DATABASE_OPTIONS, DatabaseSource, ReadingMode
from velostream.sources.postgres_capture import PostgresCapture
from velostream.sources.postgres_driver import PostgresDriver

_SCHEMES = ("postgres", "postgresql")
_PORT = 5432
_SSL = ("ssl.mode", "ssl.cert", "ssl.key", "ssl.rootcert", "ssl.crl")


class PostgresSource(DatabaseSource):
    """A table, view or query of a PostgreSQL database, from version 14 on.

    Delivery guarantee: exactly-once into tables. By `cdc` every change is taken once, and transactions are never
    split. By polling, rows that come and go between two looks are never seen.
    """

    driver: PostgresDriver
    kind: ClassVar[str] = "postgres"
    takes_variables: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        *DATABASE_OPTIONS,
        *(option for option in SERVER_OPTIONS if option.name != "read.replica.url"),
        Option("query.timeout", "how long a statement may take", OptionType.DURATION),
        *(Option(name, f"as libpq's {name.replace('.', '')}") for name in _SSL),
        Option("cdc", "whether to follow the table through the database's log", OptionType.BOOLEAN, "false"),
        Option("cdc.start", "with initial.load = none: latest, earliest (of the slot), or a position in the log"),
        *CAPTURE_OPTIONS,
        Option("slot.name", "the replication slot; made if it isn't there"),
        Option("publication.name", "the publication; made if it isn't there"),
    )

    def reach(self) -> tuple[PostgresDriver, str | None]:
        address, table = server_and_table(self.spec.uri, self.settings, schemes=_SCHEMES, port=_PORT)
        settings = self.settings
        given = {name.replace(".", ""): settings.text(name) for name in _SSL}
        query_timeout = settings.duration("query.timeout")
        driver = PostgresDriver(
            address,
            parameters={name: value for name, value in given.items() if value is not None},
            connect_seconds=connect_seconds(settings),
            query_seconds=0.0 if query_timeout is None else query_timeout.total_seconds(),
            timezone=settings.text("timezone") or "UTC",
            by_log=settings.boolean("cdc"),
        )
        return driver, table

    def reading_mode(self) -> ReadingMode:
        if self.settings.boolean("cdc"):
            return capture_by_options(self, PostgresCapture(self))
        refuse_what_only_a_log_tells(self.settings)
        return super().reading_mode()
