"""One row of a memory table, decoded field by field when asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from velostream.errors import NotFoundError
from velostream.tables.base import Row
from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.values import Decoder, decoder_of, python_values


@dataclass(frozen=True)
class RowLayout:
    """Where a row's fields are and how each is decoded; made once per table."""

    places: dict[str, int]
    decoders: tuple[Decoder, ...]

    @classmethod
    def of(cls, schema: pa.Schema) -> RowLayout:
        places = {name: place for place, name in enumerate(schema.names)}
        return cls(places, tuple(decoder_of(type_) for type_ in schema.types))

    def place(self, name: str) -> int:
        """The field of a name in any case; `UnknownFieldError` with near names when there is none."""
        place = self.places.get(name)
        if place is None:
            place = next((at for known, at in self.places.items() if known.lower() == str(name).lower()), None)
        if place is None:
            raise UnknownFieldError.of("column", str(name), known=self.places)
        return place


class MemoryRow(Row):
    """A row by its place; nothing is read before a field is asked for."""

    __slots__ = ("_chunks", "_layout", "_position")

    def __init__(self, layout: RowLayout, chunks: Chunks, position: int) -> None:
        self._layout = layout
        self._chunks = chunks
        self._position = position

    def __getitem__(self, name: str) -> Any:
        layout = self._layout
        place = layout.places.get(name)
        if place is None:
            place = layout.place(name)
        columns, row = self._chunks.columns_of(self._position)
        return layout.decoders[place](columns[place][row])

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.places)

    def __len__(self) -> int:
        return len(self._layout.places)

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        layout = self._layout
        columns, row = self._chunks.columns_of(self._position)
        return {
            name: decode(column[row])
            for name, decode, column in zip(layout.places, layout.decoders, columns, strict=True)
        }


class DecodedRow(Row):
    """A row of a scan, whose values were decoded together with its neighbours'."""

    __slots__ = ("_layout", "_values")

    def __init__(self, layout: RowLayout, values: tuple[Any, ...]) -> None:
        self._layout = layout
        self._values = values

    def __getitem__(self, name: str) -> Any:
        place = self._layout.places.get(name)
        return self._values[self._layout.place(name) if place is None else place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.places)

    def __len__(self) -> int:
        return len(self._layout.places)

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return dict(zip(self._layout.places, self._values, strict=True))


def decoded_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch, decoded column by column."""
    layout = RowLayout({name: place for place, name in enumerate(batch.schema.names)}, ())
    for values in zip(*(python_values(column) for column in batch.columns), strict=True):
        yield DecodedRow(layout, values)


class UnknownFieldError(NotFoundError, KeyError):
    """A row has no such field; a `KeyError` too, so that `row.get(name)` and other mapping code work."""
