"""`mongodb://`: collections and views of MongoDB, read once, polled, or followed by their change streams."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from velostream.errors import OptionError
from velostream.model.mongodb import MongodbAddress
from velostream.model.options import Option, OptionType
from velostream.sources.base import SourceSpec
from velostream.sources.capture import FALLBACK, refuse_what_only_a_log_tells
from velostream.sources.capture_fallback import capture_by_options
from velostream.sources.common import names_of
from velostream.sources.database import DATABASE_OPTIONS, DatabaseSource, ReadingMode
from velostream.sources.mongodb_capture import MongodbCapture
from velostream.sources.mongodb_driver import MongodbDriver, filter_of, order_of

_OF_SQL = ("schema", "query", "query.params", "poll.query", "where", "order.by")
_OF_THE_DRIVER = (
    *("replicaset", "authsource", "authmechanism", "readpreference", "directconnection", "compressors"),
    *("appname", "retryreads", "retrywrites", "w", "maxpoolsize", "ssl"),
    *("tls", "tlscafile", "tlscertificatekeyfile", "tlscertificatekeyfilepassword", "tlsallowinvalidcertificates"),
)


class MongodbSource(DatabaseSource):
    """A collection or view of a MongoDB database; changes are told by replica sets and sharded clusters.

    Delivery guarantee: exactly-once into tables. By `cdc` every change is taken once, and transactions are never
    split, while the server can still show the times that are read. By polling, documents that come and go between two
    looks are never seen.
    """

    driver: MongodbDriver
    kind: ClassVar[str] = "mongodb"
    takes_variables: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        *(option for option in DATABASE_OPTIONS if option.name not in _OF_SQL),
        Option("collection", "the collection or view that is read; table is another name for it"),
        Option("where", "which documents: a filter in extended JSON"),
        Option("order.by", "the order in which documents are read: at DESC, name"),
        Option("projection", "the fields that become columns; all where it isn't given"),
        Option("username", "who to connect as; wins over the address"),
        Option("password", "the password; better ${VARIABLE}"),
        Option("connect.timeout", "how long to wait for the server", OptionType.DURATION, "5s"),
        Option(
            "transaction.isolation",
            "read as of one moment, or documents as they come",
            OptionType.CHOICE,
            "snapshot",
            ("snapshot", "majority"),
        ),
        Option("cdc", "whether to follow the collection by its change stream", OptionType.BOOLEAN, "false"),
        Option("cdc.start", "with initial.load = none: latest, or a time"),
        Option("cdc.start.position", "another name for cdc.start"),
        Option(
            "cdc.on.gap",
            "when changes are lost, or the collection was dropped: fail, or read again",
            OptionType.CHOICE,
            "fail",
            ("fail", "snapshot"),
        ),
        FALLBACK,
        *(Option(name, f"as the driver's {name}") for name in _OF_THE_DRIVER),
    )

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        # What is wrong with them should show before anything is asked.
        with self.driver.failures():
            filter_of(self.selection)
            order_of(self.selection.order_by or "")

    def reach(self) -> tuple[MongodbDriver, str | None]:
        settings = self.settings
        of_the_driver = {name: value for name in _OF_THE_DRIVER if (value := settings.text(name)) is not None}
        address = MongodbAddress.of(
            self.spec.uri,
            username=settings.text("username"),
            password=settings.text("password"),
            settings=of_the_driver,
        )
        fields = names_of(settings.text("projection"))
        if any("." in name or name.startswith("$") for name in fields):
            raise OptionError.value("projection", ", ".join(fields), expected="names of fields, without dots")
        driver = MongodbDriver(
            address,
            timeout=settings.duration("connect.timeout") or timedelta(seconds=5),
            of_one_moment=settings.text("transaction.isolation") == "snapshot",
            fields=fields,
        )
        return driver, settings.text("collection")

    def reading_mode(self) -> ReadingMode:
        if self.settings.boolean("cdc"):
            return capture_by_options(self, MongodbCapture(self))
        refuse_what_only_a_log_tells(self.settings)
        return super().reading_mode()
