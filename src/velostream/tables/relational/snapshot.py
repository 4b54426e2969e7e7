"""The newest state of a table in a relational store, read call by call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from velostream.model.expression import Expression
from velostream.model.grouping import Grouping
from velostream.tables.lookups import Wanted
from velostream.tables.reads import StoreSnapshot
from velostream.tables.relational.database import Database
from velostream.tables.relational.reading import Found, Reader


class RelationalSnapshot(StoreSnapshot):
    """What the store holds at the moment of each call; `version` is the one it had when the snapshot was taken.

    Stores keep no older states for us, so two calls may see two states unless they are made within
    `Table.exclusive()`. One call sees one state.
    """

    def __init__(self, database: Database, reader: Reader, *, name: str, version: int) -> None:
        super().__init__(name, reader.layout.schema, version)
        self._database = database
        self._reader = reader

    def lookup_by(
        self,
        on: Sequence[str],
        keys: pa.Array | pa.ChunkedArray | pa.Table,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        on = [self.schema.column(name).name for name in on]
        if not self._reader.compares(on):
            return super().lookup_by(on, keys, columns)
        names = self.names(columns)
        wanted = Wanted(keys, on=on, schema=self.schema, table=self.name)
        found = self._find(wanted.distinct, names)
        return wanted.deal_out(found.numbers, found.rows)

    def rows_having(self, on: Sequence[str], values: pa.Table, columns: Sequence[str]) -> pa.Table:
        return self._find(values, columns).rows

    def scan(self, condition: Expression | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        return self._database.read(lambda connection: self._reader.scan(connection, condition, columns))

    def count(self, condition: Expression | None = None) -> int:
        return self._database.read(lambda connection: self._reader.count(connection, condition))

    def group(self, grouping: Grouping) -> pa.Table | None:
        statement = self._reader.grouping(grouping)
        if statement is None:
            return None
        return self._database.read(lambda connection: self._reader.group(connection, statement))

    def _find(self, values: pa.Table, columns: Sequence[str]) -> Found:
        # Many values may take more than one statement.
        return self._database.read(
            lambda connection: self._reader.find(connection, values, columns), one_state=values.num_rows > 1
        )

    def batches(self, size: int, offset: int = 0) -> Iterator[pa.RecordBatch]:
        with self._database.reading() as connection:
            yield from self._reader.batches(connection, size, offset)
