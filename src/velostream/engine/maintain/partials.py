"""Partial results of groups: what rows that come and go make of them, and the aggregates they stand for. No Spark.

A group keeps how many rows it has, and for each aggregate how many values aren't NULL (`n0…`), their exact sum (`s0…`)
or the smallest or largest of them (`v0…`). Counts and sums change by what comes and what goes. A smallest or largest
value that goes leaves its group `open`: the next one is known only by the rows themselves.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from functools import partial as partial_function

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from velostream.engine.maintain.numbering import Numberings
from velostream.errors import Category, QueryError
from velostream.model.change import CHANGE
from velostream.model.schema import Column, Schema
from velostream.model.types import render_type
from velostream.sql.constants import EXACT, CastError, fit_decimal
from velostream.sql.plan import AggregateFunction, Partial
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.keys import as_array, as_grouped, decimals_of, key_values, small_integers

_ROWS = "n"
_NUMBER = "group"
_WIDEST = 75
"""Digits of sums while they grow: one less than the most there are, so that two of them can be added."""
_WIDE_DIGITS = 38
_ANY_INTEGER = pa.decimal128(19, 0)
_EXTREMES = {AggregateFunction.MIN: "min", AggregateFunction.MAX: "max"}
_SUMMED = (AggregateFunction.SUM, AggregateFunction.AVG)


@dataclass(frozen=True)
class PartialState:
    """The layout of the partial results of one view.

    `keys` are the group columns of the feed, `feed` its columns, `groups` the columns of the bare aggregate: the keys
    and `a0…an`, in Spark's types.
    """

    keys: tuple[str, ...]
    partials: tuple[Partial, ...]
    feed: Schema
    groups: Schema

    @cached_property
    def schema(self) -> Schema:
        """Columns of the table of the groups, which is keyed by the group values."""
        columns = [self.feed.column(key) for key in self.keys]
        columns.append(Column(_ROWS, pa.int64()))
        for number, partial in enumerate(self.partials):
            if partial.argument is None:
                continue
            type_ = self.feed.column(partial.argument).type
            if partial.function in _EXTREMES:
                columns.append(Column(f"v{number}", type_))
                continue
            columns.append(Column(f"n{number}", pa.int64()))
            if partial.function in _SUMMED:
                columns.append(Column(f"s{number}", pa.decimal128(_WIDE_DIGITS, _scale(type_))))
        return Schema(tuple(columns), self.keys)

    def new(self, groups: int) -> pa.Table:
        """What so many groups have been that are new."""
        return pa.table([pa.nulls(groups, field.type) for field in self.schema.arrow], schema=self.schema.arrow)

    def gathered(self, changes: pa.Table, numberings: Numberings | None = None) -> Gathered:
        """What signed rows of the feed make of their groups: contributions to each group they touch.

        `numberings` are those of others who are given the same rows.
        """
        if not self._is_numbered or not changes.num_rows:
            return Gathered(self._by_values(changes))
        numbered = (numberings or Numberings()).of(changes, self.keys)
        columns = [*numbered.keys.columns, pa.array(numbered.rows)]
        for partial in self.partials:
            if partial.argument is None:
                continue
            values = changes.column(partial.argument)
            columns.append(pa.array(numbered.count(values)))
            if partial.function in _SUMMED:
                sums = numbered.sum(values)
                if sums is None:
                    return Gathered(self._by_values(changes))
                columns.append(decimals_of(sums, pa.decimal128(_WIDE_DIGITS, _scale(values.type))))
        return Gathered(pa.Table.from_arrays(columns, schema=self.schema.arrow), numbered.key_values)

    @cached_property
    def _is_numbered(self) -> bool:
        """Whether contributions follow from the numbers of groups: there are only counts and sums, and Arrow tells
        the groups apart as SQL does.
        """
        types = [self.feed.column(key).type for key in self.keys]
        return bool(types) and not self._extremes and not any(map(_differs_from_sql, types))

    def _by_values(self, changes: pa.Table) -> pa.Table:
        """Like `gathered`, for whatever rows and aggregates there are."""
        groups = self._taken_together(self._contributed(changes))
        columns = {}
        for name in (*self.keys, *self._counts, *self._sums, *self._ways):
            # Counts of values none of which is NULL are those of the rows.
            columns[name] = groups.column(name if name in groups.column_names else _ROWS)
        for name in () if changes.num_rows else (*self._counts, *self._sums):
            columns[name] = _or_zero(columns[name])
        return pa.table(columns)

    def of_rows(self, rows: pa.Table) -> pa.Table:
        """The groups that all these signed rows make."""
        gathered = self.gathered(rows).groups
        return self.merged(self.new(gathered.num_rows), gathered).state

    def merged(self, before: pa.Table, gathered: pa.Table) -> Merged:
        """Groups after contributions; `before` has the group of each of them, all NULL for one that is new.

        Raises `QueryError` when a sum has more digits than a decimal.
        """
        merged = self._added(before, gathered)
        named = list(self.keys) or [_ROWS]
        rows = as_array(merged.column(_ROWS)).to_numpy()
        alive = None if not self.keys or rows.min(initial=1) > 0 else pa.array(rows > 0)
        gone = None if alive is None else merged.filter(pc.invert(alive)).select(named)
        kept = merged if alive is None else merged.filter(alive)
        if not self._extremes:
            return Merged(kept, None, gone)
        lost = pa.chunked_array([pa.array(np.zeros(merged.num_rows, dtype=np.bool_))])
        for number, kind in self._extremes.items():
            held, came, left = before[f"v{number}"], gathered[f"c{number}"], gathered[f"w{number}"]
            lost = pc.or_(lost, pc.and_(_beats(kind, left, held), pc.invert(_beats(kind, came, left))))
        lost = lost if alive is None else lost.filter(alive)
        return Merged(kept, kept.filter(lost).select(named) if pc.any(lost).as_py() else None, gone)

    def with_extremes(self, state: pa.Table, rows: pa.Table) -> pa.Table:
        """The state with the smallest and largest values of some groups taken from all rows that those have."""
        recomputed = self.of_rows(rows)
        places = {key: place for place, key in enumerate(self._key_values(state))}
        found = np.array([places[key] for key in self._key_values(recomputed)], dtype=np.int64)
        for number, partial in enumerate(self.partials):
            if partial.function in _EXTREMES:
                name = f"v{number}"
                column = pa.concat_arrays(
                    [state.column(name).combine_chunks(), recomputed.column(name).combine_chunks()]
                )
                chosen = np.arange(state.num_rows)
                chosen[found] = state.num_rows + np.arange(recomputed.num_rows)
                state = state.set_column(
                    state.schema.get_field_index(name), state.schema.field(name), column.take(pa.array(chosen))
                )
        return state

    def results(self, state: pa.Table) -> pa.Table:
        """The groups with their aggregates, as Spark gives them; `QueryError` where a sum overflows its type."""
        columns = [state.column(key) for key in self.keys]
        for number, partial in enumerate(self.partials):
            type_ = self.groups.column(f"a{number}").type
            columns.append(self._result(state, number, partial, type_))
        names = [*self.keys, *(f"a{number}" for number in range(len(self.partials)))]
        return pa.Table.from_arrays(columns, names=names)

    def _key_values(self, rows: pa.Table) -> Sequence[object]:
        return key_values(rows, self.keys) if self.keys else [()] * rows.num_rows

    @cached_property
    def _extremes(self) -> dict[int, str]:
        """`min` or `max` by the number of the aggregate."""
        return {
            number: _EXTREMES[partial.function]
            for number, partial in enumerate(self.partials)
            if partial.function in _EXTREMES
        }

    def _contributed(self, changes: pa.Table) -> pa.Table:
        """What each row adds to its group: values that come as `c…`, values that go as `w…`.

        The number of rows (`n`) is left out where all of them come to groups, that of values (`n…`) where none is NULL.
        """
        signs = changes.column(CHANGE)
        gone = pc.less(signs, 0)
        none_gone = not pc.any(gone).as_py()
        signs = signs.cast(pa.int64())
        columns = {key: as_grouped(changes.column(key)) for key in self.keys}
        if not none_gone or not self.keys:
            columns[_ROWS] = signs
        for number, partial in enumerate(self.partials):
            if partial.argument is None:
                continue
            values = changes.column(partial.argument)
            if partial.function in _EXTREMES:
                nothing = pa.scalar(None, values.type)
                columns[f"c{number}"] = values if none_gone else pc.if_else(gone, nothing, values)
                columns[f"w{number}"] = pc.if_else(gone, values, nothing)
                continue
            known = not values.null_count
            if not known:
                columns[f"n{number}"] = pc.if_else(pc.is_null(values), pa.scalar(0, pa.int64()), signs)
            if partial.function in _SUMMED:
                exact = _as_decimal(values)
                exact = exact if known else pc.fill_null(exact, pa.scalar(decimal.Decimal(0), exact.type))
                columns[f"s{number}"] = exact if none_gone else pc.if_else(gone, pc.negate(exact), exact)
        return pa.table(columns)

    def _taken_together(self, contributions: pa.Table) -> pa.Table:
        """Contributions of each group taken together: a row for each, in the same columns and with its rows counted."""
        names = contributions.column_names[len(self.keys) :]
        wanted: list[tuple[str | list[str], str]] = [(name, self._ways.get(name, "sum")) for name in names]
        if _ROWS not in names:
            names, wanted = [*names, _ROWS], [*wanted, ([], "count_all")]
        if any(_differs_from_sql(contributions.schema.field(key).type) for key in self.keys):
            numbers = _group_numbers(contributions, self.keys)
            numbered = contributions.append_column(_NUMBER, pa.array(numbers))
            groups = numbered.group_by(_NUMBER, use_threads=False).aggregate(wanted).sort_by(_NUMBER)
            keys = _firsts(contributions, self.keys, numbers).columns
        else:
            groups = contributions.group_by(list(self.keys), use_threads=False).aggregate(wanted)
            keys = [groups.column(key) for key in self.keys]
        # Arrow gives the keys first, then what is wanted in its order.
        values = groups.columns[len(groups.columns) - len(wanted) :]
        return pa.Table.from_arrays([*keys, *values], names=[*self.keys, *names])

    @cached_property
    def _ways(self) -> dict[str, str]:
        """How contributions are taken together that aren't added."""
        return {f"{part}{number}": kind for number, kind in self._extremes.items() for part in "cw"}

    @cached_property
    def _counts(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.schema.columns if column.name.startswith(_ROWS))

    @cached_property
    def _sums(self) -> tuple[str, ...]:
        """Names of exact sums, which need room to grow."""
        return tuple(f"s{n}" for n, partial in enumerate(self.partials) if partial.function in _SUMMED)

    def _added(self, before: pa.Table, gathered: pa.Table) -> pa.Table:
        """Groups after contributions, in the columns of the state: counts and sums added, or the more extreme value."""
        extremes = {f"v{number}": (f"c{number}", kind) for number, kind in self._extremes.items()}
        columns = []
        for column in self.schema.columns:
            name = column.name
            if name in self.keys:
                values = gathered.column(name)
            elif name in extremes:
                coming, kind = extremes[name]
                came, held = gathered.column(coming), before.column(name)
                values = pc.if_else(_beats(kind, came, held), came, held)
            elif name in self._sums:
                values = _fitting(_sum_of(before.column(name), gathered.column(name)), column.type)
            else:
                values = pc.add(_or_zero(before.column(name)), gathered.column(name))
            columns.append(values)
        return pa.Table.from_arrays(columns, schema=self.schema.arrow)

    def _result(self, state: pa.Table, number: int, partial: Partial, type_: pa.DataType) -> pa.ChunkedArray:
        if partial.argument is None:
            return state.column(_ROWS)
        match partial.function:
            case AggregateFunction.COUNT:
                return state.column(f"n{number}")
            case AggregateFunction.MIN | AggregateFunction.MAX:
                return state.column(f"v{number}")
        counts, sums = state.column(f"n{number}"), state.column(f"s{number}")
        if partial.function is AggregateFunction.SUM:
            if as_array(counts).to_numpy().min(initial=1) <= 0:
                sums = pc.if_else(pc.greater(counts, 0), sums, pa.scalar(None, sums.type))
            return _fitting(sums, type_)
        pairs = zip(sums.to_pylist(), counts.to_pylist(), strict=True)
        return pa.chunked_array([_typed([_average(*pair, type_) if pair[1] else None for pair in pairs], type_)])


