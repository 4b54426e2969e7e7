"""Rows in events of MySQL's log, read out of their bytes.

mysql-replication describes the columns and could read the rows, too. It takes five times as long, and some values it
takes for others: BINARY without the zeros at its end, the year 0, texts in UTF-16, and dates with a zero in them for
NULL. Texts are given as their bytes in UTF-8, decimals as texts, and a date that is none as the text MySQL writes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

Reader = Callable[[bytes, int], tuple[Any, int]]
"""Reads the value at a position; gives it, and the position after it."""

_TINY, _SHORT, _LONG, _LONGLONG, _INT24 = 1, 2, 3, 8, 9
_FLOAT, _DOUBLE, _DECIMAL, _BIT, _YEAR = 4, 5, 246, 16, 13
_DATE, _TIMESTAMP, _DATETIME, _TIME = 10, 17, 18, 19
_VARCHAR, _BLOB, _STRING, _GEOMETRY = 15, 252, 254, 255
_JSON, _ENUM, _SET = 245, 247, 248

_INTEGER_BYTES = {_TINY: 1, _SHORT: 2, _INT24: 3, _LONG: 4, _LONGLONG: 8}
_DIGITS_PER_GROUP = 9
_BYTES_OF_DIGITS = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_IN_UTF8 = frozenset({"utf8", "utf8mb4", "ascii"})
_UNDEFINED_IN_CP1252 = {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)}


class RowReader:
    """Reads rows of one table as an event describes it. Raises `ValueError` for a type that it doesn't know."""

    def __init__(self, columns: Sequence[Any]) -> None:
        """`columns` are the library's descriptions."""
        self._columns = [(column.name, _reader(column)) for column in columns]

    def images(self, event: Any, bitmaps: Sequence[bytes]) -> Iterator[dict[str, Any]]:
        """The values of an event's rows by column; of an update those before and those after, one by one.

        `bitmaps` say which columns are told, in each of the images that a row has.
        """
        layouts = [[column for at, column in enumerate(self._columns) if is_told(bitmap, at)] for bitmap in bitmaps]
        data = event.packet.packet.get_all_data()
        # The header, and a byte before it, aren't counted.
        position, end = 20 + event.packet.read_bytes, 20 + event.event_size
        while position < end:
            for layout in layouts:
                values, position = _image(data, position, layout)
                yield values


