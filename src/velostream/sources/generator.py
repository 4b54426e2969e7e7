r"""`rate://` and `generator://`: synthetic rows for demos and load tests.

    rate://?rows.per.second=1000&rows=100000
    generator://trades?rows=100000&rows.per.second=5000&fields=trade_id:sequence,symbol:choice(AAPL|MSFT),ts:timestamp

`rate` gives `value BIGINT, timestamp TIMESTAMP`. `generator` gives the `fields`, a list of `name:kind(arguments)`:

| kind | column | values |
|---|---|---|
| `sequence`, `sequence(start)`, `sequence(start,step)` | BIGINT | counts from 1 |
| `int(low,high)` | BIGINT | both ends included |
| `decimal(low,high,scale)` | DECIMAL(18,scale) | both ends included |
| `double(low,high)` | DOUBLE | below `high` |
| `choice(a\|b\|c)` | STRING | one of the words |
| `label(prefix,count)` | STRING | `prefix0` to `prefix<count-1>` |
| `boolean`, `boolean(percent)` | BOOLEAN | true in so many of a hundred, default 50 |
| `timestamp`, `timestamp(step)` | TIMESTAMP | when the row is due; with a step, that far apart from the start |
| `date(days)` | DATE | one of so many days from 2024-01-01 on |

Row i depends on `seed` and i alone (its timestamps on the start, too, which the offset carries), so that any range can
be read again and two runs with one seed agree. Without `rows.per.second`, `generator` gives `rows` at once and `rate`
one row per second. Delivery guarantee: exactly-once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from velostream.errors import OptionError, SourceError, ValidationError
from velostream.model.conform import conform
from velostream.model.duration import parse_duration
from velostream.model.options import Option, OptionType
from velostream.model.schema import Column, Schema
from velostream.model.types import TIMESTAMP
from velostream.sources.base import (
    BadRecord,
    Offset,
    OnBad,
    Partition,
    Replay,
    Source,
    SourceCapabilities,
    SourceSpec,
)
from velostream.sources.common import COMMON_OPTIONS, names_of, with_parameters

_ROWS_PER_PARTITION = 250_000
_ROWS_PER_BATCH = 65_536
_DEFAULT_RATE = 1.0
_DEFAULT_FIELDS = "id:sequence,value:int(0,99),at:timestamp"
_RATE_FIELDS = "value:sequence(0),timestamp:timestamp"
_FIRST_DAY = date(2024, 1, 1)
_MICROSECONDS = 1_000_000

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Span:
    """The rows to make, and when each is due."""

    numbers: Numbers
    started: int
    """In microseconds since 1970."""
    microseconds_per_row: float


@dataclass(frozen=True, slots=True)
class Field:
    """One column and how its values come about."""

    column: Column
    values: Callable[[Span], pa.Array]


class GeneratorSource(Source):
    """Rows out of nothing but their numbers. Never ends without `rows`. Delivery guarantee: exactly-once."""

    kind = "generator"
    options = (
        *COMMON_OPTIONS,
        Option("rows.per.second", "how fast rows come", OptionType.NUMBER),
        Option("rows", "how many rows there are in all", OptionType.INTEGER),
        Option("seed", "the same seed gives the same rows", OptionType.INTEGER, "0"),
        Option("fields", "columns to make up: name:kind(arguments), …"),
    )

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(with_parameters(spec))
        written = _RATE_FIELDS if spec.kind == "rate" else self.settings.text("fields") or _DEFAULT_FIELDS
        self._fields = parse_fields(written, seed=self.settings.integer("seed") or 0)
        self._rows = self.settings.integer("rows")
        self._rate = self._rows_per_second()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.spec,)

    @property
    def capabilities(self) -> SourceCapabilities:
        return SourceCapabilities(replay=Replay.FOREVER, incremental=True, follows=True)

    def schema(self) -> Schema:
        made = Schema(tuple(field.column for field in self._fields))
        return (self.spec.columns or made).with_key(names_of(self.settings.text("key")))

    def initial_offset(self) -> Offset:
        return {"rows": 0, "started": time.time_ns() // 1_000}

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        rows, started = _position(start)
        due = self._rows if self._rate is None else self._due(started)
        end = rows if due is None else max(rows, due)
        if self._rows is not None:
            end = min(end, max(rows, self._rows))
        if max_rows is not None:
            end = min(end, rows + max_rows)
        return start if end == rows else {"rows": end, "started": started}

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        first, _ = _position(start)
        last, started = _position(end)
        return [
            Partition({"first": begin, "last": min(begin + _ROWS_PER_PARTITION, last), "started": started})
            for begin in range(first, last, _ROWS_PER_PARTITION)
        ]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        first, last, started = (partition.payload[name] for name in ("first", "last", "started"))
        apart = _MICROSECONDS / self._rate if self._rate else 1_000.0
        for begin in range(first, last, _ROWS_PER_BATCH):
            numbers = np.arange(begin, min(begin + _ROWS_PER_BATCH, last), dtype=np.int64)
            span = Span(numbers, started, apart)
            made = pa.table({field.column.name: field.values(span) for field in self._fields})

            def reject(index: int, reason: str, numbers: Numbers = numbers) -> None:
                on_bad(BadRecord(b"", f"{self.spec.uri} row {numbers[index]}", reason))

            yield from conform(made, schema, reject).to_batches()

    def reached(self, position: Offset, target: Offset) -> bool:
        return _position(position)[0] >= _position(target)[0]

    def _rows_per_second(self) -> float | None:
        written = self.settings.text("rows.per.second")
        if written is None:
            return None if self._rows is not None and self.spec.kind != "rate" else _DEFAULT_RATE
        rate = float(written)
        if not (math.isfinite(rate) and rate > 0):
            raise OptionError.value("rows.per.second", written, expected="a number above 0")
        return rate

    def _due(self, started: int) -> int:
        elapsed = time.time_ns() // 1_000 - started
        return math.floor(elapsed / _MICROSECONDS * (self._rate or 0))


def parse_fields(text: str, *, seed: int) -> tuple[Field, ...]:
    """Fields of `name:kind(arguments), …`; `OptionError` says what is wrong."""
    fields: list[Field] = []
    position = 0
    while position < len(text.strip()):
        match = _FIELD.match(text, position)
        if match is None:
            raise OptionError.value("fields", text[position:], expected="a list of name:kind(arguments)")
        make = _KINDS.get(match["kind"].lower())
        if make is None:
            raise OptionError.value("fields", match["kind"], expected="one of " + ", ".join(_KINDS))
        arguments = [part.strip() for part in re.split(r"[|,]", match["arguments"] or "") if part.strip()]
        try:
            type_, values = make(arguments, _Randomness(seed, len(fields)))
        except (ValueError, TypeError, InvalidOperation, ValidationError) as error:
            raise OptionError.value("fields", match[0].strip(" ,"), expected=f"other arguments: {error}") from error
        fields.append(Field(Column(match["name"], type_), values))
        position = match.end()
    if not fields or len({field.column.name.lower() for field in fields}) < len(fields):
        raise OptionError.value("fields", text, expected="at least one field, each with a name of its own")
    return tuple(fields)


_FIELD = re.compile(r"\s*(?P<name>\w+)\s*:\s*(?P<kind>\w+)\s*(?:\((?P<arguments>[^()]*)\))?\s*(?:,|\Z)")


@dataclass(frozen=True, slots=True)
class _Randomness:
    """Numbers that look random and depend on seed, field and row number alone."""

    seed: int
    field: int

    def below(self, numbers: Numbers, limit: int) -> Numbers:
        """A whole number from 0 up to but not including `limit`, for each row number."""
        return (self._bits(numbers) % np.uint64(limit)).astype(np.int64)

    def fractions(self, numbers: Numbers) -> npt.NDArray[np.float64]:
        """A number from 0 up to but not including 1, for each row number."""
        return (self._bits(numbers) >> np.uint64(11)).astype(np.float64) / float(1 << 53)

    def _bits(self, numbers: Numbers) -> npt.NDArray[np.uint64]:
        """The finalizer of SplitMix64 over a counter: one multiplication chain per row, no state."""
        mask = (1 << 64) - 1
        origin = np.uint64((self.seed * 0x9E3779B97F4A7C15 + (self.field + 1) * 0xD1B54A32D192ED03) & mask)
        mixed = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + origin
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


_Made = tuple[pa.DataType, Callable[[Span], pa.Array]]


def _sequence(arguments: list[str], _: _Randomness) -> _Made:
    start, step = (*[int(argument) for argument in arguments], 1, 1)[:2] if arguments else (1, 1)
    return pa.int64(), lambda span: pa.array(start + span.numbers * step)


def _int(arguments: list[str], random: _Randomness) -> _Made:
    low, high = (int(argument) for argument in arguments)
    _check_order(low, high)
    return pa.int64(), lambda span: pa.array(low + random.below(span.numbers, high - low + 1))


def _decimal(arguments: list[str], random: _Randomness) -> _Made:
    low, high = (Decimal(argument) for argument in arguments[:2])
    scale = int(arguments[2]) if len(arguments) > 2 else 2
    type_ = pa.decimal128(18, scale)
    first, last = (int(edge.scaleb(scale)) for edge in (low, high))
    _check_order(first, last)
    return type_, lambda span: _decimals(first + random.below(span.numbers, last - first + 1), type_)


def _double(arguments: list[str], random: _Randomness) -> _Made:
    low, high = (float(argument) for argument in arguments)
    _check_order(low, high)
    return pa.float64(), lambda span: pa.array(low + random.fractions(span.numbers) * (high - low))


def _choice(arguments: list[str], random: _Randomness) -> _Made:
    if not arguments:
        raise ValueError("choice needs words to choose from")
    words = pa.array(arguments)
    return pa.string(), lambda span: words.take(pa.array(random.below(span.numbers, len(words))))


def _label(arguments: list[str], random: _Randomness) -> _Made:
    prefix, count = arguments[0], int(arguments[1])
    _check_order(1, count)

    def labels(span: Span) -> pa.Array:
        chosen = random.below(span.numbers, count)
        return pa.array(np.char.add(prefix, chosen.astype(str)), pa.string())

    return pa.string(), labels


def _boolean(arguments: list[str], random: _Randomness) -> _Made:
    percent = float(arguments[0]) if arguments else 50.0
    return pa.bool_(), lambda span: pa.array(random.fractions(span.numbers) * 100 < percent)


def _timestamp(arguments: list[str], _: _Randomness) -> _Made:
    step = parse_duration(arguments[0]) / timedelta(microseconds=1) if arguments else None

    def moments(span: Span) -> pa.Array:
        apart = span.microseconds_per_row if step is None else step
        return pa.array(span.started + np.floor(span.numbers * apart).astype(np.int64)).cast(TIMESTAMP)

    return TIMESTAMP, moments


def _date(arguments: list[str], random: _Randomness) -> _Made:
    days = int(arguments[0]) if arguments else 365
    _check_order(1, days)
    first = (_FIRST_DAY - date(1970, 1, 1)).days
    return pa.date32(), lambda span: pa.array((first + random.below(span.numbers, days)).astype(np.int32)).cast(
        pa.date32()
    )


def _check_order(low: float, high: float) -> None:
    if high < low:
        raise ValueError(f"{high} is below {low}")


def _decimals(unscaled: Numbers, type_: pa.DataType) -> pa.Array:
    """Decimals from their digits as whole numbers: 16 bytes each, the sign spread over the upper half."""
    words = np.stack((unscaled, unscaled >> 63), axis=1)
    return pa.Array.from_buffers(type_, len(unscaled), [None, pa.py_buffer(np.ascontiguousarray(words))])


_KINDS: dict[str, Callable[[list[str], _Randomness], _Made]] = {
    "sequence": _sequence,
    "int": _int,
    "decimal": _decimal,
    "double": _double,
    "choice": _choice,
    "label": _label,
    "boolean": _boolean,
    "timestamp": _timestamp,
    "date": _date,
}


def _position(offset: Offset) -> tuple[int, int]:
    try:
        return int(offset["rows"]), int(offset["started"])
    except (TypeError, KeyError) as error:
        raise SourceError(f"{offset!r} is not an offset of a generator", code="invalid-offset") from error
