"""Our types as Delta has them, and back without loss: intervals are microseconds, VOID is text that is always NULL."""

from __future__ import annotations

import pyarrow as pa

from velostream.model.schema import Schema
from velostream.tables.memory.conform import stored_schema


def encoded_type(type_: pa.DataType) -> pa.DataType:
    """The Arrow type under which values of a type are in the files."""
    if pa.types.is_duration(type_):
        return pa.int64()
    if pa.types.is_null(type_):
        return pa.string()
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, encoded_type(field.type)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(encoded_type(type_.key_type), encoded_type(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(encoded_type(type_.value_type))
    return type_


class Codec:
    """The columns of one table."""

    def __init__(self, schema: Schema) -> None:
        self._decoded = stored_schema(schema)
        self.encoded = pa.schema([pa.field(field.name, encoded_type(field.type)) for field in self._decoded])
        """As the files have them. NOT NULL is held by us, so that a file never stands in the way."""

    @property
    def is_identity(self) -> bool:
        """Whether the files hold all values just as we know them."""
        return bool(self.encoded.types == self._decoded.types)

    def encode(self, rows: pa.Table) -> pa.Table:
        return _cast(rows, self.encoded)

    def decode(self, rows: pa.Table) -> pa.Table:
        """Some or all columns of the table, as they are in the files."""
        return _cast(rows, pa.schema([self._decoded.field(name) for name in rows.column_names]))

    def empty(self, columns: list[str]) -> pa.Table:
        return pa.schema([self._decoded.field(name) for name in columns]).empty_table()


def _cast(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        pa.chunked_array([pa.nulls(len(column), field.type)], field.type)
        if pa.types.is_null(field.type) or pa.types.is_null(column.type)
        else column.cast(field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)
