"""The kind `sqlite`: tables in a SQLite file, by Python's own driver."""

from __future__ import annotations

import re
import shutil
import sqlite3
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa

from velostream.errors import Category, OptionError
from velostream.model.options import Options
from velostream.tables.base import TableSpec
from velostream.tables.relational.base import RelationalTable
from velostream.tables.relational.codec import (
    Codec,
    decode_as,
    decode_booleans,
    decode_bytes,
    decode_decimals,
    decode_floats,
    decode_microseconds,
    decode_nested,
    decode_text,
    encode_as_text,
    encode_booleans_as_integers,
    encode_floats_with_nan_as_text,
    encode_microseconds,
    encode_nested,
    encode_times_as_text,
    plain,
)
from velostream.tables.relational.dialect import Dialect, DriverConnection, Failure, Trouble, encoded_rows
from velostream.tables.relational.layout import DeclaredColumn, DeclaredTable, Layout, StoredColumn
from velostream.tables.stored import is_read_only

_DIGITS_OF_DOUBLE = 15
"""Decimals of so many digits keep their order as doubles, whatever the last bit of a conversion."""
_PREPARED_STATEMENTS = 512
_FILE = "table.sqlite"
_BINARY = "{} COLLATE BINARY"
_LOW_WORD = (1 << 32) - 1
_ROW_NUMBERS = ("rowid", "_rowid_", "oid")
"""Names of SQLite's own number of a row; a column of that name hides one."""


class SqliteTable(RelationalTable):
    """A table in a SQLite file. Without `url` the file is in the table's own directory."""

    kind: ClassVar[str] = "sqlite"

    @classmethod
    def dialect_of(cls, spec: TableSpec, options: Options) -> SqliteDialect:
        url = options.text("url")
        folder: str | None = None
        if url is not None:
            path = _path_of(url)
        elif spec.directory is not None:
            spec.directory.mkdir(parents=True, exist_ok=True)
            path = spec.directory / _FILE
        else:
            folder = tempfile.mkdtemp(prefix="velostream-sqlite-")
            path = Path(folder) / _FILE
        wait = options.duration("query.timeout") or timedelta()
        dialect = SqliteDialect(path, wait=wait, read_only=is_read_only(options))
        if folder is not None:
            weakref.finalize(dialect, shutil.rmtree, folder, ignore_errors=True)
        return dialect


