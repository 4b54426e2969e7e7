"""Single values of Arrow columns, read from their buffers.

Arrow makes an object for every value it gives out one by one; reading its memory costs a fraction of that. The values
are those of `values.python_values`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from velostream.tables.memory.values import decoder_of

Reader = Callable[[int], Any]
"""From a row to its value."""

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - naive datetimes are UTC here
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EXACT = Context(prec=40)
_CODES = {8: "b", 16: "h", 32: "i", 64: "q"}


def reader_of(array: pa.Array, type_: pa.DataType) -> Reader:
    """What reads single values of an array, packed or not, as those of a type; keeps the array's memory alive."""
    if pa.types.is_dictionary(array.type):
        return _through_dictionary(array)
    read = _valid_reader(array)
    if read is not None and pa.types.is_decimal(type_) and pa.types.is_integer(array.type):
        read = _scaled(read, type_.scale)
    if read is None:
        decode = decoder_of(array.type)
        return lambda row: decode(array[row])
    if not array.null_count:
        return read
    bits, first = memoryview(array.buffers()[0]).cast("B"), array.offset
    present = read

    def read_unless_null(row: int) -> Any:
        place = first + row
        return present(row) if bits[place >> 3] >> (place & 7) & 1 else None

    return read_unless_null


def _through_dictionary(array: pa.Array) -> Reader:
    number_at = reader_of(array.indices, array.indices.type)
    value_of = reader_of(array.dictionary, array.dictionary.type)

    def read(row: int) -> Any:
        number = number_at(row)
        return None if number is None else value_of(number)

    return read


def _scaled(read: Reader, scale: int) -> Reader:
    unit, multiply = Decimal(1).scaleb(-scale), _EXACT.multiply
    return lambda row: multiply(Decimal(read(row)), unit)


def _valid_reader(array: pa.Array) -> Reader | None:
    """Reads values that aren't NULL; None for types that Arrow reads."""
    type_ = array.type
    if not len(array):
        return None
    if pa.types.is_string(type_):
        return _texts(array)
    if pa.types.is_binary(type_):
        return _bytes(array)
    if pa.types.is_boolean(type_):
        bits, first = memoryview(array.buffers()[1]).cast("B"), array.offset
        return lambda row: bool(bits[first + row >> 3] >> (first + row & 7) & 1)
    if pa.types.is_signed_integer(type_):
        return _fixed(array, _CODES[type_.bit_width]).__getitem__
    if type_ == pa.float64():
        return _fixed(array, "d").__getitem__
    if pa.types.is_decimal128(type_):
        return _decimals(array)
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        moments = _fixed(array, "q")
        return lambda row: _EPOCH + timedelta(0, 0, moments[row])
    if pa.types.is_date32(type_):
        days = _fixed(array, "i")
        return lambda row: date.fromordinal(_EPOCH_DAY + days[row])
    return None


def _fixed(array: pa.Array, code: str, *, items: int = 1) -> memoryview[Any]:
    size = 8 * items if items > 1 else array.type.bit_width // 8
    first = array.offset * size
    return memoryview(array.buffers()[1])[first : first + len(array) * size].cast("B").cast(code)  # type: ignore[call-overload, no-any-return]


def _texts(array: pa.Array) -> Reader:
    offsets, data = _variable(array)
    return lambda row: str(data[offsets[row] : offsets[row + 1]], "utf-8")


def _bytes(array: pa.Array) -> Reader:
    offsets, data = _variable(array)
    return lambda row: bytes(data[offsets[row] : offsets[row + 1]])


def _variable(array: pa.Array) -> tuple[memoryview[int], memoryview[int]]:
    _, offsets, data = array.buffers()
    first = array.offset * 4
    starts = memoryview(offsets)[first : first + (len(array) + 1) * 4].cast("B").cast("i")
    return starts, memoryview(b"" if data is None else data)


def _decimals(array: pa.Array) -> Reader:
    words = _fixed(array, "q", items=2)
    scale = array.type.scale
    unit, multiply = Decimal(1).scaleb(-scale), _EXACT.multiply

    def read(row: int) -> Decimal:
        low, high = words[2 * row], words[2 * row + 1]
        # Nearly always the number fits the low word, and the high one only repeats its sign.
        number = low if high == low >> 63 else (high << 64) | (low & 0xFFFFFFFFFFFFFFFF)
        return multiply(Decimal(number), unit)

    return read
