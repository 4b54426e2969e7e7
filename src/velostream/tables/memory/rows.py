"""One row of a memory table, decoded field by field when asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa

from velostream.errors import NotFoundError
from velostream.model.variant import decoder_within
from velostream.tables.base import Row, Rows
from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.values import python_values

if TYPE_CHECKING:
    from velostream.tables.memory.snapshot import MemorySnapshot

_FEW_ROWS = 32
"""More rows than that are decoded column by column."""
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class RowLayout:
    """Where a row's fields are; made once per table."""

    places: dict[str, int]
    decoders: dict[int, Callable[[Any], Any]]
    """For fields with VARIANTs: what makes of what is kept of one what people get."""

    @classmethod
    def of(cls, schema: pa.Schema) -> RowLayout:
        found = {place: decoder_within(field.type) for place, field in enumerate(schema)}
        decoders = {place: decode for place, decode in found.items() if decode is not None}
        return cls({name: place for place, name in enumerate(schema.names)}, decoders)

    def value(self, place: int, kept: Any) -> Any:
        """What people get of what is kept of a field."""
        decode = self.decoders.get(place)
        return kept if decode is None or kept is None else decode(kept)

    def as_dict(self, kept: Iterable[Any]) -> dict[str, Any]:
        """A row of fields as people get them."""
        if self.decoders:
            kept = [self.value(place, value) for place, value in enumerate(kept)]
        return dict(zip(self.places, kept, strict=True))

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
        readers, row = self._chunks.readers_of(self._position)
        value = readers[place](row)
        return layout.value(place, value) if layout.decoders else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.places)

    def __len__(self) -> int:
        return len(self._layout.places)

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return self._layout.as_dict(self._chunks.values_at(self._position))


class DecodedRow(Row):
    """A row of a scan, whose values were decoded together with its neighbours'."""

    __slots__ = ("_layout", "_values")

    def __init__(self, layout: RowLayout, values: tuple[Any, ...]) -> None:
        self._layout = layout
        self._values = values

    def __getitem__(self, name: str) -> Any:
        place = self._layout.places.get(name)
        if place is None:
            place = self._layout.place(name)
        return self._layout.value(place, self._values[place])

    def __iter__(self) -> Iterator[str]:
        return iter(self._layout.places)

    def __len__(self) -> int:
        return len(self._layout.places)

    def __repr__(self) -> str:
        return repr(self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return self._layout.as_dict(self._values)


class FoundRows(Rows):
    """Rows of a snapshot by their positions; each is read when it is asked for."""

    __slots__ = ("_positions", "_snapshot")

    def __init__(self, snapshot: MemorySnapshot, positions: Sequence[int] | Integers) -> None:
        self._snapshot = snapshot
        self._positions = positions

    def arrow(self) -> pa.Table:
        return self._snapshot.take(np.asarray(self._positions, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[Row]:
        if len(self._positions) > _FEW_ROWS:
            return chain.from_iterable(map(decoded_rows, self.arrow().to_batches(max_chunksize=_ROWS_AT_ONCE)))
        return map(self._snapshot.row_at, map(int, self._positions))

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> FoundRows: ...

    def __getitem__(self, index: int | slice) -> Row | FoundRows:
        if isinstance(index, slice):
            return FoundRows(self._snapshot, self._positions[index])
        return self._snapshot.row_at(int(self._positions[index]))


def decoded_rows(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch, decoded column by column."""
    rows = zip(*(python_values(column) for column in batch.columns), strict=True)
    return map(partial(DecodedRow, RowLayout.of(batch.schema)), rows)


class UnknownFieldError(NotFoundError, KeyError):
    """A row has no such field; a `KeyError` too, so that `row.get(name)` and other mapping code work."""
