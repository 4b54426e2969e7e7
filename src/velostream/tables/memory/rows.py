"""One row of a memory table, decoded field by field when asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from velostream.errors import NotFoundError
from velostream.tables.base import Row
from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.values import python_value, python_values


class MemoryRow(Row):
    """A row by its place; nothing is read before a field is asked for."""

    __slots__ = ("_chunks", "_position")

    def __init__(self, chunks: Chunks, position: int) -> None:
        self._chunks = chunks
        self._position = position

    def __getitem__(self, name: str) -> Any:
        batch, row = self._chunks.locate(self._position)
        index = batch.schema.get_field_index(name)
        if index < 0:
            index = _index_of(batch.schema, name)
        return python_value(batch.column(index)[row])

    def __iter__(self) -> Iterator[str]:
        return iter(self._chunks.schema.names)

    def __len__(self) -> int:
        return len(self._chunks.schema)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and any(name.lower() == known.lower() for known in self)

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        batch, row = self._chunks.locate(self._position)
        names = batch.schema.names
        return {name: python_value(column[row]) for name, column in zip(names, batch.columns, strict=True)}


class DecodedRow(Row):
    """A row of a scan, whose values were decoded together with its neighbours'."""

    __slots__ = ("_places", "_values")

    def __init__(self, places: dict[str, int], values: tuple[Any, ...]) -> None:
        self._places = places
        self._values = values

    def __getitem__(self, name: str) -> Any:
        place = self._places.get(name)
        if place is None:
            place = next((at for known, at in self._places.items() if known.lower() == name.lower()), None)
        if place is None:
            raise _unknown(name, list(self._places))
        return self._values[place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return dict(zip(self._places, self._values, strict=True))


def decoded_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch, decoded column by column."""
    places = {name: place for place, name in enumerate(batch.schema.names)}
    for values in zip(*(python_values(column) for column in batch.columns), strict=True):
        yield DecodedRow(places, values)


class UnknownFieldError(NotFoundError, KeyError):
    """A row has no such field; a `KeyError` too, so that `row.get(name)` and other mapping code work."""


def _unknown(name: str, known: list[str]) -> NotFoundError:
    return UnknownFieldError.of("column", name, known=known)


def _index_of(schema: pa.Schema, name: str) -> int:
    for index, known in enumerate(schema.names):
        if known.lower() == name.lower():
            return index
    raise _unknown(name, schema.names)
