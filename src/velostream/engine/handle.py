"""The table object people get from `con.table("t")`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from velostream.engine.conditions import Condition, ConditionCache, cache_of
from velostream.engine.dml import Change, Evaluate, delete_rows, truncate, update_rows
from velostream.engine.result import Result
from velostream.engine.rows import ArrowRows, Page, RowStream
from velostream.engine.scalar import scalar_value
from velostream.engine.wildcard import path_aggregate, path_values
from velostream.errors import NotExecutableError, NotFoundError, TableError, UnsupportedError, ValidationError
from velostream.model.change import Mode, Write
from velostream.model.expression import SqlText
from velostream.model.rows import rows_to_arrow
from velostream.model.schema import Schema
from velostream.sql.parameters import Parameters
from velostream.sql.parse import parse_expression
from velostream.tables.base import KeyValue, Row, Rows, Snapshot, Table
from velostream.tables.lookups import as_keys
from velostream.tables.memory.keys import key_values
from velostream.tables.memory.values import shown_values

if TYPE_CHECKING:
    import pandas as pd

Where = str | Condition | None
"""A condition as SQL text, one that `compile_condition` gave, or None for all rows."""

_POSITION = "_position"
_STREAM_ROWS = 4096


@dataclass(frozen=True)
class CompiledUpdate:
    """Assignments ready to be used by `update`, any number of times."""

    trees: Mapping[str, exp.Expr]
    constants: Mapping[str, pa.Scalar]


class TableHandle:
    """One table or view: reads of its newest version, and writes where it is nobody's result.

    Every read answers from one version. A call never waits for a table to load. May be used from many threads.
    """

    def __init__(
        self,
        table: Table,
        *,
        writable: bool = True,
        spark: Callable[[], Any] | None = None,
        evaluate: Evaluate | None = None,
        last_updated: Callable[[], datetime | None] | None = None,
    ) -> None:
        """Each callable is asked only for what the table can't do itself.

        `spark` gives the table as a DataFrame, `evaluate` runs a SELECT over a snapshot of it, `last_updated` tells
        when it last changed.
        """
        self._table = table
        self._writable = writable
        self._spark = spark
        self._evaluate = evaluate
        self._last_updated = last_updated
        self._asked: ConditionCache | None = None

    def __repr__(self) -> str:
        return f"<table {self.name} ({', '.join(f'{c.name} {c.sql_type}' for c in self.schema.columns)})>"

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def schema(self) -> Schema:
        return self._table.schema

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    @property
    def version(self) -> int:
        """Number of the last commit that changed the table."""
        return self._table.version

    def get(self, key: KeyValue) -> Row | None:
        """The row of a key: a scalar, or a tuple for a composite key."""
        return self._table.get(key)

    def contains(self, key: KeyValue) -> bool:
        return self._table.contains(key)

    def __contains__(self, key: KeyValue) -> bool:
        return self.contains(key)

    def __len__(self) -> int:
        return self._table.snapshot().count()

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Row]:
        return self.stream_all()

    def filter(self, where: Where, params: Parameters | None = None) -> Rows:
        """The rows for which the condition is true."""
        condition = self._condition(where, params)
        if condition is None or condition.expression is None:
            return ArrowRows(self._scan(condition, params))
        snapshot = self._table.snapshot()
        found = snapshot.find(condition.expression)
        return ArrowRows(snapshot.scan(condition.expression)) if found is None else found

    def exists(self, where: Where, params: Parameters | None = None) -> bool:
        """Whether the condition is true for any row."""
        condition = self._condition(where, params)
        if condition is None or condition.expression is not None:
            return self._table.snapshot().count(None if condition is None else condition.expression) > 0
        return bool(self._filter_in_spark(condition).num_rows)

    def column_values(self, column: str, where: Where = None, params: Parameters | None = None) -> list[Any]:
        """The values of a column, in the order of the rows."""
        name = self.schema.column(column).name
        return shown_values(self._scan(where, params, [name]).column(name))

    def scalar(self, expression: str, where: Where = None, params: Parameters | None = None) -> Any:
        """One value: of an aggregate (`SUM(amount)`), or of the only row the condition holds for (None: no row)."""
        condition = self._condition(where, params)
        return scalar_value(self._table, expression, condition, known=self._known(), evaluate=self._evaluate)

    def wildcard_values(self, path: str) -> list[Any]:
        """Every value a path leads to, `positions.*.shares > 100`, row by row in the data's own order."""
        return path_values(self._table.snapshot(), path)

    def wildcard_aggregate(self, expression: str) -> Any:
        """COUNT, SUM, AVG, MIN or MAX of the values of a path: `SUM(positions.*.shares)`."""
        return path_aggregate(self._table.snapshot(), expression)

    def insert(self, rows: Any) -> Result:
        """Add rows: a mapping, several of them, Arrow data, a DataFrame. An existing key is a `duplicate-key` error."""
        return self._write(Mode.APPEND, rows)

    def upsert(self, rows: Any) -> Result:
        """Add rows, replacing those whose keys exist; of several rows with one key the last one counts."""
        if not self.schema.key:
            raise TableError.without_key(self.name)
        return self._write(Mode.UPSERT, rows)

    def update(self, where: Where, set: Mapping[str, Any] | CompiledUpdate, params: Parameters | None = None) -> Result:  # noqa: A002
        """Give the rows of the condition new values: plain values, or `velostream.expr("price * 1.1")`."""
        self._check_writable()
        compiled = set if isinstance(set, CompiledUpdate) else self.compile_update_set(set)
        condition = self._condition(where, params)
        change = Change(
            table=self._table,
            kind="UPDATE",
            where=None if condition is None else condition.tree,
            assigned=compiled.trees,
            constants=compiled.constants,
        )
        return Result.affected(update_rows(change, evaluate=self._evaluate))

    def delete(self, where: Where, params: Parameters | None = None) -> Result:
        """Remove the rows of the condition; None removes all."""
        self._check_writable()
        condition = self._condition(where, params)
        if condition is None:
            return Result.affected(truncate(self._table))
        change = Change(table=self._table, kind="DELETE", where=condition.tree, text=condition.text)
        return Result.affected(delete_rows(change, evaluate=self._evaluate))

    def bulk_insert(self, rows: Any) -> Result:
        """Like `insert`; Arrow data is taken as it is."""
        return self.insert(rows)

    def bulk_update(self, rows: Any) -> Result:
        """Give existing rows new values: each has the key and the columns to change. Unknown keys are passed over."""
        self._check_writable()
        records = _few_records(rows)
        # A column that only some of the records name is NULL for the others.
        if records and (len(records) == 1 or all(record.keys() == records[0].keys() for record in records)):
            updated = self._table.update_records(records)
            if updated is not None:
                return Result.affected(updated)
        key = self._key()
        with self._table.exclusive():
            given = self._arrow_rows(rows, partial=True)
            missing = [name for name in key if name not in given.column_names]
            if missing:
                raise TableError(f'rows for bulk_update lack the key column "{missing[0]}"', code="missing-column")
            found = self._table.snapshot().lookup(as_keys(given.select(list(key))))
            given = given.take(found.column(_POSITION))
            changed = found.drop_columns([_POSITION])
            for name in given.column_names:
                changed = changed.set_column(changed.column_names.index(name), name, given.column(name))
            self._table.commit(Write(Mode.UPSERT, changed))
        return Result.affected(changed.num_rows)

    def bulk_delete(self, keys: Any) -> Result:
        """Remove the rows of the keys: scalars, tuples for a composite key, or Arrow. Unknown keys change nothing."""
        self._check_writable()
        key = self._key()
        removed = self._table.delete_keys(keys) if isinstance(keys, list | tuple) else None
        if removed is not None:
            return Result.affected(removed)
        wanted = self._keys(keys)
        with self._table.exclusive():
            found = self._table.snapshot().lookup(wanted, list(key)).drop_columns([_POSITION])
            self._table.commit(Write(Mode.DELETE, found))
        return Result.affected(len(set(key_values(found, key))))

    def lookup(self, keys: Any, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of many keys at once, in the order of the keys; a key that isn't there gives none."""
        return self._table.snapshot().lookup(self._keys(keys), columns).drop_columns([_POSITION])

    def find_rows_for_join(
        self, batch: pa.RecordBatch | pa.Table, on: str | Sequence[str] | Mapping[str, str]
    ) -> pa.Table:
        """The rows that each row of a batch meets, by columns of one name or a mapping from the batch's to the table's.

        The first column, `_position`, says which row of the batch a row belongs to. NULL meets nothing.
        """
        pairs = {on: on} if isinstance(on, str) else dict(on if isinstance(on, Mapping) else zip(on, on, strict=True))
        given = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        names = [self.schema.column(name).name for name in pairs.values()]
        keys = pa.Table.from_arrays([given.column(name) for name in pairs], names=names)
        snapshot = self._table.snapshot()
        if set(names) == set(self.schema.key):
            return snapshot.lookup(as_keys(keys.select(list(self.schema.key))))
        return snapshot.lookup_by(names, as_keys(keys))

    def scan(self) -> Rows:
        """All rows."""
        return ArrowRows(self._table.snapshot().scan())

    def query_batch(self, limit: int, offset: int = 0) -> Page:
        """The rows from the `offset`-th on, at most `limit`, in an order that only a change of the table changes."""
        if limit < 1 or offset < 0:
            raise ValidationError(f"a page of {limit} rows from {offset} on can't be given", code="invalid-page")
        snapshot = self._table.snapshot()
        batch = next(iter(snapshot.batches(limit, offset)), None)
        rows = snapshot.schema.arrow.empty_table() if batch is None else pa.Table.from_batches([batch])
        return Page(ArrowRows(rows), has_more=offset + rows.num_rows < snapshot.count())

    def stream_all(self) -> RowStream:
        """All rows of the version there is now, one by one, for `for` and `async for`."""
        return RowStream(self._table.snapshot().batches(_STREAM_ROWS))

    def stream_filter(self, where: Where, params: Parameters | None = None) -> RowStream:
        """The rows for which the condition is true, one by one, for `for` and `async for`."""
        return RowStream(iter(self._scan(where, params).to_batches(max_chunksize=_STREAM_ROWS)))

    def arrow(self) -> pa.Table:
        """All rows as Arrow."""
        return self._table.snapshot().scan()

    def df(self) -> pd.DataFrame:
        """All rows as a pandas DataFrame."""
        return Result.of(self.arrow()).df()

    def spark(self) -> Any:
        """The version there is now as a Spark DataFrame."""
        if self._spark is None:
            raise UnsupportedError(f'table "{self.name}" is not connected to Spark')
        return self._spark()

    def snapshot(self, version: int | None = None) -> Snapshot:
        """One version, for as many reads as wanted: the newest, or an older one that is still kept."""
        return self._table.snapshot(version)

    def stats(self) -> dict[str, Any]:
        """Figures of the table, and of the conditions asked of it."""
        cache = self._known()
        own = getattr(self._table, "stats", None)
        figures = {"rows": len(self), "version": self.version} if own is None else dict(own())
        return figures | {"condition_hits": cache.hits, "condition_misses": cache.misses}

    def compile_condition(self, where: str, params: Parameters | None = None) -> Condition:
        """A condition to be used again and again, by `filter` and the others; says how its rows are found."""
        condition = self._known().condition(where, params)
        if condition.expression is None:
            return condition
        return replace(condition, compiled=self._table.compile_condition(condition.expression))

    def compile_update_set(self, assignments: Mapping[str, Any]) -> CompiledUpdate:
        """Assignments to be used again and again by `update`: plain values, or expressions by `velostream.expr`."""
        trees: dict[str, exp.Expr] = {}
        values: dict[str, Any] = {}
        for name, value in assignments.items():
            column = self.schema.column(name).name
            if isinstance(value, SqlText):
                trees[column] = parse_expression(value.text)
            else:
                values[column] = value
        row = rows_to_arrow([values], self.schema.select(values)) if values else pa.table({})
        return CompiledUpdate(trees, {name: row.column(name)[0] for name in values})

    def health_check(self) -> dict[str, Any]:
        """What a monitor asks for: whether the table answers, and how much it holds."""
        return {
            "healthy": True,
            "name": self.name,
            "kind": self._table.kind,
            "rows": len(self),
            "version": self.version,
        }

    def datasource_type(self) -> str:
        """The kind of store behind the table."""
        return self._table.kind

    def last_updated(self) -> datetime | None:
        """When the table last changed, as far as that is known."""
        return None if self._last_updated is None else self._last_updated()

    get_record = get
    contains_key = contains
    record_count = __len__
    find = filter  # noqa: A003 - the method above
    all_rows = scan
    clone_table = snapshot
    get_stats = stats
    sql_filter = filter  # noqa: A003 - the method above
    sql_exists = exists
    sql_column_values = column_values
    sql_scalar = scalar
    sql_wildcard_values = wildcard_values
    sql_wildcard_aggregate = wildcard_aggregate

    def _condition(self, where: Where, params: Parameters | None) -> Condition | None:
        if where is None or isinstance(where, Condition):
            return where
        return self._known().condition(where, params)

    def _known(self) -> ConditionCache:
        """What has been asked of the table before; looked for again when its columns have changed."""
        known = self._asked
        if known is None or known.schema is not self._table.schema:
            known = self._asked = cache_of(self._table)
        return known

    def _scan(self, where: Where, params: Parameters | None, columns: Sequence[str] | None = None) -> pa.Table:
        condition = self._condition(where, params)
        if condition is None or condition.expression is not None:
            return self._table.snapshot().scan(None if condition is None else condition.expression, columns)
        rows = self._filter_in_spark(condition)
        return rows if columns is None else rows.select(list(columns))

    def _filter_in_spark(self, condition: Condition) -> pa.Table:
        if self._evaluate is None:
            raise NotExecutableError(f"this condition needs Spark: {condition.reason}", text=condition.text)
        source = exp.Table(this=exp.to_identifier(self.name, quoted=True))
        return self._evaluate(exp.select("*").from_(source).where(condition.tree), self._table.snapshot())

    def _check_writable(self) -> None:
        if not self._writable:
            raise UnsupportedError(
                f'table "{self.name}" is kept up to date by its query and can\'t be written to',
                hint="CREATE TABLE with columns makes a table that can",
                code="view-not-writable",
            )

    def _key(self) -> tuple[str, ...]:
        if not self.schema.key:
            raise TableError.without_key(self.name)
        return self.schema.key

    def _write(self, mode: Mode, rows: Any) -> Result:
        self._check_writable()
        records = _few_records(rows)
        if records is not None and self._table.write_records(mode, records):
            return Result.affected(len(records))
        given = self._arrow_rows(rows)
        self._table.commit(Write(mode, given))
        return Result.affected(given.num_rows)

    def _arrow_rows(self, rows: Any, *, partial: bool = False) -> pa.Table:
        """Rows as they come from Python. A name the table doesn't know is an error; Arrow data is cast by the table."""
        if isinstance(rows, pa.RecordBatch):
            return pa.Table.from_batches([rows])
        if isinstance(rows, pa.Table):
            return rows
        if isinstance(rows, Mapping):
            rows = [rows]
        if not isinstance(rows, Iterable) or hasattr(rows, "columns"):
            return rows_to_arrow(rows)
        records = list(rows)
        names: dict[str, None] = {}
        for record in records:
            if isinstance(record, Mapping):
                names |= dict.fromkeys(record)
        for name in names:
            if self.schema.find(str(name)) is None:
                raise NotFoundError.of("column", str(name), known=self.schema.names)
        return rows_to_arrow(records, self.schema.select(names) if partial else self.schema)

    def _keys(self, keys: Any) -> pa.Array | pa.ChunkedArray | pa.Table:
        if isinstance(keys, pa.Array | pa.ChunkedArray | pa.Table):
            return keys
        if isinstance(keys, pa.RecordBatch):
            return pa.Table.from_batches([keys])
        key = self.schema.select(self._key())
        rows = [_key_record(key.names, value) for value in keys]
        return as_keys(rows_to_arrow(rows, Schema(tuple(key.columns))))


def _few_records(rows: Any) -> Sequence[Mapping[str, Any]] | None:
    """Rows that a table may take without their detour over Arrow, if they are few enough for it."""
    # Told by their types first: asking whether they are something more general takes many times as long.
    kind = type(rows)
    if kind is dict or isinstance(rows, Mapping):
        return (rows,)
    if kind is not list and not isinstance(rows, list | tuple):
        return None
    for row in rows:
        if type(row) is not dict and not isinstance(row, Mapping):
            return None
    return rows  # type: ignore[no-any-return]


def _key_record(names: Sequence[str], value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    values = value if isinstance(value, tuple | list) else (value,)
    if len(values) != len(names):
        raise TableError(f"a key has the columns {', '.join(names)}, not the values {value!r}", code="wrong-type")
    return dict(zip(names, values, strict=True))
