"""`redis://`: streams of Redis, followed entry by entry, and hashes by the beginning of their names, read or polled."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import ClassVar

from velostream.errors import OptionError
from velostream.model.options import SYSTEM_COLUMNS, Option, Options, OptionType
from velostream.model.schema import Schema
from velostream.model.server import SERVER_OPTIONS, ServerAddress, connect_seconds
from velostream.sources.base import Offset, SourceSpec
from velostream.sources.common import OFFSET_RESET, begins_at_latest, emits_of, names_of
from velostream.sources.database import DATABASE_OPTIONS, DatabaseSource, ReadingMode
from velostream.sources.redis_driver import RedisDriver
from velostream.sources.redis_stream import OF_ENTRIES, RedisStream

_SCHEMES = ("redis", "rediss")
_PORT = 6379
_URL = Option("url", "the address")
_SERVER = tuple(option for option in SERVER_OPTIONS if option.name not in ("read.replica.url", "connect.timeout"))
_TAKEN = (
    *("bad.records", "max.rows.per.trigger", "record.schema", "timezone", "key", "limit", "watch", "fetch.size"),
    *("database.wait.timeout", "database.retry.interval", "database.retry.*"),
)
_STREAM_POLL, _HASHES_POLL = timedelta(milliseconds=100), timedelta(seconds=30)


class RedisSource(DatabaseSource):
    """A stream, or the hashes whose names begin alike; from Redis 6.2 on.

    Delivery guarantee: exactly-once into tables, for entries of a stream that aren't trimmed before they are read.
    Hashes that come and go between two looks are never seen.
    """

    driver: RedisDriver
    mode: ReadingMode
    kind: ClassVar[str] = "redis"
    takes_variables: ClassVar[bool] = True
    options: ClassVar[tuple[Option, ...]] = (
        *(option for option in DATABASE_OPTIONS if option.name in _TAKEN),
        *_SERVER,
        OFFSET_RESET,
        Option("stream", "the stream that is followed"),
        Option("prefix", "what the names of the hashes begin with that are read"),
        Option("poll.interval", "how often to look: 100ms for streams, 30s for hashes", OptionType.DURATION),
        Option("changelog", "entries are rows, or new values", OptionType.CHOICE, "append", ("append", "upsert")),
        Option("connect.timeout", "how long to wait for the server", OptionType.DURATION, "5s"),
        Option("socket.timeout", "how long the server may stay silent", OptionType.DURATION, "60s"),
        Option("ssl.mode", "disable, require or verify", OptionType.CHOICE, choices=("disable", "require", "verify")),
        Option(SYSTEM_COLUMNS, "system columns that are asked for, set by planning"),
    )

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        self._from_latest, self.warnings = begins_at_latest(self.settings.text("auto.offset.reset"))

    def reach(self) -> tuple[RedisDriver, str | None]:
        settings = self.settings
        stream, prefix = settings.text("stream"), settings.text("prefix")
        if (stream is None) == (prefix is None):
            raise OptionError(
                "a redis source needs a stream or a prefix"
                if stream is None
                else "stream and prefix exclude each other",
                hint="WITH ('stream' = 'orders'), or WITH ('prefix' = 'user:') for hashes",
                code="invalid-option",
            )
        key = names_of(settings.text("key")) or ("_key",)
        if prefix is not None and len(key) > 1:
            raise OptionError.value("key", ",".join(key), expected="one column, which gets what follows the prefix")
        mode = settings.text("ssl.mode") or ("require" if self.spec.uri.startswith("rediss:") else "disable")
        silence = settings.duration("socket.timeout") or timedelta(seconds=60)
        driver = RedisDriver(
            _address(self.spec.uri, settings),
            key=key[0],
            secure=mode != "disable",
            verify=mode == "verify",
            connect_seconds=connect_seconds(settings),
            wait_seconds=silence.total_seconds(),
            timezone=settings.text("timezone") or "UTC",
        )
        return driver, stream or prefix

    def reading_mode(self) -> ReadingMode:
        if self.settings.text("stream") is None:
            return super().reading_mode()
        return RedisStream(self, emits=emits_of(self.settings.text("changelog")))

    @property
    def poll_interval(self) -> timedelta:
        usual = _STREAM_POLL if isinstance(self.mode, RedisStream) else _HASHES_POLL
        return self.settings.duration("poll.interval") or usual

    @property
    def begins_at_latest(self) -> bool:
        return self._from_latest and isinstance(self.mode, RedisStream)

    @property
    def system_columns(self) -> tuple[str, ...]:
        """Those of a stream that the query names, unless the columns are declared: then all are shown."""
        if self._declared is not None or not isinstance(self.mode, RedisStream):
            return ()
        named = {name.lower() for name in (*names_of(self.settings.text(SYSTEM_COLUMNS)), *self.key)}
        return tuple(name for name in OF_ENTRIES if name in named)

    def schema(self) -> Schema | None:
        if not isinstance(self.mode, RedisStream):
            return super().schema()
        found = self.mode.schema()
        found = self._declared or found
        if found is None:
            return None
        added = [OF_ENTRIES[name] for name in self.system_columns]
        own = [column for column in found.columns if column.name.lower() not in self.system_columns]
        return Schema((*own, *added)).with_key(self.key)

    def initial_offset(self) -> Offset:
        return self.mode.first(latest=self._from_latest) if isinstance(self.mode, RedisStream) else None


def _address(uri: str, settings: Options) -> ServerAddress:
    """The server; without a number of a database it is the first one."""
    given = {option.name: settings[option.name] for option in _SERVER if option.name in settings}
    bare = re.sub(r"\$\{[^}]*\}", "", uri.partition("://")[2])
    if "database" not in given and not bare.partition("/")[2].strip("/"):
        given["database"] = "0"
    return ServerAddress.of(Options({"url": uri, **given}, (*SERVER_OPTIONS, _URL)), schemes=_SCHEMES, port=_PORT)
