"""Which queries may run in Real-Time Mode, and what Spark is told to do for them.

Real-Time Mode takes Spark's own operators and Spark's own connector alone. So everything about the statement is either
said in Spark's SQL, with the values that the other way would give, or refused with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.engine.functions import calls
from velostream.engine.relations import quoted
from velostream.errors import UnsupportedError, present
from velostream.model.kafka import TopicAddress
from velostream.model.kafka_java import java_properties
from velostream.model.schema import Schema
from velostream.sinks.kafka import KafkaSink
from velostream.sources.base import Emits, Offset, Source
from velostream.sources.kafka import KafkaSource
from velostream.sources.kafka_messages import OF_MESSAGES
from velostream.sql import native_json
from velostream.sql.path_values import JSON_VALUES
from velostream.sql.plan import QueryPlan, RelationKind, Strategy
from velostream.sql.statements import SourceRef

if TYPE_CHECKING:
    from velostream.engine.binding import BoundQuery
    from velostream.model.options import Options
    from velostream.sinks.base import Sink

REALTIME = "realtime"
BAD_RECORD = "velostream-bad-record"
"""What the message of a query begins with that a bad record has ended; JSON follows, up to the next such word."""
EXPLAINED = (
    ("trigger", "realtime: Spark's Real-Time Mode, in a Spark of its own beside the one of other queries"),
    ("guarantee", "at-least-once: what came in the last seconds before a stop or a crash may be written again"),
)
"""What EXPLAIN says more of such a query."""

MESSAGES = "velostream_messages"
_KEY, _HEADERS, _TIMESTAMP = "_key", "_headers", "_timestamp"
_FORMATS = ("json", "string")
_LEAVE_OUT = "leave trigger out, and the query runs as fast as it can, with poll.interval (100ms) between two looks"
_NATIVE = {
    "encoding": ("utf-8", "utf8"),
    "schema.evolution": ("ignore",),
    "timezone": ("UTC",),
}
"""Options of records, and the values that Spark's own expressions serve."""
_NEEDS_US = (
    "timestamp.format",
    "schema.registry.url",
    "max.rows.per.trigger",
    "poll.interval",
)
"""Options that only our reading and writing of messages know."""


@dataclass(frozen=True)
class RealtimeJob:
    """What the Spark of one query does, JSON-safe."""

    name: str
    reads: Mapping[str, str]
    """Options of Spark's reader."""
    writes: Mapping[str, str]
    decoded: str
    """SQL over `MESSAGES` that gives the columns of the stream."""
    relation: str
    """The name of the stream in `sql`."""
    sql: str
    width: int
    """How many columns `sql` gives."""
    encoded: tuple[str, ...]
    """SQL over its columns `c0`, `c1`, … that gives the parts of a message."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> RealtimeJob:
        return cls(**{**form, "encoded": tuple(form["encoded"])})


def refuse_plan(plan: QueryPlan, target: object, functions: Iterable[str]) -> None:
    """Raise `unsupported-trigger` for a query that Real-Time Mode can't run, whatever its source holds.

    `functions` are the names of those in Python.
    """
    if not isinstance(target, SourceRef) or target.kind != KafkaSink.kind:
        into = target.kind if isinstance(target, SourceRef) else "a table"
        raise refused(f"it writes into {into}, and Real-Time Mode writes into topics of Kafka alone")
    if not any(one.target.kind is RelationKind.STREAM for one in plan.inputs):
        raise refused("it reads no stream, and Real-Time Mode follows one")
    if plan.strategy is not Strategy.MAP or plan.map is None:
        raise refused(
            f'its strategy is "{plan.strategy}" ({plan.reason}), and only projections and filters of one stream run '
            "in Real-Time Mode: no aggregates, DISTINCT, windows or joins"
        )
    beside = [one.target.name for one in plan.inputs if one.target.kind is not RelationKind.STREAM]
    if beside or len(plan.inputs) > 1:
        names = ", ".join(f'"{name}"' for name in beside or [one.target.name for one in plan.inputs])
        raise refused(f"it reads {names}: a join or subquery takes a stage in Python, which Real-Time Mode can't have")
    if plan.limit is not None:
        raise refused("it has a LIMIT, and Real-Time Mode has no end")
    sql = plan.map.sql
    if calls(sql, JSON_VALUES):
        raise refused("it follows paths in JSON texts, which is done in Python")
    python = next((name for name in functions if calls(sql, name)), None)
    if python is not None:
        raise refused(f'it calls "{python}", which is a function in Python')


def refuse_source(source: Source) -> KafkaSource:
    """The source, if Spark's own connector and expressions read it as ours do; else `unsupported-trigger`."""
    if not isinstance(source, KafkaSource):
        raise refused(f"it reads from {source.spec.kind}, and Real-Time Mode reads from topics of Kafka alone")
    _refuse_options(source.settings)
    if source.capabilities.emits is not Emits.APPENDS:
        raise refused("messages of its source are changes, and Real-Time Mode takes events alone")
    if source.settings.text("bad.records") == "dead_letter":
        raise refused(
            "Real-Time Mode can't set bad records aside as dead letters",
            hint="WITH ('bad.records' = 'skip') leaves them out, WITH ('bad.records' = 'fail') ends the query",
        )
    return source


