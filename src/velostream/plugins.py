"""Names to classes: built-in kinds and those of installed plug-ins, found the same way.

A kind is named by a table of `module:Class` strings here or by an entry point of the groups
`velostream.sources`, `velostream.tables`, `velostream.sinks`. Nothing is imported before it is asked for,
so a missing driver of one kind never disturbs another.
"""

from __future__ import annotations

import importlib
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from velostream.errors import NotFoundError


class Group(StrEnum):
    SOURCES = "velostream.sources"
    TABLES = "velostream.tables"
    SINKS = "velostream.sinks"


_BUILT_IN: dict[Group, dict[str, str]] = {
    Group.SOURCES: {
        "abfs": "velostream.sources.abfs:AbfsSource",
        "clickhouse": "velostream.sources.clickhouse:ClickhouseSource",
        "file": "velostream.sources.files:FileSource",
        "gs": "velostream.sources.gs:GsSource",
        "http": "velostream.sources.http:HttpSource",
        "kafka": "velostream.sources.kafka:KafkaSource",
        "memory": "velostream.sources.memory:MemorySource",
        "mongodb": "velostream.sources.mongodb:MongodbSource",
        "mysql": "velostream.sources.mysql:MysqlSource",
        "postgres": "velostream.sources.postgres:PostgresSource",
        "s3": "velostream.sources.s3:S3Source",
        "redis": "velostream.sources.redis:RedisSource",
        "sql": "velostream.sources.sql:SqlSource",
        "rate": "velostream.sources.generator:GeneratorSource",
        "generator": "velostream.sources.generator:GeneratorSource",
    },
    Group.TABLES: {
        "cache": "velostream.tables.cache:CacheTable",
        "clickhouse": "velostream.tables.clickhouse:ClickhouseTable",
        "delta": "velostream.tables.delta:DeltaTable",
        "inmemory": "velostream.tables.memory.table:MemoryTable",
        "jdbc": "velostream.tables.jdbc:JdbcTable",
        "mongodb": "velostream.tables.mongodb.table:MongodbTable",
        "redis": "velostream.tables.redis.table:RedisTable",
        "sqlite": "velostream.tables.sqlite:SqliteTable",
        "postgres": "velostream.tables.postgres:PostgresTable",
        "mysql": "velostream.tables.mysql:MysqlTable",
    },
    Group.SINKS: {
        "abfs": "velostream.sinks.objects:AbfsSink",
        "clickhouse": "velostream.sinks.clickhouse:ClickhouseSink",
        "file": "velostream.sinks.files:FileSink",
        "gs": "velostream.sinks.objects:GsSink",
        "http": "velostream.sinks.http:HttpSink",
        "console": "velostream.sinks.console:ConsoleSink",
        "kafka": "velostream.sinks.kafka:KafkaSink",
        "memory": "velostream.sinks.memory:MemorySink",
        "s3": "velostream.sinks.objects:S3Sink",
    },
}


@cache
def _registry(group: Group) -> dict[str, str]:
    found = {point.name.lower(): point.value for point in entry_points(group=group.value)}
    return found | _BUILT_IN[group]


def names(group: Group) -> list[str]:
    """All kinds of a group, built-in and plugged in."""
    return sorted(_registry(group))


def load(group: Group, name: str) -> Any:
    """The class of a kind; `NotFoundError` with near names when there is none."""
    target = _registry(group).get(name.lower())
    if target is None:
        raise NotFoundError.of(group.name.lower().rstrip("s"), name, known=names(group))
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
