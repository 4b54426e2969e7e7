"""What all parts of the table suite share: tables made, closed, lost in a crash and found again."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from velostream import plugins
from velostream.model.change import Mode
from velostream.model.schema import Schema
from velostream.tables.base import Table, TableSpec
from velostream.testing.stores import TestStore, store_of
from velostream.testing.table_cases import rows_of, write


class TableHarness:
    """The tables of one test. Whatever it opens is closed, and removed from its store, when the test ends."""

    _kind: str
    _table_class: type[Table]
    _directory: Path

    @pytest.fixture(autouse=True)
    def _prepare(self, kind: str, tmp_path: Path) -> Iterator[None]:
        self._kind = kind
        self._table_class = plugins.load(plugins.Group.TABLES, kind)
        self._directory = tmp_path
        self._specs: dict[int, TableSpec] = {}
        self._open_tables: dict[int, Table] = {}
        self._made = 0
        yield
        for spec_id in {spec.id for spec in self._specs.values()}:
            tables = [table for number, table in self._open_tables.items() if self._specs[number].id == spec_id]
            if tables and self.store.server is not None:
                tables[-1].drop()
            for table in tables:
                table.close()

    @property
    def store(self) -> TestStore:
        """How tables of this kind are opened."""
        return store_of(self._kind)

    def new_spec(self, schema: Schema, options: Mapping[str, str] | None = None) -> TableSpec:
        """A table that doesn't exist yet."""
        self._made += 1
        folder = self._directory / "store"
        folder.mkdir(exist_ok=True)
        name = f"t{self._made}_{uuid.uuid4().hex[:12]}"
        return TableSpec(
            id=name,
            name="t",
            schema=schema,
            options={**self.store.options(folder, name), **(options or {})},
            directory=self._directory / str(self._made),
        )

    def make_table(self, schema: Schema, options: Mapping[str, str] | None = None) -> Table:
        """A new, empty table; one that another program has made, of a kind that is only read."""
        spec = self.new_spec(schema)
        if self.lacks("insert") and self.store.fill is not None:
            self.store.fill(spec.options, rows_of(schema))
        return self.open(replace(spec, options={**spec.options, **(options or {})}))

    def filled(self, schema: Schema, *rows: Sequence[Any]) -> Table:
        """A new table with rows, which another program has written where the kind is only read."""
        if not self.lacks("insert"):
            table = self.make_table(schema)
            table.commit(write(Mode.APPEND, *rows, schema=schema))
            return table
        spec = self.new_spec(schema)
        assert self.store.fill is not None
        self.store.fill(spec.options, rows_of(schema, *rows))
        return self.open(spec)

    @property
    def has_rows(self) -> bool:
        """Whether tables of the kind can be given rows, be it by another program."""
        return self.store.fill is not None or not self.lacks("insert")

    def specs_together(self, *schemas: Schema) -> Sequence[TableSpec]:
        """Tables that don't exist yet and can be committed in one step."""
        specs = [self.new_spec(schema) for schema in schemas]
        return [replace(spec, directory=specs[0].directory) for spec in specs]

    def make_together(self, *schemas: Schema) -> Sequence[Table]:
        """New, empty tables that can be committed in one step."""
        return self.open_together(self.specs_together(*schemas))

    def open_together(self, specs: Sequence[TableSpec]) -> Sequence[Table]:
        opened = self.store.open_together(self._table_class, specs)
        return [self._note(table, spec) for table, spec in zip(opened, specs, strict=True)]

    def open(self, spec: TableSpec) -> Table:
        return self._note(self._table_class.open(spec), spec)

    def spec_of(self, table: Table) -> TableSpec:
        return self._specs[id(table)]

    def close(self, table: Table) -> None:
        table.close()
        self._open_tables.pop(id(table), None)

    def reopen(self, table: Table) -> Table:
        """The same table after an orderly end."""
        self.close(table)
        return self.open(self.spec_of(table))

    def crash(self, table: Table) -> Table:
        """The same table as another process finds it after this one was killed now."""
        return self.open(self.image(self.spec_of(table)))

    def image(self, spec: TableSpec) -> TableSpec:
        """What a killed process leaves; files of the table's own are copied, as this process still has them open."""
        if not self.is_private(spec) or spec.directory is None:
            return spec
        image = self._directory / f"crashed-{uuid.uuid4().hex[:12]}"
        shutil.copytree(spec.directory, image)
        return replace(spec, directory=image)

    def is_private(self, spec: TableSpec) -> bool:
        """Whether the table lives in files of its own, so that one object at a time may have it open."""
        return spec.directory is not None and spec.directory.exists()

    def lacks(self, *capabilities: str) -> bool:
        """Whether the kind doesn't claim one of these; `test_refuses_what_it_does_not_claim` is about it then."""
        return not all(getattr(self._table_class.capabilities, name) for name in capabilities)

    def layered(self, table: Table) -> Table:
        """What is put around a table that was opened; a suite for a layer overrides it."""
        return table

    def _note(self, opened: Table, spec: TableSpec) -> Table:
        table = self.layered(opened)
        self._specs[id(table)] = spec
        self._open_tables[id(table)] = table
        return table