def job_of(name: str, bound: BoundQuery, source: Source, sink: Sink, *, start: Offset) -> RealtimeJob:
    """What Spark does for a query whose plan isn't refused; `unsupported-trigger` if it can't do just that."""
    reader = refuse_source(source)
    if not isinstance(sink, KafkaSink):
        raise refused(f"it writes into {sink.spec.kind}, and Real-Time Mode writes into topics of Kafka alone")
    _refuse_options(sink.settings)
    plan = present(bound.plan.map)
    _, schema = bound.driving_source
    try:
        decoded = _decoded(reader, schema)
        encoded = _encoded(sink, bound.schema)
    except native_json.CannotReadError as error:
        raise refused(str(error)) from error
    address = TopicAddress.of(reader.spec.uri, reader.settings)
    topic = address.topic
    starting = {topic: start["partitions"]}
    isolation = reader.settings.text("isolation.level") or "read_committed"
    consumer = {
        # A broker that is away shows within seconds instead of minutes.
        "default.api.timeout.ms": "10000",
        "request.timeout.ms": "8000",
        "fetch.max.wait.ms": "100",
        **java_properties(address.brokers, reader.settings),
        "isolation.level": isolation,
    }
    target = TopicAddress.of(sink.spec.uri, sink.settings)
    producer = {"linger.ms": "0", **java_properties(target.brokers, sink.settings)}
    return RealtimeJob(
        name=name,
        reads={
            **_prefixed(consumer),
            "subscribe": topic,
            "startingOffsets": json.dumps(starting),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "fetchOffset.numRetries": "1",
        },
        writes={**_prefixed(producer), "topic": target.topic, "includeHeaders": "true"},
        decoded=decoded,
        relation=plan.driving,
        sql=plan.sql,
        width=len(bound.schema.columns),
        encoded=encoded,
    )


def refused(reason: str, *, hint: str = _LEAVE_OUT) -> UnsupportedError:
    """The error of a statement that can't run in Real-Time Mode."""
    return UnsupportedError(
        "the query can't be triggered in real time", detail=reason, hint=hint, code="unsupported-trigger"
    )


def _prefixed(properties: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in properties.items()}


def _refuse_options(settings: Options) -> None:
    """`settings` are those of a source or a sink."""
    format_ = (settings.text("format") or "json").lower()
    if format_ not in _FORMATS:
        raise refused(f'Spark has no decoder of its own for the format "{format_}"; it has for {", ".join(_FORMATS)}')
    for name in settings:
        value = settings.text(name) or ""
        if name in _NEEDS_US:
            raise refused(f'option "{name}" is known to our own reading and writing of messages alone')
        served = _NATIVE.get(name)
        if served is not None and value.lower() not in (one.lower() for one in served):
            raise refused(f'option "{name}" is "{value}", and Spark serves "{served[0]}" alone as we do')


