"""Single rows from Python as the values a table keeps, checked without a detour over Arrow.

Only values that are of a column's type already are taken here. Whatever else people may give (text for a number, a
NumPy scalar, a name in other case, a row that is simply wrong) is `NEEDS_ARROW`: the way over Arrow takes it or says
what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from operator import itemgetter
from typing import Any

import pyarrow as pa

from velostream.model.schema import Schema
from velostream.tables.memory.keys import NAN, key_normaliser
from velostream.tables.memory.tail import Patch, Values

_EXACT = Context(prec=80, traps=[Inexact, InvalidOperation])
_NO_OFFSET = timedelta(0)


class NeedsArrow(Exception):  # noqa: N818 - no fault of anybody's: there is another way
    """A row that can't be taken value by value."""


class RowEncoder:
    """Records of one table as tuples. `RowEncoder.of` gives none for tables with columns of rarer types."""

    def __init__(self, schema: Schema, kinds: Sequence[type], fits: Sequence[Callable[[Any], Any] | None]) -> None:
        self._names = schema.names
        (first, *others) = schema.names
        self._all: Callable[[Mapping[str, Any]], Values] = (
            itemgetter(*schema.names) if others else lambda record: (record[first],)
        )
        self._known = {name: place for place, name in enumerate(schema.names)}
        self._kinds = tuple(kinds)
        self._columns = {
            name: (place, kind, fit)
            for place, (name, kind, fit) in enumerate(zip(schema.names, kinds, fits, strict=True))
        }
        self._nullable = tuple(column.nullable for column in schema.columns)
        self._fits = tuple(fits)
        self._fitted = tuple(
            (place, fit) for place, fit in enumerate(fits) if fit is not None and kinds[place] not in (int, str)
        )
        self._bounds = tuple(
            (place, *_bounds(column.type)) for place, column in enumerate(schema.columns) if kinds[place] is int
        )
        texts = [place for place, kind in enumerate(kinds) if kind is str]
        # With one place too many: of a single one an itemgetter would give the value itself.
        self._texts = itemgetter(*texts, texts[0]) if texts else None
        self._key_places = tuple(self._known[name] for name in schema.key)
        self._key = itemgetter(*self._key_places) if schema.key else None
        self._normalise = key_normaliser([schema.column(name).type for name in schema.key]) if schema.key else None

    @classmethod
    def of(cls, schema: Schema) -> RowEncoder | None:
        forms = [_form(column.type) for column in schema.columns]
        known = [form for form in forms if form is not None]
        return cls(schema, *zip(*known, strict=True)) if len(known) == len(forms) > 0 else None

    def values(self, record: Mapping[str, Any]) -> Values:
        """A whole row; a column that isn't given is NULL."""
        try:
            values: Values = self._all(record)
        except KeyError:
            return self._slowly(record)
        if tuple(map(type, values)) != self._kinds:
            return self._slowly(record)
        if len(record) != len(values):
            raise NeedsArrow
        for place, lowest, highest in self._bounds:
            if not lowest <= values[place] <= highest:
                raise NeedsArrow
        fitted: list[Any] | None = None
        for place, fit in self._fitted:
            value = values[place]
            good = fit(value)
            if good is not value:
                fitted = list(values) if fitted is None else fitted
                fitted[place] = good
        if self._texts is not None:
            texts = self._texts(values)
            if not "".join(texts).isascii():
                for text in texts:
                    _text(text)
        return values if fitted is None else tuple(fitted)

    def _slowly(self, record: Mapping[str, Any]) -> Values:
        """Value by value: with NULLs, or with some that have to be refused."""
        if not record.keys() <= self._known.keys():
            raise NeedsArrow
        return tuple([self.value(place, record.get(name)) for place, name in enumerate(self._names)])

    def value(self, place: int, value: Any) -> Any:
        """One value of a column."""
        if value is None:
            if not self._nullable[place]:
                raise NeedsArrow
            return None
        kind, fit = self._kinds[place], self._fits[place]
        if type(value) is not kind:
            raise NeedsArrow
        return value if fit is None else fit(value)

    def changes(self, record: Mapping[str, Any]) -> tuple[Hashable, Patch]:
        """The key of a record, in the form of `keys.key_values`, and the values of the other columns it names."""
        columns = self._columns
        values: Patch = {}
        try:
            for name, value in record.items():
                place, kind, fit = columns[name]
                if type(value) is not kind:
                    values[place] = self.value(place, value)
                else:
                    values[place] = value if fit is None else fit(value)
        except KeyError as error:
            raise NeedsArrow from error
        key = self.key_of_places(values)
        for place in self._key_places:
            del values[place]
        return key, values

    def shown_key(self, row: Values) -> Any:
        """The key of a row as people know it."""
        return None if self._key is None else self._key(row)

    def key_of_places(self, values: Mapping[int, Any]) -> Hashable:
        """The key among values by their columns' places; all of it must be given, and NULL finds nothing."""
        for place in self._key_places:
            if values.get(place) is None:
                raise NeedsArrow
        return self.key(values)

    def given_key(self, key: Any) -> Hashable:
        """A key as people give it, in the form of `keys.key_values`."""
        parts = (key,) if len(self._key_places) == 1 else key
        if not isinstance(parts, tuple) or len(parts) != len(self._key_places):
            raise NeedsArrow
        return self.key_of_places(
            {place: self.value(place, part) for place, part in zip(self._key_places, parts, strict=True)}
        )

    def key(self, row: Values | Mapping[int, Any]) -> Hashable:
        """The key of a row, in the form of `keys.key_values`; None without one."""
        if self._key is None:
            return None
        key: Hashable = self._key(row)
        return key if self._normalise is None else self._normalise(key)


