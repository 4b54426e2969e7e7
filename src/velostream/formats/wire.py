"""The header that serializers of a schema registry put before a record: a zero byte and the schema's number.

In protobuf the place of the message in its schema follows: how many indices there are and the indices, as zigzag
variable-length integers; a single zero stands for the first message.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc

HEADER_LENGTH = 5
_MAGIC = 0
# Arrow 26 computes a negative length for a slice without an end.
_TO_THE_END = 2**31 - 1


def header(schema_id: int) -> bytes:
    return struct.pack(">bI", _MAGIC, schema_id)


def schema_id(record: bytes) -> int | None:
    """The number of the schema a record was written with; None when it has no header."""
    if len(record) < HEADER_LENGTH or record[0] != _MAGIC:
        return None
    found: int = struct.unpack_from(">I", record, 1)[0]
    return found


def without_header(records: pa.Array) -> pa.Array:
    """The records without their headers, where they have one."""
    headed = pc.equal(pc.binary_slice(records, 0, 1), pa.scalar(bytes([_MAGIC]), records.type))
    return pc.if_else(headed, pc.binary_slice(records, HEADER_LENGTH, _TO_THE_END), records)


def message_path(record: bytes) -> tuple[tuple[int, ...], int]:
    """Where a protobuf record's message stands in its schema, and where the message begins; `ValueError` if cut off."""
    count, position = _read_number(record, HEADER_LENGTH)
    if count == 0:
        return (0,), position
    path: list[int] = []
    for _ in range(count):
        index, position = _read_number(record, position)
        path.append(index)
    return tuple(path), position


def path_bytes(path: tuple[int, ...]) -> bytes:
    """A message's place as it stands in a record."""
    if path == (0,):
        return b"\0"
    return b"".join(map(_number_bytes, (len(path), *path)))


def _read_number(record: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(record):
        octet = record[position]
        position += 1
        number |= (octet & 0x7F) << shift
        shift += 7
        if octet < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise ValueError("it ends within its header")


def _number_bytes(number: int) -> bytes:
    zigzag = number << 1
    octets = bytearray()
    while zigzag >= 0x80:
        octets.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    octets.append(zigzag)
    return bytes(octets)
