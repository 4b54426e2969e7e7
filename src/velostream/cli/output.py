"""Rows as people and programs read them: a table, CSV, or JSON lines.

Rows go to standard output and nothing else does, so that a pipe gets data only. All forms write values exactly:
decimals with all their digits, NULL told apart from the empty string.
"""

from __future__ import annotations

import base64
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from itertools import chain, islice
from typing import Any, TextIO

import orjson

_SAMPLE_SIZE = 1000
"""Rows a table looks at to choose the widths of its columns."""


class OutputFormat(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def write_rows(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    form: OutputFormat,
    live: bool = False,
    stream: TextIO | None = None,
) -> int:
    """Write rows and give their number. `live` ones come without end: each is shown the moment it is there."""
    stream = sys.stdout if stream is None else stream
    if form is OutputFormat.TABLE and stream.isatty() and not live:
        return _write_rich(columns, rows, stream)
    header, lines = _lines(columns, rows, form=form, sample_size=0 if live else _SAMPLE_SIZE)
    stream.write(header)
    count = 0
    for line in lines:
        count += 1
        stream.write(line)
        if live:
            stream.flush()
    stream.flush()
    return count


def text_of(value: Any) -> str:
    """A value as a cell of a table."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case Decimal():
            return format(value, "f") if value.is_finite() else str(value)
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
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
            return orjson.dumps(text_of(value)).decode()


def _lines(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, form: OutputFormat, sample_size: int
) -> tuple[str, Iterator[str]]:
    """The header, and a line per row."""
    match form:
        case OutputFormat.CSV:
            return _csv_line(columns), map(_csv_line, rows)
        case OutputFormat.JSON:
            return "", _json_lines(columns, rows)
        case OutputFormat.TABLE:
            return _plain_lines(columns, rows, sample_size=sample_size)


def _csv_line(values: Sequence[Any]) -> str:
    return ",".join("" if value is None else _csv_field(text_of(value)) for value in values) + "\n"


def _csv_field(text: str) -> str:
    """A field of CSV; the empty string is quoted, because an unquoted empty field is NULL."""
    if text == "" or any(character in text for character in ',"\n\r') or text != text.strip():
        return '"' + text.replace('"', '""') + '"'
    return text


def _json_lines(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    names = [json_of(name) for name in columns]
    for row in rows:
        fields = (f"{name}:{json_of(value)}" for name, value in zip(names, row, strict=True))
        yield "{" + ",".join(fields) + "}\n"


def _write_rich(columns: Sequence[str], rows: Iterable[Sequence[Any]], stream: TextIO) -> int:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=stream, highlight=False)
    iterator = iter(rows)
    count = 0
    while batch := list(islice(iterator, _SAMPLE_SIZE)):
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


def _plain_lines(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, sample_size: int
) -> tuple[str, Iterator[str]]:
    """The two lines of the header, and a line per row; columns are as wide as the sample needs."""
    iterator = iter(rows)
    sample = list(islice(iterator, sample_size))
    numeric = [_is_numeric(row[position] for row in sample) for position in range(len(columns))]
    widths = [
        max([len(name), *(len(text_of(row[position])) for row in sample)]) for position, name in enumerate(columns)
    ]

    def line(cells: Iterable[str]) -> str:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return " | ".join(aligned).rstrip() + "\n"

    header = line(columns) + "-+-".join("-" * width for width in widths) + "\n"
    return header, (line(map(text_of, row)) for row in chain(sample, iterator))


def _is_numeric(values: Iterable[Any]) -> bool:
    """Whether a column holds numbers only, so that its digits should line up."""
    kinds = {type(value) for value in values if value is not None}
    return bool(kinds) and kinds <= {int, float, Decimal}
