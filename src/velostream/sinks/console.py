"""`console://`: rows as small tables on standard output, for looking at a stream go by."""

from __future__ import annotations

import sys

import pyarrow as pa

from velostream.formats.json import plain_records
from velostream.model.change import Epoch
from velostream.model.options import Option, OptionType
from velostream.model.rows import json_text
from velostream.model.schema import Schema
from velostream.model.variant import decoder_within
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec
from velostream.sinks.common import with_parameters

_DEFAULT_ROWS = "20"


class ConsoleSink(Sink):
    """Prints each batch. Delivery guarantee: at-least-once; what was printed can't be taken back."""

    kind = "console"
    capabilities = SinkCapabilities(idempotent=False, guarantee="at-least-once")
    options = (
        Option("rows", "most rows shown of a batch", OptionType.INTEGER, _DEFAULT_ROWS),
        Option("format", "how rows are shown", OptionType.CHOICE, "table", ("table", "json")),
    )

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(with_parameters(spec))

    def open(self, schema: Schema) -> None:
        """Any rows can be shown."""

    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        if not rows.num_rows:
            return
        limit = self.settings.integer("rows") or 0
        shown = rows.slice(0, limit)
        if self.settings.text("format") == "json":
            lines = [json_text(record).decode() for record in plain_records(shown)]
        else:
            lines = _table_lines(shown)
        if rows.num_rows > limit:
            lines.append(f"… and {rows.num_rows - limit} more rows")
        sys.stdout.write("\n".join(lines) + "\n\n")
        sys.stdout.flush()


def _table_lines(rows: pa.Table) -> list[str]:
    """Columns padded to their widest value, numbers to the right."""
    columns = [[_text(value) for value in _shown(column)] for column in rows.columns]
    widths = [max(map(len, (name, *column))) for name, column in zip(rows.column_names, columns, strict=True)]
    right = [_is_number(field.type) for field in rows.schema]

    def line(cells: tuple[str, ...]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return " | ".join(padded).rstrip()

    rule = "-+-".join("-" * width for width in widths)
    return [line(tuple(rows.column_names)), rule, *(line(cells) for cells in zip(*columns, strict=True))]


def _shown(column: pa.ChunkedArray) -> list[object]:
    decode = decoder_within(column.type)
    values: list[object] = column.to_pylist(maps_as_pydicts="lossy") if decode else column.to_pylist()
    return values if decode is None else [None if value is None else decode(value) for value in values]


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return value.replace("\n", "\\n")
    if isinstance(value, dict | list | bytes):
        return json_text(value).decode()
    return str(value)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
