"""Text that is not taken apart: a record, or a line of a file, is one value of the column `value`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import UnsupportedError
from velostream.formats.base import Decoded, LineFormat, Preamble, RecordFormat, Reject, Rejected, Sample
from velostream.formats.lines import find_records, skipped_length
from velostream.formats.text import encoded, is_utf_8, valid_utf_8
from velostream.model.conform import conform
from velostream.model.schema import Schema

VALUE = "value"
_TEXT = Schema.of((VALUE, "STRING"))


class StringRecords(RecordFormat):
    """Each record is a text."""

    name = "string"

    def infer(self, records: pa.Array) -> Schema | None:
        return _TEXT

    def decode(self, records: pa.Array, schema: Schema, reject: Reject) -> Decoded:
        places = np.flatnonzero(records.is_valid().to_numpy(zero_copy_only=False))
        texts, readable = self._texts(records.drop_null())

        def reject_at(place: int, reason: str) -> None:
            reject(Rejected(place, records[place].as_py(), reason))

        for place in places[~readable].tolist():
            reject_at(place, f"not valid {self.settings.encoding}")
        places = places[readable]
        fitting = np.ones(len(places), bool)

        def misfit(index: int, reason: str) -> None:
            fitting[index] = False
            reject_at(int(places[index]), reason)

        # A single declared column is the text, whatever its name.
        name = schema.names[0] if len(schema.columns) == 1 else VALUE
        rows = conform(pa.table({name: texts}), schema, misfit, times=self.settings.times)
        return Decoded(rows, pa.array(places[fitting], pa.int64()))

    def encode(self, rows: pa.Table) -> pa.Array:
        texts = _only_column(rows, self.name)
        if is_utf_8(self.settings.encoding):
            return texts.cast(pa.binary())
        values = [
            None if text is None else encoded(text.encode(), self.settings.encoding) for text in texts.to_pylist()
        ]
        return pa.array(values, pa.binary())

    def _texts(self, records: pa.Array) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """The records that are text, and which of them are."""
        if is_utf_8(self.settings.encoding):
            try:
                return records.cast(pa.string()), np.ones(len(records), bool)
            except pa.ArrowInvalid:
                readable = np.array([valid_utf_8(record) for record in records.to_pylist()], bool)
                return records.filter(pa.array(readable)).cast(pa.string()), readable
        texts = [_decoded(record, self.settings.encoding) for record in records.to_pylist()]
        readable = np.array([text is not None for text in texts], bool)
        return pa.array([text for text in texts if text is not None], pa.string()), readable


class TextFormat(LineFormat):
    """Each line of a file is a text; an empty line is an empty text."""

    name = "text"

    def preamble(self, head: bytes, *, final: bool) -> Preamble | None:
        length = skipped_length(head, self.settings.skip_lines, final=final)
        return None if length is None else Preamble(length)

    def infer(self, samples: Sequence[Sample]) -> Schema | None:
        return _TEXT if any(sample.data for sample in samples) else None

    def decode(self, data: bytes, preamble: Preamble, schema: Schema, reject: Reject) -> pa.Table:
        found = find_records(data, None, final=True)
        lines = lines_at(data, found.ends)
        starts = found.starts

        def by_place(rejected: Rejected) -> None:
            reject(replace(rejected, place=int(starts[rejected.place])))

        return StringRecords(self.settings).decode(lines, schema, by_place).rows

    def encode(self, rows: pa.Table, *, first: bool = True) -> bytes:
        """A NULL is an empty line; a text with newlines is as many lines."""
        texts = _only_column(rows, self.name).to_pylist()
        return encoded("".join(f"{text or ''}\n" for text in texts).encode(), self.settings.encoding)


def lines_at(data: bytes, ends: npt.NDArray[np.int64]) -> pa.Array:
    """The lines that end there, as binary values without their line ends."""
    if not len(ends):
        return pa.array([], pa.binary())
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    lines = pa.Array.from_buffers(pa.binary(), len(ends), buffers)
    for line_end in (b"\n", b"\r"):
        ended = pc.equal(pc.binary_slice(lines, -1), pa.scalar(line_end, pa.binary()))
        lines = pc.if_else(ended, pc.binary_slice(lines, 0, -1), lines)
    return lines


def _decoded(record: bytes, encoding: str) -> str | None:
    try:
        return record.decode(encoding)
    except UnicodeDecodeError:
        return None


def _only_column(rows: pa.Table, format_name: str) -> pa.Array:
    if rows.num_columns != 1:
        raise UnsupportedError(
            f'format "{format_name}" writes one column, not {rows.num_columns}',
            hint="SELECT one of them, or to_json(struct(*)), or WITH ('format' = 'json')",
            code="unsupported-format",
        )
    return rows.column(0).cast(pa.string()).combine_chunks()
