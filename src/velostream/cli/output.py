"""Rows as people and programs read them: a table, CSV, or JSON lines.

Rows go to standard output and nothing else does, so that a pipe gets data only. All forms write values exactly:
decimals with all their digits, NULL told apart from the empty string.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import chain, islice
from typing import Any, TextIO

import orjson

_PLAIN_SAMPLE = 1000
"""Rows a plain table looks at to choose the widths of its columns."""


class OutputFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def write_rows(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, form: OutputFormat, stream: TextIO | None = None
) -> int:
    """Write rows as they come, flushing after each batch; the number of rows written."""
    stream = sys.stdout if stream is None else stream
    if form is OutputFormat.CSV:
        return _write_csv(columns, rows, stream)
    if form is OutputFormat.JSON:
        return _write_json(columns, rows, stream)
    if stream.isatty():
        return _write_rich(columns, rows, stream)
    return _write_plain(columns, rows, stream)


def text_of(value: Any) -> str:
    """A value as a cell of a table."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f") if value.is_finite() else str(value)
        case datetime():
            return value.isoformat(sep=" ")
        case bytes():
            return value.hex()
        case list() | dict() | tuple():
            return json_of(value)
        case _:
            return str(value)


def json_of(value: Any) -> str:
    """A value as JSON; decimals are numbers with all their digits."""
    match value:
        case dict():
            items = (
                f"{json_of(key if isinstance(key, str) else text_of(key))}:{json_of(item)}"
                for key, item in value.items()
            )
            return "{" + ",".join(items) + "}"
        case list() | tuple():
            return "[" + ",".join(map(json_of, value)) + "]"
        case Decimal() if value.is_finite():
            return format(value, "f")
        case float() if math.isfinite(value):
            return repr(value)
        case bool() | None | str():
            return orjson.dumps(value).decode()
        case int():
            return str(value)
        case bytes():
            return orjson.dumps(base64.b64encode(value).decode()).decode()
        case datetime() | date() | time():
            return orjson.dumps(value.isoformat()).decode()
        case timedelta():
            return repr(value.total_seconds())
        case _:
            return orjson.dumps(str(value)).decode()


def _write_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: TextIO) -> int:
    stream.write(",".join(map(_csv_field, columns)) + "\n")
    count = 0
    for row in rows:
        count += 1
        stream.write(",".join("" if value is None else _csv_field(text_of(value)) for value in row) + "\n")
        stream.flush()
    return count


def _csv_field(text: str) -> str:
    """A field of CSV; the empty string is quoted, because an unquoted empty field is NULL."""
    if text == "" or any(character in text for character in ',"\n\r') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def _write_json(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: TextIO) -> int:
    names = [json_of(name) for name in columns]
    count = 0
    for row in rows:
        count += 1
        fields = (f"{name}:{json_of(value)}" for name, value in zip(names, row, strict=True))
        stream.write("{" + ",".join(fields) + "}\n")
        stream.flush()
    return count


def _write_rich(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: TextIO) -> int:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    iterator = iter(rows)
    count = 0
    while batch := list(islice(iterator, _PLAIN_SAMPLE)):
        table = Table(box=SIMPLE_HEAD, show_header=count == 0, pad_edge=False)
        for position, name in enumerate(columns):
            numeric = _is_numeric(row[position] for row in batch)
            table.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
        for row in batch:
            table.add_row(*(Text(text_of(value), style="dim" if value is None else "") for value in row))
        console.print(table)
        count += len(batch)
    if count == 0:
        console.print(Text("  ".join(columns), style="bold"))
    return count


def _write_plain(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: TextIO) -> int:
    iterator = iter(rows)
    sample = list(islice(iterator, _PLAIN_SAMPLE))
    numeric = [_is_numeric(row[position] for row in sample) for position in range(len(columns))]
    widths = [
        max(len(name), *(len(text_of(row[position])) for row in sample)) if sample else len(name)
        for position, name in enumerate(columns)
    ]

    def line(cells: Iterable[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return " | ".join(aligned).rstrip() + "\n"

    stream.write(line(columns))
    stream.write("-+-".join("-" * width for width in widths) + "\n")
    count = 0
    for row in chain(sample, iterator):
        count += 1
        stream.write(line(map(text_of, row)))
        stream.flush()
    return count


def _is_numeric(values: Iterable[Any]) -> bool:
    """Whether a column holds numbers only, so that its digits should line up."""
    kinds = {type(value) for value in values if value is not None}
    return bool(kinds) and kinds <= {int, float, Decimal}
