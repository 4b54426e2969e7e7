"""Batches of values for MySQL: one bound JSON document that a statement joins with as with a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import orjson

from velostream.tables.memory.keys import as_array
from velostream.tables.mysql_types import MysqlCodec
from velostream.tables.relational.layout import StoredColumn
from velostream.tables.relational.nulls import NullPattern

NULL = "NULL"
"""What `values_of` gives for a NULL."""
_BYTES_AT_ONCE = 4_000_000
"""Below the 16 MB that servers take at once by default, after every byte of text was doubled."""


def codec_of(column: StoredColumn) -> MysqlCodec:
    """The codec of a column, which in this kind is one that knows JSON."""
    return cast("MysqlCodec", column.codec)


def short(column: StoredColumn, expression: str) -> str:
    """A value, or its hash where it may be long."""
    return f"SHA2({expression}, 256)" if codec_of(column).long else expression


def short_values(columns: Sequence[StoredColumn]) -> str:
    """The columns of `json_table`, texts and bytes by their hashes.

    Selected by DISTINCT they become a table with an index, by which every row of another finds its match. An index over
    long columns would find nothing: MariaDB 10.11 makes one of no length.
    """
    values = []
    for at, column in enumerate(columns):
        exact = (column.codec.equality or "{}").format(codec_of(column).json_value.format(f"c{at}"))
        values.append(f"{short(column, exact)} AS c{at}")
    return ", ".join(["p", *values])


def json_table(columns: Sequence[StoredColumn]) -> str:
    """The bound document as a table k, with the number p of each row and its values as c0, c1 and so on."""
    parts = ", ".join(f"c{at} {codec_of(column).json_type} PATH '$[{at + 1}]'" for at, column in enumerate(columns))
    return f"JSON_TABLE(%s, '$[*]' COLUMNS (p BIGINT PATH '$[0]', {parts})) k"


def values_of(columns: Sequence[StoredColumn], pattern: NullPattern) -> list[str]:
    """SQL for the columns of `json_table`."""
    return [
        NULL if at in pattern.nulls else codec_of(column).json_value.format(f"k.c{at}")
        for at, column in enumerate(columns)
    ]


def documents(columns: Sequence[StoredColumn], pattern: NullPattern) -> Iterator[str]:
    """Rows as JSON arrays, their numbers first, in documents that a server takes at once."""
    rows = pattern.rows
    count = max(1, rows.num_rows * _BYTES_AT_ONCE // max(rows.nbytes, 1))
    for start in range(0, rows.num_rows, count):
        chunk = rows.slice(start, count)
        numbers = pattern.numbers.slice(start, count).to_pylist()
        values = (codec_of(column).json(as_array(chunk.column(column.name))) for column in columns)
        yield orjson.dumps(list(zip(numbers, *values, strict=True))).decode()
