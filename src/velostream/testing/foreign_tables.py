"""Other programs at the stores of our tables: they make and write tables by the store's own means.

Tests adopt such tables, and look whether what is written behind our back is seen.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet


class ForeignTable(Protocol):
    """A table made and written by another program, by the store's own means: `id` (key), `name`, `amount`.

    Its columns are those of `table_cases.KEYED`: BIGINT, STRING and DECIMAL(10,2).
    """

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        """Make the row, or change the one that is there."""

    def remove(self, id_: int) -> None: ...

    def exists(self) -> bool: ...

    def close(self) -> None: ...


class SqlForeignTable:
    """Another program at a database; `url` is one that SQLAlchemy understands."""

    def __init__(self, url: str, name: str) -> None:
        import sqlalchemy

        self._text = sqlalchemy.text
        self._engine = sqlalchemy.create_engine(url)
        self._inspect = sqlalchemy.inspect
        self._name = name
        self._table = self._engine.dialect.identifier_preparer.quote(name)
        self._execute(
            f"CREATE TABLE {self._table} (id BIGINT NOT NULL PRIMARY KEY, name VARCHAR(100), amount DECIMAL(10,2))"
        )

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._text(f"DELETE FROM {self._table} WHERE id = :id"), {"id": id_})
            connection.execute(
                self._text(f"INSERT INTO {self._table} VALUES (:id, :name, :amount)"),
                {"id": id_, "name": name, "amount": None if amount is None else str(amount)},
            )

    def remove(self, id_: int) -> None:
        self._execute(f"DELETE FROM {self._table} WHERE id = :id", id=id_)

    def exists(self) -> bool:
        return bool(self._inspect(self._engine).has_table(self._name))

    def close(self) -> None:
        self._engine.dispose()

    def _execute(self, statement: str, **values: Any) -> None:
        with self._engine.begin() as connection:
            connection.execute(self._text(statement), values)


class ClickhouseForeignTable:
    """Another program at a ClickHouse, which has made a table of some rows."""

    def __init__(self, url: str, name: str, rows: pa.Table) -> None:
        from velostream.testing.services.clickhouse import ClickhouseService

        self._service = ClickhouseService(url=url)
        self._execute = self._service.execute
        self._table = "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
        columns = ", ".join(f"`{field.name}` {_clickhouse_type(field)}" for field in rows.schema)
        self._execute(f"CREATE TABLE {self._table} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
        if rows.num_rows:
            self._service.load(f"INSERT INTO {self._table} FORMAT Parquet", _as_parquet(rows))

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        self.remove(id_)
        values = {"id": str(id_), "name": "\\N" if name is None else name, "amount": str(amount or "\\N")}
        markers = "{id:Int64}, {name:Nullable(String)}, {amount:Nullable(Decimal(10, 2))}"
        self._execute(f"INSERT INTO {self._table} VALUES ({markers})", **values)

    def remove(self, id_: int) -> None:
        self._execute(f"DELETE FROM {self._table} WHERE id = {int(id_)}")

    def exists(self) -> bool:
        return self._execute(f"EXISTS TABLE {self._table}") == b"1\n"

    def close(self) -> None:
        self._execute(f"DROP TABLE IF EXISTS {self._table}")


class LakeForeignTable:
    """Another program at a Delta table."""

    def __init__(self, location: Path) -> None:
        import deltalake

        self._lake = deltalake
        self._location = str(location)
        columns = {"id": pa.int64(), "name": pa.string(), "amount": pa.decimal128(10, 2)}
        self._schema = pa.schema(list(columns.items()))
        deltalake.DeltaTable.create(self._location, self._schema)

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        self.remove(id_)
        rows = pa.Table.from_pylist([{"id": id_, "name": name, "amount": amount}], self._schema)
        self._lake.write_deltalake(self._location, rows, mode="append")

    def remove(self, id_: int) -> None:
        self._lake.DeltaTable(self._location).delete(f"id = {int(id_)}")

    def exists(self) -> bool:
        return self._lake.DeltaTable.is_deltatable(self._location)

    def close(self) -> None:
        """Nothing is held."""


class MongodbForeignTable:
    """Another program at a MongoDB, whose documents have fields that are no columns."""

    def __init__(self, url: str, name: str) -> None:
        import pymongo

        self._client: Any = pymongo.MongoClient(url)
        self._collection = self._client.get_default_database()[name]

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        from bson.decimal128 import Decimal128

        values = {"name": name, "amount": None if amount is None else Decimal128(amount), "note": "theirs"}
        self._collection.update_one({"id": id_}, {"$set": values}, upsert=True)

    def remove(self, id_: int) -> None:
        self._collection.delete_one({"id": id_})

    def exists(self) -> bool:
        return self._collection.name in self._collection.database.list_collection_names()

    def close(self) -> None:
        self._collection.drop()
        self._client.close()


class RedisForeignTable:
    """Another program at a Redis: a hash per row, whose key has the row's key after a colon."""

    def __init__(self, url: str, name: str) -> None:
        import redis

        self._client: Any = redis.Redis.from_url(url)
        self._name = name

    def put(self, id_: int, name: str | None, amount: Decimal | None = None) -> None:
        given = {"name": name, "amount": amount}
        self.remove(id_)
        values = {field: str(value) for field, value in given.items() if value is not None}
        self._client.hset(f"{self._name}:{id_}", mapping={"note": "theirs", **values})

    def remove(self, id_: int) -> None:
        self._client.delete(f"{self._name}:{id_}")

    def exists(self) -> bool:
        return bool(self._keys())

    def close(self) -> None:
        for key in self._keys():
            self._client.delete(key)
        self._client.close()

    def _keys(self) -> list[bytes]:
        return list(self._client.scan_iter(match=f"{self._name}:[0-9]*"))


def _clickhouse_type(field: pa.Field) -> str:
    """A type of ClickHouse's for the values of a plain type."""
    type_ = field.type
    if pa.types.is_decimal(type_):
        name = f"Decimal({type_.precision}, {type_.scale})"
    elif pa.types.is_timestamp(type_):
        name = "DateTime64(6, 'UTC')"
    elif pa.types.is_integer(type_):
        name = f"Int{type_.bit_width}"
    else:
        names = {pa.bool_(): "Bool", pa.date32(): "Date32", pa.float32(): "Float32", pa.float64(): "Float64"}
        name = names.get(type_, "String")
    return f"Nullable({name})" if field.nullable else name


def _as_parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(rows, sink)
    return bytes(sink.getvalue())
