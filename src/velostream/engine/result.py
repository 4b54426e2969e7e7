"""What a statement answers: rows to fetch as in DB-API and DuckDB, as Arrow, or as pandas.

Python values are int, float, str, bool, bytes, Decimal, date, datetime (naive, in UTC), list, and dict for structs
and maps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from velostream.model.types import render_type
from velostream.model.variant import holds_variant
from velostream.tables.memory.values import shown_values

if TYPE_CHECKING:
    import pandas as pd

Values = tuple[Any, ...]

AFFECTED = "rowcount"
"""Name of the only column of a DML statement's result."""

_AFFECTED_TYPES = (pa.int64(),)
_BATCH_ROWS = 65_536


def rows_of(table: pa.Table) -> list[Values]:
    """The rows as tuples of Python values. Columns are taken by position: their names need not be unique."""
    if not table.num_columns:
        return [()] * table.num_rows
    return list(zip(*(shown_values(column) for column in table.columns), strict=True))


class Result:
    """The answer to one statement.

    `fetchone`, `fetchmany`, `fetchall` and iteration share one position; `arrow` and `df` give the whole answer. For
    one thread at a time. A streaming answer (a push query) may have no end: iterate over it, and `close` it to end its
    query.
    """

    def __init__(
        self,
        columns: Sequence[str],
        rows: Iterator[Values],
        *,
        table: Callable[[], pa.Table],
        rowcount: int,
        types: Sequence[pa.DataType] | None = None,
        cancel: Callable[[], None] | None = None,
        message: str | None = None,
    ) -> None:
        self._columns = list(columns)
        self._rows = rows
        self._table = table
        self._rowcount = rowcount
        self._types = types
        self._cancel = cancel
        self._closed = False
        self._message = message

    @classmethod
    def of(cls, table: pa.Table) -> Self:
        """The rows of an Arrow table."""
        return cls(
            table.column_names,
            chain.from_iterable(map(rows_of, _slices(table))),
            table=lambda: table,
            rowcount=table.num_rows,
            types=table.schema.types,
        )

    @classmethod
    def affected(cls, count: int) -> Self:
        """The answer to DML: how many rows it changed, as `rowcount` and as one row."""
        return cls(
            [AFFECTED],
            iter([(count,)]),
            table=lambda: pa.table({AFFECTED: pa.array([count], pa.int64())}),
            rowcount=count,
            types=_AFFECTED_TYPES,
            message="1 row" if count == 1 else f"{count} rows",
        )

    @classmethod
    def done(cls, message: str) -> Self:
        """The answer to a statement that doesn't ask for rows: what it did, also as one row."""
        row = (message,)
        return cls(["status"], iter([row]), table=lambda: _table_of(["status"], [row]), rowcount=1, message=message)

    @classmethod
    def rows(cls, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Self:
        """Rows of Python values, as EXPLAIN, SHOW and DESCRIBE give them."""
        fixed = [tuple(row) for row in rows]
        return cls(columns, iter(fixed), table=lambda: _table_of(columns, fixed), rowcount=len(fixed))

    @classmethod
    def streaming(
        cls,
        columns: Sequence[str],
        rows: Iterator[Values],
        cancel: Callable[[], None],
        *,
        types: Sequence[pa.DataType] | None = None,
    ) -> Self:
        """Rows as they come. `cancel` is called once: by `close`, or when the rows end by themselves."""
        result = cls(
            columns, iter(()), table=lambda: _table_of(columns, result.fetchall(), types), rowcount=-1, types=types
        )
        result._rows = result._until_closed(rows)
        result._cancel = cancel
        return result

    @property
    def columns(self) -> list[str]:
        """Plain names, in order; a name may occur twice."""
        return list(self._columns)

    @property
    def rowcount(self) -> int:
        """Rows of the answer, or rows changed by DML; -1 for a streaming answer."""
        return self._rowcount

    @property
    def message(self) -> str | None:
        """What the statement did, in a few words; None when it asked for rows."""
        return self._message

    @property
    def description(self) -> list[tuple[str, str | None, None, None, None, None, None]]:
        """DB-API's seven items per column: the name, the SQL type where it is known, and five that it leaves empty."""
        types = [None] * len(self._columns) if self._types is None else [render_type(type_) for type_ in self._types]
        return [(name, type_, None, None, None, None, None) for name, type_ in zip(self._columns, types, strict=True)]

    def __iter__(self) -> Iterator[Values]:
        return self._rows

    def fetchone(self) -> Values | None:
        return next(self._rows, None)

    def fetchmany(self, size: int = 1) -> list[Values]:
        return list(islice(self._rows, size))

    def fetchall(self) -> list[Values]:
        """All rows not fetched yet."""
        return list(self._rows)

    def arrow(self) -> pa.Table:
        """The whole answer; of a streaming one what comes until its end."""
        return self._table()

    def df(self) -> pd.DataFrame:
        """The whole answer as a pandas DataFrame; decimals stay Decimal."""
        table = self.arrow()
        frame = table.to_pandas(maps_as_pydicts="lossy")
        for place, column in enumerate(table.columns):
            if holds_variant(column.type):
                frame.isetitem(place, shown_values(column))
        return frame

    def close(self) -> None:
        """End the query behind a streaming answer; calling it again, or on any other answer, does nothing more."""
        if self._closed:
            return
        self._closed = True
        if self._cancel is not None:
            self._cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _until_closed(self, rows: Iterator[Values]) -> Iterator[Values]:
        try:
            for row in rows:
                if self._closed:
                    return
                yield row
        finally:
            self.close()


def _slices(table: pa.Table) -> Iterator[pa.Table]:
    """Parts to decode one at a time, so that looking at the first rows of a big answer is cheap."""
    for start in range(0, table.num_rows, _BATCH_ROWS):
        yield table.slice(start, _BATCH_ROWS)


def _table_of(columns: Sequence[str], rows: Sequence[Values], types: Sequence[pa.DataType] | None = None) -> pa.Table:
    arrays = [
        _array_of([row[position] for row in rows], None if types is None else types[position])
        for position in range(len(columns))
    ]
    return pa.Table.from_arrays(arrays, names=list(columns))


def _array_of(values: list[Any], type_: pa.DataType | None) -> pa.Array:
    if type_ is not None:
        return pa.array(values, type_)
    if all(value is None or isinstance(value, str) for value in values):
        return pa.array(values, pa.string())
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
