"""Python rows as Arrow: the way in for dicts, pandas and Arrow data, and for records decoded value by value."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.conform import ISO_IN_UTC, Reject, TimeRules, cast_column, conform, from_base64
from velostream.model.duration import render_duration
from velostream.model.inference import ObservedType, is_untyped, names_with_values
from velostream.model.schema import Column, Schema
from velostream.model.types import render_type
from velostream.model.variant import encoded, is_variant

_TRUE = ("true", "t", "yes", "1")
_FALSE = ("false", "f", "no", "0")
_EVERY_DIGIT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
"""The default context would round to 28 digits."""


class MisfitError(ValueError):
    """A value that can't be of a column's type without loss."""


def rows_to_arrow(
    rows: Iterable[Mapping[str, Any]] | pa.Table | Any, schema: Schema | None = None, *, further: bool = False
) -> pa.Table:
    """Rows from Python as an Arrow table, of `schema` where given and else of the types the values show; with `further`
    what the rows have beyond `schema` follows its columns, as soon as it has a value.

    Takes dicts, Arrow tables and batches, pandas and Polars frames. Python strings stay STRING whatever they look
    like; a datetime without a zone is UTC. `TableError` names the first row that doesn't fit `schema`.
    """
    table = _as_table(rows)
    if table is None:
        records = [_plain_record(row) for row in rows]
        target = schema or infer_schema(records)
        if further and schema is not None:
            spelled: dict[str, str] = {}
            beyond = [
                {
                    spelled.setdefault(name.lower(), name): value
                    for name, value in record.items()
                    if schema.find(name) is None
                }
                for record in records
            ]
            target = _followed_by(schema, infer_schema(beyond).select(names_with_values(beyond)))
        return records_to_arrow(records, target, _refuse(target))
    target = schema or Schema.from_arrow(table.schema)
    if further and schema is not None:
        target = _followed_by(schema, Schema.from_arrow(pa.schema([f for f in table.schema if not is_untyped(f.type)])))
    return conform(table, target, _refuse(target))


def _followed_by(schema: Schema, others: Schema) -> Schema:
    return Schema((*schema.columns, *(one for one in others.columns if schema.find(one.name) is None)), schema.key)


def infer_schema(records: Iterable[Mapping[str, Any]]) -> Schema:
    """Columns and types of Python records, in the order in which the columns first appear."""
    observed: dict[str, ObservedType] = {}
    for record in records:
        for name, value in record.items():
            column = observed.get(name)
            if column is None:
                column = observed[name] = ObservedType()
            column.observe(value)
    return Schema(tuple(Column(name, column.type()) for name, column in observed.items()))


def records_to_arrow(
    records: Sequence[Mapping[str, Any]], schema: Schema, reject: Reject, *, times: TimeRules = ISO_IN_UTC
) -> pa.Table:
    """Decoded records as a table of exactly `schema`; each record that doesn't fit goes to `reject` and is left out.

    A field is found by its exact name, else without regard to case; one that isn't there is NULL.
    """
    values = {column.name: _column_values(records, column.name) for column in schema.columns}
    return columns_to_arrow(values, schema, reject, times=times)


def columns_to_arrow(
    columns_by_name: Mapping[str, list[Any]], schema: Schema, reject: Reject, *, times: TimeRules = ISO_IN_UTC
) -> pa.Table:
    """Decoded values, a list per column of `schema`, as a table; the rest as `records_to_arrow`."""
    unfit: dict[int, str] = {}
    columns: list[pa.Array] = []
    for column in schema.columns:
        values = columns_by_name[column.name]
        array = _array_at_once(values, column.type, times)
        if array is None:
            array = _fit_each(values, column, unfit, times)
        if not column.nullable and array.null_count:
            for index, value in enumerate(values):
                if value is None:
                    unfit.setdefault(index, f'column "{column.name}" is NOT NULL')
        columns.append(array)
    table = pa.Table.from_arrays(columns, schema=schema.arrow)
    if not unfit:
        return table
    for index in sorted(unfit):
        reject(index, unfit[index])
    return table.take(pa.array([index for index in range(table.num_rows) if index not in unfit], pa.int64()))


def fit_value(value: Any, type_: pa.DataType, *, times: TimeRules = ISO_IN_UTC) -> Any:
    """A Python value in the form Arrow takes for `type_`; `ValueError` when it can't be that."""
    if value is None:
        return None
    fit = _fit_for(type_)
    return fit(value, type_, times)


