"""The header that serializers of a schema registry put before a record: a zero byte and the schema's number."""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.compute as pc

HEADER_LENGTH = 5
_MAGIC = 0


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
    return pc.if_else(headed, pc.binary_slice(records, HEADER_LENGTH), records)