@dataclass(frozen=True)
class Gathered:
    """What rows contribute to the groups they touch."""

    groups: pa.Table
    """The keys of each group, what its counts and sums change by, and which values come (`c…`) and go (`w…`)."""
    key_values: list[Hashable] | None = None
    """The keys in the form of `keys.key_values`, if they are known."""


@dataclass(frozen=True)
class Merged:
    """Groups after changes."""

    state: pa.Table
    open: pa.Table | None
    """Keys of those that have yet to find their smallest or largest value."""
    gone: pa.Table | None
    """Keys of groups without rows."""


def _differs_from_sql(type_: pa.DataType) -> bool:
    """Whether Arrow tells values apart that are one group in SQL: NaN, -0.0, the order of a map's entries."""
    return bool(pa.types.is_nested(type_) or pa.types.is_floating(type_))


def _or_zero(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.fill_null(values, pa.scalar(0).cast(values.type)) if values.null_count else values


def _group_numbers(rows: pa.Table, keys: Sequence[str]) -> Integers:
    """The number of the group of each row, from 0 on without gaps."""
    numbers: dict[Hashable, int] = {}
    values = key_values(rows, keys)
    return np.fromiter((numbers.setdefault(key, len(numbers)) for key in values), dtype=np.int64, count=len(values))


def _beats(kind: str, one: pa.ChunkedArray, other: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether a value is there and at least as extreme as the other, which may not be there."""
    if pa.types.is_boolean(one.type):
        one, other = one.cast(pa.int8()), other.cast(pa.int8())
    beats = pc.greater_equal(one, other) if kind == "max" else pc.less_equal(one, other)
    return pc.and_(one.is_valid(), pc.or_(other.is_null(), pc.fill_null(beats, False)))


def _firsts(rows: pa.Table, keys: Sequence[str], numbers: Integers) -> pa.Table:
    """The first row of each group, in the order of their numbers."""
    firsts = np.empty(int(numbers.max()) + 1 if len(numbers) else 0, dtype=np.int64)
    # Of several places written for one number the last one stays, and that is the first one when written backwards.
    firsts[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)
    return rows.select(list(keys)).take(pa.array(firsts))


def _sum_of(before: pa.ChunkedArray, added: pa.ChunkedArray) -> pa.ChunkedArray:
    """Sums and what is added to them, NULL counting as 0; in as many digits as that may take."""
    one, other = small_integers(before), small_integers(added)
    if one is not None and other is not None:
        # Numbers of 63 bits add up to one of 64.
        return pa.chunked_array([decimals_of(one + other, before.type)])
    wide = _wide(before.type)
    return pc.add(_or_zero(before.cast(wide)), added.cast(wide))


def _scale(type_: pa.DataType) -> int:
    return int(type_.scale) if pa.types.is_decimal(type_) else 0


def _wide(type_: pa.DataType) -> pa.DataType:
    return pa.decimal256(_WIDEST, _scale(type_))


def _as_decimal(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Decimals of a type in which all the values together can't overflow."""
    if not pa.types.is_decimal(values.type):
        values = values.cast(pa.int64()).cast(_ANY_INTEGER)
    if values.type.precision + len(str(len(values))) > _WIDE_DIGITS:
        return values.cast(_wide(values.type))
    return values


def _fitting(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    try:
        return values.cast(type_)
    except pa.ArrowInvalid as error:
        raise _overflow(type_) from error


def _average(total: decimal.Decimal, count: int, type_: pa.DataType) -> decimal.Decimal:
    if pa.types.is_floating(type_):
        return decimal.Decimal(float(total) / count)
    return EXACT.divide(total, decimal.Decimal(count))


def _typed(values: Sequence[decimal.Decimal | None], type_: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(type_):
        convert: Callable[[decimal.Decimal], object] = partial_function(fit_decimal, type_=type_)
    else:
        convert = float
    try:
        return pa.array([None if value is None else convert(value) for value in values], type_)
    except (CastError, OverflowError, pa.ArrowInvalid) as error:
        raise _overflow(type_) from error


def _overflow(type_: pa.DataType) -> QueryError:
    return QueryError(
        f"an aggregate of a group is out of the range of {render_type(type_)}", code="overflow", category=Category.DATA
    )