class SqliteDialect(Dialect):
    """SQLite: one writer, readers undisturbed by it (WAL), values with types of their own rather than the column's.

    NaN, which SQLite can't store, is the text 'NaN': texts are above all numbers, as NaN is. Decimals and times are
    texts. A key that may hold NULL is a unique index over an expression that puts an empty BLOB for NULL.
    """

    kind: ClassVar[str] = "sqlite"
    one_writer: ClassVar[bool] = True
    lock_clause: ClassVar[str] = ""
    errors = (sqlite3.Error,)

    def __init__(self, path: Path, *, wait: timedelta, read_only: bool = False) -> None:
        """`wait` is how long to wait for another's lock."""
        self._path = path.absolute()
        self._wait = wait
        self._read_only = read_only
        self._process = uuid.uuid4().hex
        self._compares_utf8 = True
        """Texts are compared by the bytes of the file's encoding; known once there was a connection."""

    @property
    def address(self) -> str:
        return f"{self._path}?mode=ro" if self._read_only else str(self._path)

    def connect(self) -> DriverConnection:
        connection = sqlite3.connect(
            f"{self._path.as_uri()}?mode={'ro' if self._read_only else 'rwc'}",
            uri=True,
            timeout=self._wait.total_seconds(),
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_PREPARED_STATEMENTS,
        )
        try:
            if not self._read_only:
                # Readers then don't hold up the writer nor the writer them.
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")
            (encoding,) = connection.execute("PRAGMA encoding").fetchone()
        except sqlite3.Error:
            connection.close()
            raise
        self._compares_utf8 = encoding == "UTF-8"
        return connection

    def begin(self, connection: DriverConnection, *, write: bool) -> None:
        self.run(connection, "BEGIN IMMEDIATE" if write else "BEGIN")

    def failure(self, error: BaseException) -> Failure:
        name = getattr(error, "sqlite_errorname", "") or ""
        reason = str(error)
        match name.removeprefix("SQLITE_").split("_"):
            case ["CONSTRAINT", "UNIQUE" | "PRIMARYKEY" | "ROWID"]:
                return Failure(Trouble.DUPLICATE, Category.CONFLICT, reason)
            case ["CONSTRAINT" | "TOOBIG" | "MISMATCH", *_]:
                return Failure(Trouble.CONSTRAINT, Category.DATA, reason)
            case ["BUSY" | "LOCKED", *_]:
                return Failure(Trouble.TRANSIENT, Category.CONCURRENCY, reason)
            case ["CANTOPEN", *_]:
                return Failure(Trouble.OTHER, Category.MISSING, reason)
            case ["NOTADB" | "CORRUPT", *_]:
                return Failure(Trouble.OTHER, Category.CONFIGURATION, reason)
            case ["PERM" | "AUTH" | "READONLY", *_]:
                return Failure(Trouble.OTHER, Category.AUTHENTICATION, reason)
            case ["FULL" | "IOERR", *_]:
                return Failure(Trouble.OTHER, Category.STATE, reason)
        return Failure(Trouble.OTHER, Category.UNKNOWN, reason)

    def stamp(self, connection: DriverConnection, layout: Layout, version: int) -> str | None:
        # The number is a connection's own, so it says nothing to another process.
        seen = self.scalar(connection, "PRAGMA data_version")
        return f"{self._process}:{seen}:{version}"

    def codec(self, type_: pa.DataType) -> Codec:
        if pa.types.is_boolean(type_):
            return Codec(type_, "BOOLEAN", encode_booleans_as_integers, decode_booleans)
        if pa.types.is_integer(type_):
            return Codec(type_, "INTEGER", plain, decode_as(type_))
        if pa.types.is_floating(type_):
            return Codec(type_, "DOUBLE", encode_floats_with_nan_as_text, decode_floats(type_))
        if pa.types.is_decimal(type_):
            order = "CAST({} AS REAL)" if type_.precision <= _DIGITS_OF_DOUBLE else None
            return Codec(type_, "TEXT", encode_as_text, decode_text(type_), order=order)
        if pa.types.is_string(type_):
            order = _BINARY if self._compares_utf8 else None
            return Codec(type_, "TEXT", plain, decode_as(type_), equality=_BINARY, order=order)
        if pa.types.is_binary(type_):
            return Codec(type_, "BLOB", plain, decode_bytes)
        if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
            return Codec(type_, "TEXT", encode_times_as_text, decode_text(type_))
        if pa.types.is_duration(type_):
            return Codec(type_, "INTEGER", encode_microseconds, decode_microseconds(type_))
        return Codec(type_, "TEXT", encode_nested, decode_nested(type_), equality=None, order=None)

    def adopted_codec(self, type_: pa.DataType, store_type: str) -> Codec | None:
        ours = self.codec(type_)
        affinity = _affinity(store_type)
        if affinity not in _FITTING_AFFINITIES[_affinity(ours.store_type)]:
            return None
        decode = decode_decimals(type_) if pa.types.is_decimal(type_) else ours.decode
        if any(is_one(type_) for is_one in _WRITTEN_OTHERWISE):
            return Codec(type_, store_type, ours.encode, decode, equality=None, order=None)
        return Codec(type_, store_type, ours.encode, decode, equality=ours.equality, order=ours.order)

    def declared(self, connection: DriverConnection, name: str) -> DeclaredTable | None:
        found = list(
            self.rows(
                connection,
                'SELECT name, type, "notnull", dflt_value IS NOT NULL, pk FROM pragma_table_info(?) ORDER BY cid',
                [name],
            )
        )
        if not found:
            return None
        key = [row for row in found if row[4]]
        # The primary key of SQLite may hold NULLs, unless it is the number of the row.
        numbered_by = key[0][0] if len(key) == 1 and key[0][1].upper() == "INTEGER" else None
        columns = tuple(
            DeclaredColumn(column, type_, nullable=not not_null and column != numbered_by, has_default=bool(default))
            for column, type_, not_null, default, _ in found
        )
        unique = [frozenset(row[0] for row in key)]
        indexes = []
        listed = self.rows(connection, 'SELECT name, "unique" FROM pragma_index_list(?) WHERE NOT partial', [name])
        for index, is_unique in list(listed):
            names = [row[0] for row in self.rows(connection, "SELECT name FROM pragma_index_info(?)", [index])]
            # An index over an expression has no name there.
            if None not in names:
                indexes.append(tuple(names))
                unique += [frozenset(names)] if is_unique else []
        numbered = "SELECT 1 FROM pragma_table_list(?) WHERE schema = 'main' AND type = 'table' AND NOT wr"
        # Views have no numbers, nor have tables WITHOUT ROWID.
        identity = _row_number(row[0] for row in found) if self.scalar(connection, numbered, [name]) else None
        return DeclaredTable(columns, tuple(unique), identity, tuple(indexes))

    def identity(self, layout: Layout) -> tuple[str | None, bool]:
        return _row_number(column.stored_name for column in layout.columns), False

    def enforces(self, layout: Layout) -> bool:
        return True

    def create_statements(self, layout: Layout) -> list[str]:
        columns = [self.column_definition(column) for column in layout.columns]
        natural = layout.key and not any(column.nullable for column in layout.key)
        if natural:
            columns.append(f"PRIMARY KEY ({', '.join(self._key_terms(layout))})")
        statements = [f"CREATE TABLE {layout.quoted} ({', '.join(columns)})"]
        if layout.key and not natural:
            index = self.quote(f"{layout.name} key")
            terms = ", ".join(self._key_terms(layout))
            statements.append(f"CREATE UNIQUE INDEX {index} ON {layout.quoted} ({terms})")
        return statements

    def quote_table(self, name: str) -> str:
        return self.quote(name)

    def same(self, left: str, right: str) -> str:
        return f"{left} IS {right}"

    def key_condition(self, layout: Layout, columns: Sequence[str], values: Sequence[str]) -> str:
        sides = zip(layout.key, columns, values, strict=True)
        if layout.made:
            return " AND ".join(f"{_never_null(key, name)} = {_never_null(key, value)}" for key, name, value in sides)
        return " AND ".join(self.same((key.codec.equality or "{}").format(name), value) for key, name, value in sides)

    def equality_condition(self, layout: Layout, column: StoredColumn, left: str, values: Sequence[str]) -> str:
        if layout.made and column in layout.key:
            left = _never_null(column, self.quote(column.stored_name))
        return super().equality_condition(layout, column, left, values)

    def sum_expression(self, layout: Layout, column: StoredColumn, name: str) -> str | None:
        """In two halves of 32 bits: a sum beyond 64 is an error here. A user's column may hold what is no integer."""
        if not layout.made or not pa.types.is_integer(column.codec.type):
            return None
        return f"SUM({name} >> 32) || ' ' || SUM({name} & {_LOW_WORD})"

    def exact_sum(self, value: Any) -> Decimal:
        high, low = map(int, value.split())
        return Decimal((high << 32) + low)

    def upsert(self, connection: DriverConnection, layout: Layout, rows: pa.Table) -> int | None:
        names = [self.quote(column.stored_name) for column in layout.columns]
        keys = {column.name for column in layout.key}
        others = [name for name, column in zip(names, layout.columns, strict=True) if column.name not in keys]
        target = ", ".join(self._key_terms(layout) if layout.made else (self.quote(c.stored_name) for c in layout.key))
        statement = (
            f"INSERT INTO {layout.quoted} ({', '.join(names)}) VALUES ({', '.join(self.markers(len(names)))}) "
            f"ON CONFLICT ({target}) DO "
        )
        if others:
            statement += f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)} WHERE "
            statement += " OR ".join(f"{layout.quoted}.{name} IS NOT excluded.{name}" for name in others)
        else:
            statement += "NOTHING"
        return self.run_many(connection, statement, encoded_rows(layout.columns, rows))

    def _key_terms(self, layout: Layout) -> list[str]:
        return [_never_null(column, self.quote(column.stored_name)) for column in layout.key]


