"""Kafka messages to rows: values by their format, what else they have as system columns, tombstones as deletions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.formats.base import Decoded, RecordFormat, Rejected
from velostream.formats.json import parse_json
from velostream.model.change import CHANGE, ORIGIN
from velostream.model.conform import cast_column
from velostream.model.schema import Column, Schema
from velostream.sources.base import BadRecord, Emits, OnBad

if TYPE_CHECKING:
    from confluent_kafka import Message

_INSTANT = pa.timestamp("us", tz="UTC")
OF_MESSAGES = {
    column.name: column
    for column in (
        Column("_topic", pa.string()),
        Column("_partition", pa.int32()),
        Column("_offset", pa.int64()),
        Column("_timestamp", _INSTANT),
        Column("_key", pa.string()),
        Column("_headers", pa.map_(pa.string(), pa.string())),
    )
}
"""System columns: what every message has besides its value."""

_NO_TIMESTAMP = 0
_key_of, _value_of = methodcaller("key"), methodcaller("value")


class MessageDecoder:
    """Decodes messages of one topic into the columns of a schema, followed by what `emits` asks for.

    Upserts come with `_change`, and where `by_message` with `_origin`: the message's key as text. Of a message without
    a key that is its place where the schema has no key, so that it is a row of its own, and nothing where it has one.
    """

    def __init__(
        self,
        format_: RecordFormat,
        schema: Schema,
        emits: Emits,
        *,
        system: Sequence[str],
        topic: str,
        by_message: bool = False,
    ) -> None:
        self._format = format_
        self._schema = schema
        self._emits = emits
        self._topic = topic
        self._system_columns = [column for column in schema.columns if column.name in system]
        self._body = Schema(tuple(column for column in schema.columns if column.name not in system))
        self._target = schema.arrow
        if emits is not Emits.APPENDS:
            self._target = self._target.append(pa.field(CHANGE, pa.int8()))
        self._with_origin = emits is Emits.UPSERTS and (by_message or not schema.key)
        if self._with_origin:
            self._target = self._target.append(pa.field(ORIGIN, pa.string()))

    def decode(self, messages: Sequence[Message], on_bad: OnBad) -> pa.Table:
        """The rows of the messages, in order."""

        def reject(index: int, raw: bytes, reason: str) -> None:
            message = messages[index]
            on_bad(BadRecord(raw, f"{self._topic}/{message.partition()}@{message.offset()}", reason))

        values = pa.array(list(map(_value_of, messages)), pa.binary())
        decoded = self._rows(values, reject)
        if decoded.unpaired and self._emits is Emits.CHANGES and not self._schema.key:
            decoded = _paired(decoded, messages, reject)
        records = decoded.records.to_numpy()
        columns: dict[str, Any] = dict(zip(decoded.rows.column_names, decoded.rows.columns, strict=True))
        columns |= self._system(messages, records)
        if self._emits is Emits.APPENDS:
            rows = self._table(columns)
            return rows.filter(pc.greater(columns[CHANGE], 0)) if CHANGE in columns else rows
        columns.setdefault(CHANGE, pa.repeat(pa.scalar(1, pa.int8()), len(records)))
        if self._with_origin:
            columns[ORIGIN] = self._identities(_chosen(messages, records))
        present = self._table(columns)
        if self._emits is Emits.CHANGES:
            return present
        if not values.null_count:
            return present
        gone, places = self._tombstones(messages, values, reject)
        order = np.argsort(np.concatenate([records, places]), kind="stable")
        return pa.concat_tables([present, gone]).take(order)

    def _rows(self, values: pa.Array, reject: Callable[[int, bytes, str], None]) -> Decoded:
        if self._body.columns:

            def reject_record(found: Rejected) -> None:
                reject(found.place, found.raw, found.reason)

            return self._format.decode(values, self._body, reject_record)
        present = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        return Decoded(pa.table({}), pa.array(present, pa.int64()))

    def _system(self, messages: Sequence[Message], records: np.ndarray[Any, Any]) -> dict[str, pa.Array]:
        """Those system columns that the schema has, for the messages that gave rows."""
        if not self._system_columns:
            return {}
        chosen = _chosen(messages, records)
        return {one.name: cast_column(_system_column(one.name, chosen), one.type) for one in self._system_columns}

    def _table(self, columns: dict[str, Any]) -> pa.Table:
        return pa.table([columns[name] for name in self._target.names], schema=self._target)

    def _tombstones(
        self, messages: Sequence[Message], values: pa.Array, reject: Callable[[int, bytes, str], None]
    ) -> tuple[pa.Table, np.ndarray[Any, Any]]:
        """What messages without a value take away, and which messages they are."""
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        found = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))
        without_value = _chosen(messages, found)
        origins = self._identities(without_value).to_pylist() if self._with_origin else []
        for index, message, origin in itertools.zip_longest(found.tolist(), without_value, origins):
            row: dict[str, Any] = {CHANGE: -1}
            if self._with_origin:
                row[ORIGIN] = origin
            try:
                row |= self._key_of(message) if self._schema.key else {}
            except (ValueError, TypeError, RecursionError, pa.ArrowException) as error:
                if row.get(ORIGIN) is None:
                    reject(index, message.key() or b"", f"a tombstone whose key is not that of a row: {error}")
                    continue
            rows.append(row)
            places.append(index)
        # A tombstone has its key only, whatever the schema says of other columns.
        nullable = pa.schema([field.with_nullable(True) for field in self._target])
        gone = pa.Table.from_pylist(rows, nullable)
        return pa.Table.from_arrays(gone.columns, schema=self._target), np.array(places, np.int64)

    def _identities(self, messages: Sequence[Message]) -> pa.Array:
        """Whose value each message is: its key's; of one without a key its own, unless its columns say whose."""
        of_keys = pc.binary_join_element_wise("=", _keys(messages), "")
        if self._schema.key or not of_keys.null_count:
            return of_keys
        places = [f"{message.partition()}@{message.offset()}" for message in messages]
        return pc.coalesce(of_keys, pa.array(places, pa.string()))

    def _key_of(self, message: Message) -> dict[str, Any]:
        """The key columns' values that a message's key stands for: the text of one column, or a JSON object."""
        key = message.key()
        if key is None:
            raise ValueError("it has none")
        columns = [self._schema.column(name) for name in self._schema.key]
        if [column.name for column in columns] == ["_key"]:
            return {"_key": _text(key)}
        try:
            parsed = parse_json(key)
        except ValueError:
            parsed = key.decode()
        if not isinstance(parsed, dict):
            if len(columns) > 1:
                raise ValueError(f"{key!r} is not a JSON object of {', '.join(self._schema.key)}")
            parsed = {columns[0].name: key.decode() if not isinstance(parsed, str) else parsed}
        by_lower = {name.lower(): value for name, value in parsed.items()}
        missing = [column.name for column in columns if column.name.lower() not in by_lower]
        if missing:
            raise ValueError(f"{key!r} has no {', '.join(missing)}")
        return {column.name: _value(by_lower[column.name.lower()], column) for column in columns}