def _decoded(source: KafkaSource, schema: Schema) -> str:
    """SQL from messages to the columns of the stream."""
    body = Schema(tuple(column for column in schema.columns if column.name not in OF_MESSAGES))
    for column in schema.columns:
        expected = OF_MESSAGES.get(column.name)
        if expected is not None and expected.type != column.type:
            raise refused(f'column "{column.name}" is declared as {column.sql_type}, not {expected.sql_type}')
    if not body.columns:
        records = native_json.empty_records_of("value")
    elif source.settings.text("format") == "string":
        if [column.type for column in body.columns] != [pa.string()]:
            raise refused("messages of the format string are one column of the type STRING")
        records = native_json.texts_of("value")
    else:
        records = native_json.records_of(body, "value")
    numbers = {column.name: number for number, column in enumerate(body.columns)}
    items = [
        f"{f'r.c{numbers[column.name]}' if column.name in numbers else _SYSTEM[column.name]} AS {quoted(column.name)}"
        for column in schema.columns
    ]
    place = "concat(topic, '/', partition, '@', offset)"
    told = f"to_json(named_struct('position', {place}, 'reason', r.problem))"
    failing = f"raise_error(concat('{BAD_RECORD} ', {told}, ' {BAD_RECORD}'))"
    skipped = source.settings.text("bad.records") == "skip"
    bad = f"WHEN r.problem LIKE '{native_json.BAD}%' THEN false " if skipped else ""
    return (
        f"SELECT {', '.join(items)} FROM {MESSAGES} LATERAL VIEW explode({records}) AS r "
        f"WHERE CASE WHEN r.problem IS NULL THEN true {bad}ELSE {failing} END"
    )


def _encoded(sink: KafkaSink, schema: Schema) -> tuple[str, ...]:
    """SQL for the parts of a message, of the result's columns `c0`, `c1` and so on."""
    names = schema.names
    if len(set(names)) < len(names):
        raise refused("two columns of its result have the same name")
    columns = {column.name: (f"c{number}", column.type) for number, column in enumerate(schema.columns)}
    if _TIMESTAMP in columns:
        raise refused('Spark\'s connector takes no timestamps, and "_timestamp" would be one')
    body = [(name, *found) for name, found in columns.items() if name not in (_KEY, _HEADERS)]
    if not body:
        raise refused("its result has no column for the value of a message")
    if sink.settings.text("format") == "string":
        if [type_ for _, _, type_ in body] != [pa.string()]:
            raise refused("messages of the format string are one column of the type STRING")
        value = body[0][1]
    else:
        value = native_json.object_text(body)
    parts = [f"CAST({value} AS BINARY) AS value"]
    key = (_KEY,) if _KEY in columns else sink.key_columns
    if len(key) == 1:
        sql, type_ = columns[key[0]]
        text = sql if pa.types.is_binary(type_) else native_json.bare_text(sql, type_)
        parts.append(f"CAST({text} AS BINARY) AS key")
    elif key:
        for name in key:
            native_json.bare_text(*columns[name])
        parts.append(f"CAST({native_json.object_text([(name, *columns[name]) for name in key])} AS BINARY) AS key")
    if _HEADERS in columns:
        header = "named_struct('key', h.key, 'value', CAST(h.value AS BINARY))"
        parts.append(f"transform(map_entries({columns[_HEADERS][0]}), h -> {header}) AS headers")
    return tuple(parts)


def _as_text(sql: str) -> str:
    """Bytes as text; what isn't UTF-8 in hexadecimal."""
    text = f"CAST({sql} AS STRING)"
    return f"CASE WHEN is_valid_utf8({text}) THEN {text} ELSE concat('\\\\x', lower(hex({sql}))) END"


_SYSTEM = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_timestamp": "CASE WHEN timestampType >= 0 THEN timestamp END",
    "_key": _as_text("key"),
    # Of several headers with one name the last counts, at the place of the first.
    "_headers": (
        "map_from_entries(transform(array_distinct(transform(headers, h -> h.key)), k -> "
        f"named_struct('key', k, 'value', {_as_text('element_at(filter(headers, h -> h.key = k), -1).value')})))"
    ),
}
"""SQL over Spark's columns of a message for each of our system columns."""
