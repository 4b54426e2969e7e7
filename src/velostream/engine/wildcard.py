"""Values along wildcard paths of a table's rows, found column-wise in Arrow; JSON text is decoded and walked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import SqlError, TableError
from velostream.model.path import AnyDepth, AnyField, Comparison, Element, Field, Filter, Path, Slice, Step, parse_path
from velostream.model.variant import is_variant
from velostream.tables.memory.values import shown_values

if TYPE_CHECKING:
    from velostream.tables.base import Snapshot

_Places = tuple[np.ndarray[Any, Any], ...]
_Choice = Callable[[Any, Any], Any]
"""Which elements: takes the number of each and the length of its array."""
_EXACT = Context(prec=100)
_LARGEST_EXPONENT = 400
_AGGREGATE = re.compile(r"\s*(?P<function>\w+)\s*\((?P<path>.*)\)\s*", re.DOTALL)
_COLUMN_DEPTH = 2
"""A value of a column stands at its row and its column."""


def path_values(snapshot: Snapshot, text: str) -> list[Any]:
    """Every value the path leads to, row by row, in the data's own order. NULL is no value."""
    return _values(snapshot, parse_path(text))


def path_aggregate(snapshot: Snapshot, text: str) -> Any:
    """COUNT, SUM, AVG, MIN or MAX of the values of a path; over no values COUNT is 0 and the others None."""
    call = _AGGREGATE.fullmatch(text)
    if call is None:
        raise SqlError(
            "an aggregate of a path is expected", text=text, hint="SUM(positions.*.shares)", code="invalid-path"
        )
    function = _AGGREGATES.get(call["function"].upper())
    if function is None:
        raise SqlError(
            f'"{call["function"]}" is no aggregate of paths',
            column=call.start("function") + 1,
            width=len(call["function"]),
            text=text,
            hint=f"one of {', '.join(_AGGREGATES)}",
            code="unknown-function",
        )
    values = _values(snapshot, parse_path(call["path"], offset=call.start("path"), whole=text))
    return function(values)


def _values(snapshot: Snapshot, path: Path) -> list[Any]:
    columns = None
    steps = list(path.steps)
    if isinstance(steps[0], Field):
        column = snapshot.schema.find(steps[0].name)
        if column is None:
            return []
        columns = [column.name]
        steps[0] = Field(column.name)
    rows = snapshot.scan(columns=columns).combine_chunks()
    row_values = pa.StructArray.from_arrays(
        [_one_array(column) for column in rows.columns], fields=list(rows.schema.remove_metadata())
    )
    values = _in_order(_followed(_Piece(row_values, (np.arange(rows.num_rows),)), steps))
    return values if path.comparison is None else [value for value in values if path.comparison.holds(value)]


def document_values(texts: pa.Array, *paths: Sequence[Step]) -> Iterator[tuple[int, Any]]:
    """The number of a text and a value in the JSON document it is, for every value that one of the paths leads to.

    In the order of the documents, each value once.
    """
    there = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
    documents = _Piece(texts.take(pa.array(there)), (there, np.zeros(len(there), dtype=np.int64)))
    for place, value in _placed([found for steps in paths for found in _followed(documents, steps)]):
        yield place[0], value


def _followed(piece: _Piece, steps: Sequence[Step]) -> list[_Piece]:
    pieces = [piece]
    for number, step in enumerate(steps):
        is_last = number == len(steps) - 1
        pieces = [found for piece in pieces for found in _step(piece, step, is_last=is_last) if len(found)]
    return pieces


@dataclass(frozen=True)
class _Piece:
    """Values of one kind without NULLs, and where each stands: its row, then which child it is, level by level."""

    values: pa.Array | list[Any]
    """Of Arrow, or Python values out of JSON text."""
    places: _Places

    def __len__(self) -> int:
        return len(self.values)

    def python(self) -> list[Any]:
        return self.values if isinstance(self.values, list) else shown_values(self.values)

    def take(self, indices: np.ndarray[Any, Any]) -> _Piece:
        taken = (
            [self.values[index] for index in indices]
            if isinstance(self.values, list)
            else self.values.take(pa.array(indices))
        )
        return _Piece(taken, tuple(column[indices] for column in self.places))

    def child(self, values: pa.Array, number: int) -> _Piece:
        """One child of every value; where it is NULL there is none."""
        places = (*self.places, np.full(len(values), number))
        if not values.null_count:
            return _Piece(values, places)
        there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        return _Piece(values, places).take(there)


