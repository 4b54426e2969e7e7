"""A table in a store as a sink, written as tables of its kind are: `INSERT INTO postgres://…?table=t SELECT …`."""

from __future__ import annotations

import hashlib
from typing import ClassVar

import pyarrow as pa

from velostream import plugins
from velostream.errors import OptionError, present
from velostream.model.change import CHANGE, Epoch, Mode, Write
from velostream.model.options import Option
from velostream.model.schema import Schema
from velostream.plugins import Group
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec
from velostream.sinks.common import check_change_keys
from velostream.tables.base import Table, TableSpec

KEY = Option("key", "columns by which a row replaces the one that is there; without them rows are added")
_KIND_OF_SCHEME = {"sql": "jdbc"}


class TableSink(Sink):
    """Rows into a table of a store: by key the later one wins, else each is one more. Changes of a view make the table
    what the view is, by the key of its rows.

    Delivery guarantee: exactly-once, as the store keeps the epoch with the rows. A table that is there is adopted if
    its columns fit, else one is made.
    """

    table_class: ClassVar[type[Table]]
    capabilities: ClassVar[SinkCapabilities] = SinkCapabilities(idempotent=True, guarantee="exactly-once", changes=True)

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(spec)
        self._table: Table | None = None

    def open(self, schema: Schema) -> None:
        name = self.settings.text("table")
        if name is None:
            raise OptionError(
                f'sink "{self.kind}" needs the option "table"', hint=f"INSERT INTO {self.kind}://…?table=name"
            )
        key = [part.strip() for part in (self.settings.text("key") or "").split(",") if part.strip()]
        if self.spec.changes:
            key = key or list(schema.key)
            check_change_keys(schema, [schema.column(part).name for part in key], target=f'table "{name}"')
        options = {option: value for option, value in self.spec.options.items() if option != KEY.name}
        url = self.spec.uri.removeprefix("sql://").removeprefix("delta://")
        identity = hashlib.sha256(f"{url}|{name}".encode()).hexdigest()[:16]
        self.table_class.refuse_variants(schema)
        self._table = self.table_class.open(TableSpec(identity, name, schema.with_key(key), {"url": url, **options}))

    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        table = present(self._table)
        mode = Mode.UPSERT if table.schema.key else Mode.APPEND
        if self.spec.changes:
            # The last change of a key decides, so what comes instead of a row stands behind it.
            mode, rows = Mode.CHANGES, rows.sort_by(CHANGE)
        table.commit(Write(mode, rows), epoch)

    def close(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            table.close()


def table_sink(kind: str) -> type[TableSink] | None:
    """The sink for the tables of a kind that keep epochs; None when there is no such kind."""
    name = _KIND_OF_SCHEME.get(kind, kind)
    if name not in plugins.names(Group.TABLES):
        return None
    found: type[Table] = plugins.load(Group.TABLES, name)
    if not (found.capabilities.epochs and found.capabilities.durable):
        return None
    known = (KEY, *(option for option in found.options if option.name != KEY.name))
    return type(f"{found.__name__}Sink", (TableSink,), {"kind": kind, "options": known, "table_class": found})