def _paired(decoded: Decoded, messages: Sequence[Message], reject: Callable[[int, bytes, str], None]) -> Decoded:
    """Without the updates that nothing says the old row of: given alone, the new row would be one more."""
    reason = "an update without the row before, of rows without a key: name it WITH ('key' = …), or log whole rows"
    for index in sorted(decoded.unpaired):
        reject(index, _bytes(messages[index].value()), reason)
    kept = pc.invert(pc.is_in(decoded.records, value_set=pa.array(decoded.unpaired, pa.int64())))
    return Decoded(decoded.rows.filter(kept), decoded.records.filter(kept))


def _bytes(value: bytes | str | None) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _value(value: Any, column: Column) -> Any:
    if value is None:
        return None
    text = value if isinstance(value, str) else str(value)
    return cast_column(pa.array([text]), column.type)[0].as_py()


def _chosen(messages: Sequence[Message], places: np.ndarray[Any, Any]) -> Sequence[Message]:
    return messages if len(places) == len(messages) else [messages[place] for place in places.tolist()]


def _keys(messages: Sequence[Message]) -> pa.Array:
    """The messages' keys as text."""
    keys = list(map(_key_of, messages))
    try:
        return pa.array(keys, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(list(map(_text, keys)), pa.string())


def _text(key: bytes | str | None) -> str | None:
    """A key as text; one that isn't UTF-8 in hexadecimal."""
    if key is None or isinstance(key, str):
        return key
    try:
        return key.decode()
    except UnicodeDecodeError:
        return f"\\x{key.hex()}"


def _system_column(name: str, messages: Sequence[Message]) -> pa.Array:
    type_ = OF_MESSAGES[name].type
    match name:
        case "_topic":
            return pa.array([message.topic() for message in messages], type_)
        case "_partition":
            return pa.array([message.partition() for message in messages], type_)
        case "_offset":
            return pa.array([message.offset() for message in messages], type_)
        case "_timestamp":
            times = [message.timestamp() for message in messages]
            milliseconds = [None if kind == _NO_TIMESTAMP else value for kind, value in times]
            return pa.array(milliseconds, pa.timestamp("ms", tz="UTC")).cast(type_)
        case "_key":
            return _keys(messages)
        case _:
            return pa.array([_headers(message) for message in messages], type_)


def _headers(message: Message) -> list[tuple[str, str | None]] | None:
    """Headers as a map; of several with one name the last counts, as for Kafka's own `lastHeader`."""
    found: Any = message.headers()
    return None if found is None else list({name: _text(value) for name, value in found}.items())