def _row_number(columns: Iterable[str]) -> str | None:
    taken = {name.lower() for name in columns}
    return next((name for name in _ROW_NUMBERS if name not in taken), None)


def _never_null(column: StoredColumn, expression: str) -> str:
    """The expression with NULL replaced by a value that the column can't have."""
    if not column.nullable:
        return expression
    nothing = "''" if pa.types.is_binary(column.codec.type) else "x''"
    return f"ifnull({expression}, {nothing})"


_WRITTEN_OTHERWISE = (
    pa.types.is_boolean,
    pa.types.is_float32,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    pa.types.is_date,
)
"""Types for whose values other programs have more than one notation, which only we know to be equal."""
_FITTING_AFFINITIES: dict[str, frozenset[str]] = {
    "INTEGER": frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    "REAL": frozenset({"REAL", "NUMERIC", "BLOB"}),
    "NUMERIC": frozenset({"INTEGER", "NUMERIC", "BLOB"}),
    "TEXT": frozenset({"TEXT", "NUMERIC", "REAL", "BLOB"}),
    "BLOB": frozenset({"BLOB"}),
}
"""For the affinity of a column as we would make it: those of a user's column that can hold the same values."""


def _affinity(store_type: str) -> str:
    """By the rules of SQLite's documentation, in their order."""
    text = store_type.upper()
    if "INT" in text:
        return "INTEGER"
    if re.search("CHAR|CLOB|TEXT", text):
        return "TEXT"
    if "BLOB" in text or not text:
        return "BLOB"
    return "REAL" if re.search("REAL|FLOA|DOUB", text) else "NUMERIC"


def _path_of(url: str) -> Path:
    """`sqlite:///relative`, `sqlite:////absolute`, or a plain path."""
    match = re.fullmatch(r"sqlite(?:\+\w+)?:///(?P<path>[^?]+)(?:\?.*)?", url)
    if match is not None:
        return Path(unquote(match["path"]))
    if "://" in url or url.startswith("sqlite:") or url == ":memory:":
        raise OptionError.value("url", url, expected="sqlite:///path/to/file.db")
    return Path(url)