def is_told(bitmap: bytes, at: int) -> bool:
    """Whether the column at a place is among those that events tell."""
    return bool(bitmap[at // 8] >> at % 8 & 1)


def _image(data: bytes, position: int, layout: Sequence[tuple[str, Reader]]) -> tuple[dict[str, Any], int]:
    start = position
    position += (len(layout) + 7) // 8
    nulls = int.from_bytes(data[start:position], "little")
    values: dict[str, Any] = {}
    for name, read in layout:
        if nulls & 1:
            values[name] = None
        else:
            values[name], position = read(data, position)
        nulls >>= 1
    return values, position


def _reader(column: Any) -> Reader:
    code = column.type
    if code in _INTEGER_BYTES:
        return _integer(_INTEGER_BYTES[code], signed=not column.unsigned)
    if code in (_VARCHAR, _STRING):
        reader = _bytes(2 if column.max_length > 255 else 1)
        if column.character_set_name == "binary":
            # The log leaves out the zeros at the end of a BINARY(n).
            return _converted(reader, lambda raw: raw.ljust(column.max_length, b"\0")) if code == _STRING else reader
        return _text(reader, column.character_set_name)
    if code == _BLOB:
        reader = _bytes(column.length_size)
        return reader if column.character_set_name == "binary" else _text(reader, column.character_set_name)
    if code in (_TIMESTAMP, _DATETIME, _TIME):
        return {_TIMESTAMP: _timestamp, _DATETIME: _datetime, _TIME: _time}[code](column.fsp)
    if code in _SIMPLE:
        return _SIMPLE[code]
    made = _MAKERS.get(code)
    if made is None:
        raise ValueError(f'column "{column.name}" is of type {code}')
    return made(column)


def _fixed(form: str) -> Reader:
    unpacked = struct.Struct(form)
    size, unpack_from = unpacked.size, unpacked.unpack_from
    return lambda data, position: (unpack_from(data, position)[0], position + size)


def _integer(size: int, *, signed: bool) -> Reader:
    form = {1: "b", 2: "h", 4: "i", 8: "q"}.get(size)
    if form is not None:
        return _fixed("<" + (form if signed else form.upper()))

    def read(data: bytes, position: int) -> tuple[int, int]:
        after = position + size
        return int.from_bytes(data[position:after], "little", signed=signed), after

    return read


def _bytes(length_size: int) -> Reader:
    def read(data: bytes, position: int) -> tuple[bytes, int]:
        start = position + length_size
        after = start + int.from_bytes(data[position:start], "little")
        return data[start:after], after

    return read


def _converted(reader: Reader, convert: Callable[[Any], Any]) -> Reader:
    def read(data: bytes, position: int) -> tuple[Any, int]:
        value, after = reader(data, position)
        return convert(value), after

    return read


def _text(reader: Reader, encoding: str) -> Reader:
    if encoding in _IN_UTF8:
        return reader
    if encoding == "cp1252":
        return _converted(reader, _of_latin1)
    return _converted(reader, lambda raw: raw.decode(encoding).encode())


def _of_latin1(raw: bytes) -> bytes:
    """MySQL's latin1 is cp1252 with all bytes defined."""
    if raw.isascii():
        return raw
    characters = (_UNDEFINED_IN_CP1252.get(byte) or bytes((byte,)).decode("cp1252") for byte in raw)
    return "".join(characters).encode()


def _decimal(column: Any) -> Reader:
    """Groups of nine digits in four bytes each, fewer at both ends; all bits turned over for what is below zero."""
    before, scale = column.precision - column.decimals, column.decimals
    groups = [before % _DIGITS_PER_GROUP, *[_DIGITS_PER_GROUP] * (before // _DIGITS_PER_GROUP)]
    groups += [*[_DIGITS_PER_GROUP] * (scale // _DIGITS_PER_GROUP), scale % _DIGITS_PER_GROUP]
    sizes = [(_BYTES_OF_DIGITS[digits], 10**digits) for digits in groups if digits]
    size = sum(one for one, _ in sizes)
    positive, inverted = 1 << 8 * size - 1, (1 << 8 * size) - 1

    def read(data: bytes, position: int) -> tuple[str, int]:
        after = position + size
        packed = int.from_bytes(data[position:after], "big") ^ positive
        negative = bool(packed & positive)
        if negative:
            packed ^= inverted
        raw = packed.to_bytes(size, "big")
        number, at = 0, 0
        for group_size, most in sizes:
            number = number * most + int.from_bytes(raw[at : at + group_size], "big")
            at += group_size
        digits = str(number)
        if scale:
            digits = digits.rjust(scale + 1, "0")
            digits = f"{digits[:-scale]}.{digits[-scale:]}"
        return f"-{digits}" if negative else digits, after

    return read


def _date(data: bytes, position: int) -> tuple[date | str, int]:
    packed = int.from_bytes(data[position : position + 3], "little")
    year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
    try:
        return date(year, month, day), position + 3
    except ValueError:
        return f"{year:04d}-{month:02d}-{day:02d}", position + 3


def _fraction(places: int) -> tuple[int, int]:
    """The bytes of a fraction of a second, and what makes them microseconds."""
    size = (places + 1) // 2
    return size, 10 ** (6 - 2 * size)


def _datetime(places: int) -> Reader:
    size, factor = _fraction(places)

    def read(data: bytes, position: int) -> tuple[datetime | str, int]:
        middle = position + 5
        after = middle + size
        packed = int.from_bytes(data[position:middle], "big") - (1 << 39)
        months = packed >> 22
        year, month, day = months // 13, months % 13, packed >> 17 & 31
        hour, minute, second = packed >> 12 & 31, packed >> 6 & 63, packed & 63
        microsecond = int.from_bytes(data[middle:after], "big") * factor
        try:
            return datetime(year, month, day, hour, minute, second, microsecond), after  # noqa: DTZ001 - it has none
        except ValueError:
            return f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}", after

    return read


def _timestamp(places: int) -> Reader:
    size, factor = _fraction(places)

    def read(data: bytes, position: int) -> tuple[datetime | str, int]:
        middle = position + 4
        after = middle + size
        seconds = int.from_bytes(data[position:middle], "big")
        if not seconds:
            return "0000-00-00 00:00:00", after
        microsecond = int.from_bytes(data[middle:after], "big") * factor
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=microsecond), after

    return read


def _time(places: int) -> Reader:
    """As MySQL writes it: `-01:02:03.50`."""
    size, factor = _fraction(places)
    zero = 1 << 8 * size + 23

    def read(data: bytes, position: int) -> tuple[str, int]:
        after = position + 3 + size
        packed = int.from_bytes(data[position:after], "big") - zero
        sign, packed = ("-", -packed) if packed < 0 else ("", packed)
        whole = packed >> 8 * size
        text = f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
        if not places:
            return text, after
        microseconds = (packed & (1 << 8 * size) - 1) * factor
        return f"{text}.{microseconds:06d}"[: places - 6 or None], after

    return read


def _year(data: bytes, position: int) -> tuple[int, int]:
    year = data[position]
    return year + 1900 if year else 0, position + 1


def _bit(column: Any) -> Reader:
    size = column.bytes

    def read(data: bytes, position: int) -> tuple[int, int]:
        return int.from_bytes(data[position : position + size], "big"), position + size

    return read


def _enum(column: Any) -> Reader:
    members = column.enum_values
    return _converted(_integer(column.size, signed=False), lambda number: members[number])


def _set(column: Any) -> Reader:
    members = column.set_values

    def chosen(bits: int) -> str:
        return ",".join(member for at, member in enumerate(members) if bits >> at & 1)

    return _converted(_integer(column.size, signed=False), chosen)


def _json(column: Any) -> Reader:
    from pymysqlreplication.json_binary import parse_json  # type: ignore[import-untyped]

    return _converted(
        _bytes(column.length_size), lambda raw: _json_text(parse_json(raw[0], raw[1:])) if raw else "null"
    )


def _json_text(value: Any) -> str:
    """A document as MySQL writes it; the library gives its texts and names as bytes, and exact numbers as such."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_json_text(name)}: {_json_text(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        value = value.decode()
    return json.dumps(value, ensure_ascii=False, default=str)


_SIMPLE: dict[int, Reader] = {_FLOAT: _fixed("<f"), _DOUBLE: _fixed("<d"), _DATE: _date, _YEAR: _year}
_MAKERS: dict[int, Callable[[Any], Reader]] = {
    _DECIMAL: _decimal,
    _BIT: _bit,
    _ENUM: _enum,
    _SET: _set,
    _JSON: _json,
    _GEOMETRY: lambda column: _bytes(column.length_size),
}
