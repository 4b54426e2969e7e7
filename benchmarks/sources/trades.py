"""The rows that every source has here, as its own writers would have left them, and what of them is checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.harness import expect
from velostream.engine.handle import TableHandle

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "account": pa.string(),
        "symbol": pa.string(),
        "quantity": pa.int64(),
        "price": pa.decimal128(18, 2),
    }
)
SQL_COLUMNS = "id bigint PRIMARY KEY, account text, symbol text, quantity bigint, price numeric(18,2)"
_ACCOUNTS, _SYMBOLS = 1_000, 50


def trades(count: int, *, first: int = 0, lot: int = 1) -> pa.Table:
    """So many trades from a number on; quantities are multiples of `lot`, so that a new value of a row shows."""
    numbers = np.arange(first, first + count)
    accounts = pa.array([f"ACC{number:06}" for number in range(_ACCOUNTS)])
    symbols = pa.array([f"S{number}" for number in range(_SYMBOLS)])
    cents = pa.array(numbers % 100_000 + 1).cast(pa.decimal128(19, 0))
    columns = [
        pa.array(numbers),
        accounts.take(pa.array(numbers % _ACCOUNTS)),
        symbols.take(pa.array(numbers % _SYMBOLS)),
        pa.array((numbers % 100 + 1) * lot),
        pc.multiply(cents, pa.scalar("0.01").cast(pa.decimal128(3, 2))).cast(pa.decimal128(18, 2)),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def json_objects(rows: pa.Table) -> Iterator[str]:
    """Each row as one line of JSON, with the digits that a price has."""
    for batch in rows.to_batches(max_chunksize=50_000):
        texts = batch.set_column(4, "price", batch["price"].cast(pa.string()))
        for id_, account, symbol, quantity, price in zip(
            *(column.to_pylist() for column in texts.columns), strict=True
        ):
            yield f'{{"id":{id_},"account":"{account}","symbol":"{symbol}","quantity":{quantity},"price":{price}}}'


@dataclass(frozen=True)
class Content:
    """What a table or what a driver delivered holds, as far as it is checked."""

    rows: int
    quantity: int
    ids: int
    """Their sum: with the number of rows it tells rows that are there twice from rows that are all there."""

    @classmethod
    def of_arrow(cls, rows: pa.Table) -> Self:
        return cls(rows.num_rows, pc.sum(rows["quantity"]).as_py(), pc.sum(rows["id"]).as_py())

    @classmethod
    def of_table(cls, table: TableHandle) -> Self:
        return cls.of_arrow(table.arrow().select(["id", "quantity"]))

    def expect(self, found: Content) -> None:
        expect(found == self, f"gave {found}, right is {self}")