def _step(piece: _Piece, step: Step, *, is_last: bool) -> Iterator[_Piece]:
    if isinstance(step, AnyDepth):
        if not is_last:
            yield piece
        for child in _children(piece):
            yield from _below(child)
        return
    piece = _decoded(piece)
    match step:
        case Field(name):
            yield from _field(piece, name)
        case AnyField():
            yield from _fields(piece)
        case Element() | Slice() | Filter():
            yield from _chosen_elements(piece, step)


def _below(piece: _Piece) -> Iterator[_Piece]:
    """The values and everything below them; by a list of its own, as documents may be deeper than Python's stack."""
    pending = [piece]
    while pending:
        found = pending.pop()
        yield found
        pending += [child for child in _children(found) if len(child)]


def _children(piece: _Piece) -> Iterator[_Piece]:
    piece = _decoded(piece)
    yield from _fields(piece)
    yield from _elements(piece)


def _decoded(piece: _Piece) -> _Piece:
    """VARIANTs as the values they hold, and text of a column that is a JSON document as the document.

    Other text has nothing below it.
    """
    if not isinstance(piece.values, list) and is_variant(piece.values.type):
        return replace(piece, values=shown_values(piece.values))
    if isinstance(piece.values, list) or not pa.types.is_string(piece.values.type) or len(piece.places) > _COLUMN_DEPTH:
        return piece
    found: list[Any] = []
    indices = []
    for index, text in enumerate(piece.values.to_pylist()):
        if text[:1] in ("{", "[") or text.lstrip()[:1] in ("{", "["):
            try:
                found.append(json.loads(text, parse_float=_number, parse_constant=_refused))
            except (ValueError, RecursionError):
                continue
            indices.append(index)
    return replace(piece.take(np.array(indices, dtype=np.int64)), values=found)


