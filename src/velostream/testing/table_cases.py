"""Rows, types, names and programs that table kinds are tried with, and a model of what they should give."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from velostream.model.change import CHANGE, Mode, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.model.schema import Schema
from velostream.tables.memory.compare import hashable_rows

KEYED = Schema.of(("id", "BIGINT"), ("name", "STRING"), ("amount", "DECIMAL(10,2)"), key=["id"])
BAG = Schema(KEYED.columns)

_FAR_PAST = datetime(1, 1, 1, tzinfo=UTC)
_FAR_FUTURE = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
TYPES: Mapping[str, Sequence[Any]] = {
    "BOOLEAN": [True, False],
    "TINYINT": [-128, 127],
    "SMALLINT": [-(2**15), 2**15 - 1],
    "INT": [-(2**31), 0, 2**31 - 1],
    "BIGINT": [-(2**63), 0, 2**63 - 1],
    "FLOAT": [0.5, math.nan, math.inf],
    "DOUBLE": [0.1, math.nan, -math.inf, 5e-324, 1.7976931348623157e308],
    "DECIMAL(10,2)": [Decimal("-0.50"), Decimal("1.50"), Decimal("99999999.99")],
    "DECIMAL(38,0)": [Decimal("9" * 38), Decimal("-" + "9" * 38)],
    "DECIMAL(38,38)": [Decimal("0." + "9" * 38), Decimal(0)],
    "STRING": ["", " ", 'O\'Reilly "x" \\ % _ ;--', "naïve 日本語 😀 e\u0301", "a\0b", "x" * 100_000],
    "BINARY": [b"", b"\0\xff", b"\x80" * 5000],
    "DATE": [date(1, 1, 1), date(1969, 12, 31), date(9999, 12, 31)],
    "TIMESTAMP": [_FAR_PAST, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), _FAR_FUTURE],
    "TIMESTAMP_NTZ": [_FAR_PAST.replace(tzinfo=None), _FAR_FUTURE.replace(tzinfo=None)],
    "INTERVAL": [timedelta(microseconds=-1), timedelta(days=10_000)],
    "ARRAY<INT>": [[], [1, None, 2]],
    "MAP<STRING, DECIMAL(5,2)>": [[], [("a", Decimal("1.50")), ("b", None)]],
    "STRUCT<a: INT, b: STRUCT<c: ARRAY<STRING>>>": [{"a": None, "b": None}, {"a": 1, "b": {"c": ["x", None]}}],
    "STRUCT<at: TIMESTAMP, data: BINARY, price: DECIMAL(20,10), day: DATE, ratio: DOUBLE, span: INTERVAL>": [
        {
            "at": _FAR_FUTURE,
            "data": b"\0\xff",
            "price": Decimal("-0.0000000001"),
            "day": date(1, 1, 1),
            "ratio": math.nan,
            "span": timedelta(microseconds=-1),
        },
    ],
    "MAP<INT, ARRAY<DOUBLE>>": [[(2**31 - 1, [math.inf, None]), (-1, [])]],
}
_FEWEST_TURNS = 3
NAMES = (
    'quote"inside',
    "apostrophe's",
    "back`tick",
    "dotted.name",
    "with space",
    "select",
    "größe",
    "x; DROP TABLE t; --",
    "%s",
    "{}",
)


def rows_of(schema: Schema, *rows: Sequence[Any]) -> pa.Table:
    """Rows given as tuples; a tuple may be shorter than the schema."""
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=False)) for row in rows], schema.arrow)


def write(mode: Mode, *rows: Sequence[Any], schema: Schema = KEYED) -> Write:
    return Write(mode, rows_of(schema, *rows))


def keys(*values: int) -> Write:
    """A deletion by key."""
    return Write(Mode.DELETE, pa.table({"id": pa.array(values, pa.int64())}))


def changes(*rows: tuple[Sequence[Any], int]) -> Write:
    table = rows_of(KEYED, *(row for row, _ in rows))
    return Write(Mode.CHANGES, table.append_column(CHANGE, pa.array([sign for _, sign in rows], pa.int8())))


def content(rows: pa.Table) -> Counter[Any]:
    """Rows as a multiset, compared by value."""
    return Counter(hashable_rows(rows))


def equals(column: str, value: Any, type_: pa.DataType) -> Call:
    return Call("=", (ColumnRef(column), Literal(value, type_)))


def run_together(
    read_once: Callable[[int], None], write_once: Callable[[int, int], None], *, readers: int, writers: int, steps: int
) -> list[int]:
    """Read over and over while each writer takes its steps, from 1 on; every reader reads thrice or more meanwhile.

    Gives how many steps each writer took. The callables get the number of the reader, or of the writer and its step.
    """
    turns = [0] * readers
    taken = [0] * writers
    ended = threading.Event()

    def read(reader: int) -> None:
        try:
            while not ended.is_set():
                read_once(reader)
                turns[reader] += 1
        finally:
            ended.set()

    def work(writer: int) -> None:
        try:
            while not ended.is_set() and (min(taken) < steps or min(turns) < _FEWEST_TURNS):
                write_once(writer, taken[writer] + 1)
                taken[writer] += 1
        finally:
            ended.set()

    in_threads(
        [
            *(lambda writer=writer: work(writer) for writer in range(writers)),
            *(lambda reader=reader: read(reader) for reader in range(readers)),
        ]
    )
    return taken


def in_threads(tasks: Sequence[Callable[[], None]]) -> None:
    """Run tasks at once; raises the first thing that went wrong in any of them."""
    failures: list[BaseException] = []

    def run(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class Model:
    """A table as a multiset of rows, with the modes as the seam describes them."""

    def __init__(self, *, keyed: bool) -> None:
        self.keyed = keyed
        self.rows: Counter[Any] = Counter()

    def apply(self, step: Write) -> None:
        """`KeyError` for what the table has to refuse."""
        rows = Counter(self.rows)
        signs = step.rows.column(CHANGE).to_pylist() if step.mode is Mode.CHANGES else [1] * step.rows.num_rows
        given: list[Any] = list(hashable_rows(step.rows.select(list(KEYED.names))))
        match step.mode:
            case Mode.REPLACE:
                rows = Counter()
            case Mode.DELETE:
                signs = [-1] * len(given)
            case Mode.APPEND if self.keyed:
                taken = {row[0] for row in rows.elements()}
                if len({row[0] for row in given}) < len(given) or any(row[0] in taken for row in given):
                    raise KeyError(step)
            case _:
                pass
        for row, sign in zip(given, signs, strict=True):
            self._change(rows, row, sign)
        self.rows = +rows

    def _change(self, rows: Counter[Any], row: Any, sign: int) -> None:
        if self.keyed:
            for other in [other for other in rows if other[0] == row[0]]:
                del rows[other]
        if sign > 0:
            rows[row] += 1
        elif rows[row] > 0:
            rows[row] -= 1


_ROW = st.tuples(st.integers(0, 5), st.sampled_from([None, "a", "é"]), st.sampled_from([None, Decimal("1.50")]))
_ROWS = st.lists(_ROW, max_size=5)
STEPS = st.one_of(
    *(
        _ROWS.map(lambda rows, mode=mode: write(mode, *rows))  # type: ignore[misc]
        for mode in (Mode.APPEND, Mode.UPSERT, Mode.DELETE, Mode.REPLACE)
    ),
    st.lists(st.tuples(_ROW, st.sampled_from([1, -1])), max_size=6).map(lambda rows: changes(*rows)),
    st.sampled_from(["reopen", "crash"]),
)
