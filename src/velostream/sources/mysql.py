"""`mysql://`: tables and queries of MySQL and MariaDB, read once, polled, or followed through the binary log."""

from __future__ import annotations

from typing import ClassVar

from velostream.model.mysql import PORT, SCHEMES, SSL_OPTIONS, ssl_arguments
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.model.server import SERVER_OPTIONS, connect_seconds, server_and_table
from velostream.sources.capture import CAPTURE_OPTIONS, refuse_what_only_a_log_tells
from velostream.sources.capture_fallback import capture_by_options
from velostream.sources.database import DATABASE_OPTIONS, DatabaseSource, ReadingMode
from velostream.sources.mysql_capture import MysqlCapture
from velostream.sources.mysql_driver import MysqlDriver


class MysqlSource(DatabaseSource):
    """A table, view or query of a MySQL or MariaDB database.

    Delivery guarantee: exactly-once into tables. By `cdc` every change is taken once, and transactions are never
    split. By polling, rows that come and go between two looks are never seen.
    """

    driver: MysqlDriver
    kind: ClassVar[str] = "mysql"
    takes_variables: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        # Sessions can't share what they see, so a table of one moment is read by one of them.
        *(option for option in DATABASE_OPTIONS if option.name != "parallel.readers"),
        *(option for option in SERVER_OPTIONS if option.name != "read.replica.url"),
        *SSL_OPTIONS,
        Option("query.timeout", "how long a statement may take", OptionType.DURATION),
        Option("cdc", "whether to follow the table through the server's binary log", OptionType.BOOLEAN, "false"),
        Option("cdc.start", "with initial.load = none: latest, earliest, or a position in the log, file:position"),
        *CAPTURE_OPTIONS,
        Option("binlog.file", "with initial.load = none: the file of the log to begin with, or auto"),
        Option("binlog.position", "where in that file, or auto"),
    )

    def reach(self) -> tuple[MysqlDriver, str | None]:
        address, table = server_and_table(self.spec.uri, self.settings, schemes=SCHEMES, port=PORT)
        query_timeout = self.settings.duration("query.timeout")
        driver = MysqlDriver(
            address,
            parameters=ssl_arguments(self.settings),
            connect_seconds=connect_seconds(self.settings),
            query_seconds=0.0 if query_timeout is None else query_timeout.total_seconds(),
            timezone=self.settings.text("timezone") or "UTC",
        )
        return driver, table

    def columns_of(self, schema: Schema) -> tuple[str, ...]:
        """By name even where columns are declared, as some have to be asked for in a way of their own."""
        found = self.discovered()
        return () if found is None else found.names

    def reading_mode(self) -> ReadingMode:
        if self.settings.boolean("cdc"):
            return capture_by_options(self, MysqlCapture(self))
        refuse_what_only_a_log_tells(self.settings)
        return super().reading_mode()