def _number(text: str) -> Decimal:
    number = Decimal(text)
    if abs(number.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError("digit for digit, such a number could be larger than the memory")
    return number


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _fields(piece: _Piece) -> Iterator[_Piece]:
    values = piece.values
    if isinstance(values, list):
        yield from _walked(piece, lambda value: enumerate(value.values()) if isinstance(value, dict) else ())
    elif pa.types.is_struct(values.type):
        for number in range(values.type.num_fields):
            yield piece.child(pc.struct_field(values, [number]), number)
    elif pa.types.is_map(values.type):
        yield _expanded(piece, values.items, values.offsets)


def _field(piece: _Piece, name: str) -> Iterator[_Piece]:
    values = piece.values
    if isinstance(values, list):
        yield from _walked(
            piece,
            lambda value: [(list(value).index(name), value[name])] if isinstance(value, dict) and name in value else (),
        )
    elif pa.types.is_struct(values.type):
        for number, field in enumerate(values.type):
            if field.name.lower() == name.lower():
                yield piece.child(pc.struct_field(values, [number]), number)
    elif pa.types.is_map(values.type):
        keys = values.keys.cast(pa.string())
        wanted = pc.if_else(pc.equal(keys, name), values.items, pa.scalar(None, values.items.type))
        yield _expanded(piece, wanted, values.offsets)


def _elements(piece: _Piece, chosen: _Choice | None = None) -> Iterator[_Piece]:
    if isinstance(piece.values, list):
        yield from _walked(piece, lambda value: _numbered(value, chosen) if isinstance(value, list) else ())
    elif pa.types.is_list(piece.values.type):
        yield _expanded(piece, piece.values.values, piece.values.offsets, chosen)


def _chosen_elements(piece: _Piece, step: Element | Slice | Filter) -> Iterator[_Piece]:
    match step:
        case Element(wanted):
            yield from _elements(piece, lambda number, length: number == (wanted if wanted >= 0 else length + wanted))
        case Slice(start, stop):
            yield from _elements(
                piece,
                lambda number, length: (number >= _bound(start, length, 0)) & (number < _bound(stop, length, length)),
            )
        case Filter(comparisons):
            for elements in _elements(piece):
                stored = comparisons
                if not isinstance(elements.values, list):
                    stored = tuple((_stored_names(elements.values.type, names), one) for names, one in comparisons)
                passing = [number for number, value in enumerate(elements.python()) if _passes(value, stored)]
                yield elements.take(np.array(passing, dtype=np.int64))


def _bound(given: int | None, length: Any, otherwise: Any) -> Any:
    if given is None:
        return otherwise
    return given if given >= 0 else length + given


def _passes(value: Any, comparisons: Sequence[tuple[tuple[str, ...], Comparison]]) -> bool:
    return all(comparison.holds(_field_below(value, names)) for names, comparison in comparisons)


def _stored_names(type_: pa.DataType, names: Sequence[str]) -> tuple[str, ...]:
    """The names as structs have them, whose fields are found in any case of letters; keys of maps are as they are."""
    stored = []
    for name in names:
        fields = list(type_) if pa.types.is_struct(type_) else []
        field = next((field for field in fields if field.name.lower() == name.lower()), None)
        type_ = field.type if field is not None else type_.item_type if pa.types.is_map(type_) else pa.null()
        stored.append(name if field is None else field.name)
    return tuple(stored)


def _field_below(value: Any, names: Sequence[str]) -> Any:
    for name in names:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def _expanded(piece: _Piece, items: pa.Array, offsets: pa.Array, chosen: _Choice | None = None) -> _Piece:
    """The items of every list or map; `offsets` say which belong to which, as Arrow does."""
    starts = offsets.to_numpy()
    lengths = np.diff(starts)
    parents = np.repeat(np.arange(len(lengths)), lengths)
    numbers = np.arange(starts[0], starts[-1]) - np.repeat(starts[:-1], lengths)
    items = items.slice(starts[0], starts[-1] - starts[0])
    there = items.is_valid().to_numpy(zero_copy_only=False)
    if chosen is not None:
        there = there & chosen(numbers, np.repeat(lengths, lengths))
    kept = np.flatnonzero(there)
    places = (*(column[parents[kept]] for column in piece.places), numbers[kept])
    return _Piece(items if len(kept) == len(items) else items.take(pa.array(kept)), places)


def _walked(piece: _Piece, below: Callable[[Any], Iterable[tuple[int, Any]]]) -> Iterator[_Piece]:
    """Children of Python values, with the number of each."""
    values: list[Any] = []
    parents: list[int] = []
    numbers: list[int] = []
    for parent, value in enumerate(piece.values):
        for number, child in below(value):
            if child is not None:
                values.append(child)
                parents.append(parent)
                numbers.append(number)
    indices = np.array(parents, dtype=np.int64)
    yield _Piece(values, (*(column[indices] for column in piece.places), np.array(numbers, dtype=np.int64)))


def _numbered(values: list[Any], chosen: _Choice | None) -> Iterable[tuple[int, Any]]:
    pairs = enumerate(values)
    return pairs if chosen is None else (pair for pair in pairs if chosen(pair[0], len(values)))


def _in_order(pieces: Sequence[_Piece]) -> list[Any]:
    """The values of all pieces by their places, each place once."""
    return pieces[0].python() if len(pieces) == 1 else [value for _, value in _placed(pieces)]


def _placed(pieces: Sequence[_Piece]) -> list[tuple[tuple[int, ...], Any]]:
    """Places and values of all pieces by their places, each place once."""
    depth = max((len(piece.places) for piece in pieces), default=0)
    places: dict[tuple[int, ...], Any] = {}
    for piece in pieces:
        missing = [np.full(len(piece), -1)] * (depth - len(piece.places))
        columns = [column.tolist() for column in (*piece.places, *missing)]
        places.update(zip(zip(*columns, strict=True), piece.python(), strict=True))
    return [(place, places[place]) for place in sorted(places)]


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _sum(values: list[Any]) -> Any:
    if not values:
        return None
    if any(isinstance(value, float) for value in values):
        return float(sum(float(value) for value in values))
    total = values[0]
    for value in values[1:]:
        total = _EXACT.add(total, value) if isinstance(total, Decimal) or isinstance(value, Decimal) else total + value
    return total


def _average(values: list[Any]) -> Any:
    """Of decimals a decimal with four more digits, as in SQL; else a float."""
    total = _sum(values)
    if isinstance(total, Decimal):
        scale = max(-int(value.as_tuple().exponent) for value in values if isinstance(value, Decimal)) + 4
        mean = _EXACT.divide(total, Decimal(len(values)))
        return mean.quantize(Decimal(1).scaleb(-scale), rounding=ROUND_HALF_UP, context=_EXACT)
    return None if total is None else total / len(values)


def _numeric(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def run(values: list[Any]) -> Any:
        wrong = next((v for v in values if isinstance(v, bool) or not isinstance(v, int | float | Decimal)), None)
        if wrong is not None:
            raise TableError(f"{wrong!r} is not a number", hint="MIN, MAX and COUNT take any values", code="wrong-type")
        return function(values)

    return run


def _ordered(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def run(values: list[Any]) -> Any:
        try:
            return function(values) if values else None
        except TypeError as error:
            raise TableError(
                "the values of the path have no common order", detail=str(error), code="wrong-type"
            ) from None

    return run


_AGGREGATES: dict[str, Callable[[list[Any]], Any]] = {
    "COUNT": len,
    "SUM": _numeric(_sum),
    "AVG": _numeric(_average),
    "MIN": _ordered(min),
    "MAX": _ordered(max),
}