def json_text(value: Any) -> bytes:
    """A value as JSON; decimals and large whole numbers digit for digit, timestamps in ISO-8601."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_UTC_Z
    try:
        return orjson.dumps(value, default=_json_default, option=options)
    except orjson.JSONEncodeError:
        # orjson refuses integers of more than 64 bits without asking its default hook.
        return orjson.dumps(_with_large_numbers(value), default=_json_default, option=options)


def _as_table(rows: Any) -> pa.Table | None:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    if type(rows).__module__.partition(".")[0] == "pandas":
        return pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    return None


def _plain_record(row: Any) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise TableError(
            f"a row must be a mapping of column names to values, not {type(row).__name__}",
            hint='append([{"id": 1, "name": "a"}])',
            code="wrong-type",
        )
    return {str(name): _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """NumPy scalars as Python values and pandas' missing values as None."""
    module = type(value).__module__
    if module == "numpy":
        return value.tolist()
    return None if module.startswith("pandas.") and type(value).__name__ in ("NaTType", "NAType") else value


def _refuse(schema: Schema) -> Reject:
    def reject(index: int, reason: str) -> None:
        raise TableError(
            f"row {index + 1} does not fit: {reason}",
            detail="expected " + ", ".join(f"{column.name} {column.sql_type}" for column in schema.columns),
            code="wrong-type",
        )

    return reject


def _column_values(records: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    if all(name in record for record in records):
        return [record[name] for record in records]
    lower = name.lower()

    def value_of(record: Mapping[str, Any]) -> Any:
        if name in record:
            return record[name]
        return next((value for key, value in record.items() if key.lower() == lower), None)

    return [value_of(record) for record in records]


def _array_at_once(values: list[Any], type_: pa.DataType, times: TimeRules) -> pa.Array | None:
    """The values as an array when Arrow converts them exactly; it would cut 1.5 to an integer without a word."""
    exact = next((kinds for applies, kinds in _EXACT if applies(type_)), None)
    kinds = set(map(type, values))
    if str in kinds and kinds <= _TEXTS and (pa.types.is_timestamp(type_) or pa.types.is_decimal(type_)):
        try:
            return cast_column(pa.array(values, pa.string()), type_, times=times)
        except (pa.ArrowException, OverflowError):
            return None
    if exact is None or not kinds <= exact:
        return None
    if pa.types.is_timestamp(type_) and times.timezone != "UTC":
        return None
    try:
        return pa.array(values, type_)
    except (pa.ArrowException, OverflowError, ValueError):
        return None


def _fit_each(values: list[Any], column: Column, unfit: dict[int, str], times: TimeRules) -> pa.Array:
    fitted: list[Any] = []
    for index, value in enumerate(values):
        try:
            good = fit_value(value, column.type, times=times)
            pa.scalar(good, column.type)
        except (ValueError, TypeError, OverflowError, InvalidOperation, pa.ArrowException) as error:
            unfit.setdefault(
                index, f'column "{column.name}" is {render_type(column.type)}, not {_shown(value)}: {error}'
            )
            good = None
        fitted.append(good)
    return pa.array(fitted, column.type)


def _fit_for(type_: pa.DataType) -> Callable[[Any, pa.DataType, TimeRules], Any]:
    for applies, fit in _FITS:
        if applies(type_):
            return fit
    return _fit_as_is


def _fit_as_is(value: Any, _type: pa.DataType, _times: TimeRules) -> Any:
    return value


def _fit_text(value: Any, _type: pa.DataType, _times: TimeRules) -> str:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f")
        case datetime() | date() | time():
            return value.isoformat()
        case Mapping() | list() | tuple():
            return json_text(value).decode()
        case bytes():
            return value.decode()
        case _:
            return str(value)


def _fit_boolean(value: Any, _type: pa.DataType, _times: TimeRules) -> bool:
    if isinstance(value, bool):
        return value
    lower = str(value).strip().lower()
    if lower in _TRUE or lower in _FALSE:
        return lower in _TRUE
    raise MisfitError("not a truth value")


def _fit_integer(value: Any, _type: pa.DataType, _times: TimeRules) -> int:
    if isinstance(value, bool):
        raise MisfitError("a truth value is no number")
    number = _number(value)
    if number != number.to_integral_value():
        raise MisfitError("not a whole number")
    return int(number)


def _number(value: Any) -> Decimal:
    try:
        return Decimal(value.strip()) if isinstance(value, str) else Decimal(value)
    except InvalidOperation as error:
        raise MisfitError("not a number") from error


def _fit_double(value: Any, _type: pa.DataType, _times: TimeRules) -> float:
    if isinstance(value, bool):
        raise MisfitError("a truth value is no number")
    return float(value)


def _fit_decimal(value: Any, type_: pa.DataType, _times: TimeRules) -> Decimal:
    if isinstance(value, bool):
        raise MisfitError("a truth value is no number")
    number = _number(repr(value) if isinstance(value, float) else value)
    if not number.is_finite():
        raise MisfitError("not a finite number")
    scaled = number.normalize(_EVERY_DIGIT) if -int(number.as_tuple().exponent) > type_.scale else number
    if -int(scaled.as_tuple().exponent) > type_.scale:
        raise MisfitError(f"needs {-int(scaled.as_tuple().exponent)} digits after the point; declare the column wider")
    return scaled


def _fit_date(value: Any, _type: pa.DataType, _times: TimeRules) -> date:
    if isinstance(value, datetime):
        if value.time() != time():
            raise MisfitError("has a time of day")
        return value.date()
    return value if isinstance(value, date) else date.fromisoformat(str(value).strip())


def _fit_timestamp(value: Any, type_: pa.DataType, times: TimeRules) -> datetime:
    if isinstance(value, str):
        moment = _moment(value.strip(), times)
    elif isinstance(value, datetime):
        moment = value
    elif isinstance(value, date):
        moment = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - the zone is set below
    else:
        raise MisfitError("a number is no point in time")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=ZoneInfo(times.timezone))
    moment = moment.astimezone(UTC)
    return moment if type_.tz else moment.replace(tzinfo=None)