def _form(type_: pa.DataType) -> tuple[type, Callable[[Any], Any] | None] | None:
    """The Python type of a column's values, and what checks one; None for types that go over Arrow."""
    if pa.types.is_string(type_):
        return str, _text
    if pa.types.is_boolean(type_):
        return bool, None
    if pa.types.is_signed_integer(type_):
        return int, _integer(type_)
    if type_ == pa.float64():
        return float, _float
    if pa.types.is_decimal128(type_):
        return Decimal, _decimal(type_.precision, type_.scale)
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return datetime, _naive
    if pa.types.is_date32(type_):
        return date, None
    if pa.types.is_binary(type_):
        return bytes, None
    return None


def _bounds(type_: pa.DataType) -> tuple[int, int]:
    """The lowest and the highest number of an integer type."""
    half = 1 << type_.bit_width - 1
    return -half, half - 1


def _integer(type_: pa.DataType) -> Callable[[int], int]:
    lowest, highest = _bounds(type_)

    def fit(value: int) -> int:
        if lowest <= value <= highest:
            return value
        raise NeedsArrow

    return fit


def _float(value: float) -> float:
    """One object for every NaN, so that rows with it are equal."""
    return NAN if value != value else value  # noqa: PLR0124 - only NaN differs from itself


def _decimal(precision: int, scale: int) -> Callable[[Decimal], Decimal]:
    unit, limit = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)

    def fit(value: Decimal) -> Decimal:
        try:
            if not value.same_quantum(unit):
                value = value.quantize(unit, context=_EXACT)
            if -limit < value < limit:
                # As Arrow, which knows no negative zero.
                return value or abs(value)
        except (Inexact, InvalidOperation) as error:
            raise NeedsArrow from error
        raise NeedsArrow

    return fit


def _naive(value: datetime) -> datetime:
    if value.tzinfo is not None:
        value = (value if value.utcoffset() == _NO_OFFSET else value.astimezone(UTC)).replace(tzinfo=None)
    return value.replace(fold=0) if value.fold else value


def _text(value: Any) -> Any:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise NeedsArrow from error
    return value