def _moment(text: str, times: TimeRules) -> datetime:
    if times.pattern is None:
        return datetime.fromisoformat(text)
    return datetime.strptime(text, times.pattern)  # noqa: DTZ007 - the zone is set by the caller


def _fit_interval(value: Any, _type: pa.DataType, _times: TimeRules) -> timedelta:
    if isinstance(value, timedelta):
        return value
    raise MisfitError("not a length of time")


def _fit_binary(value: Any, _type: pa.DataType, times: TimeRules) -> bytes:
    if isinstance(value, str):
        return from_base64(value) if times.bytes_in_base64 else value.encode()
    if isinstance(value, int):
        raise MisfitError("a number is no bytes")
    return bytes(value)


def _fit_variant(value: Any, _type: pa.DataType, _times: TimeRules) -> dict[str, bytes]:
    return encoded(value)


def _fit_struct(value: Any, type_: pa.DataType, times: TimeRules) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise MisfitError("not an object")
    by_lower = {str(name).lower(): inner for name, inner in value.items()}
    return {field.name: fit_value(by_lower.get(field.name.lower()), field.type, times=times) for field in type_}


def _fit_array(value: Any, type_: pa.DataType, times: TimeRules) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise MisfitError("not a list")
    return [fit_value(inner, type_.value_type, times=times) for inner in value]


def _fit_map(value: Any, type_: pa.DataType, times: TimeRules) -> list[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return [
        (fit_value(key, type_.key_type, times=times), fit_value(item, type_.item_type, times=times))
        for key, item in pairs
    ]


_NONE = type(None)
_TEXTS = {str, _NONE}
_EXACT: tuple[tuple[Callable[[pa.DataType], bool], set[type]], ...] = (
    (pa.types.is_string, {str, _NONE}),
    (pa.types.is_boolean, {bool, _NONE}),
    (pa.types.is_integer, {int, _NONE}),
    (pa.types.is_floating, {float, _NONE}),
    (pa.types.is_decimal, {Decimal, int, _NONE}),
    (pa.types.is_date, {date, _NONE}),
    (pa.types.is_binary, {bytes, _NONE}),
    (pa.types.is_timestamp, {datetime, _NONE}),
)
_FITS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType, TimeRules], Any]], ...] = (
    (pa.types.is_string, _fit_text),
    (pa.types.is_boolean, _fit_boolean),
    (pa.types.is_integer, _fit_integer),
    (pa.types.is_floating, _fit_double),
    (pa.types.is_decimal, _fit_decimal),
    (pa.types.is_date, _fit_date),
    (pa.types.is_timestamp, _fit_timestamp),
    (pa.types.is_duration, _fit_interval),
    (pa.types.is_binary, _fit_binary),
    (is_variant, _fit_variant),
    (pa.types.is_struct, _fit_struct),
    (pa.types.is_map, _fit_map),
    (pa.types.is_list, _fit_array),
)


def _json_default(value: Any) -> Any:
    match value:
        case Decimal():
            return orjson.Fragment(format(value, "f")) if value.is_finite() else None
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return render_duration(value)
        case _:
            return str(value)


def _with_large_numbers(value: Any) -> Any:
    match value:
        case bool():
            return value
        case int():
            return orjson.Fragment(str(value))
        case Mapping():
            return {name: _with_large_numbers(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_with_large_numbers(inner) for inner in value]
        case _:
            return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
