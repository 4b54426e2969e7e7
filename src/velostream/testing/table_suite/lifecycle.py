"""Tables made, found again, refused and dropped."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import OptionError, StateError, TableError, UnsupportedError
from velostream.model.change import CHANGE, Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.base import TableWrites
from velostream.testing.table_cases import BAG, KEYED, content, rows_of, write
from velostream.testing.table_suite.harness import TableHarness

CAPABILITIES_OF: Mapping[Mode, tuple[str, ...]] = {
    Mode.APPEND: ("insert",),
    Mode.UPSERT: ("upsert",),
    Mode.DELETE: ("delete",),
    Mode.CHANGES: ("insert", "update", "delete"),
    Mode.REPLACE: ("insert", "update", "delete"),
}


class Lifecycle(TableHarness):
    def test_a_new_table_is_empty(self) -> None:
        for schema in (KEYED, BAG):
            table = self.make_table(schema)
            snapshot = table.snapshot()
            assert snapshot.count() == 0
            assert snapshot.scan().schema.names == list(schema.names)
            assert snapshot.scan().schema.types == list(schema.arrow.types)
            assert list(snapshot.batches(10)) == []
            assert snapshot.version == table.version
            assert (table.schema, table.name) == (schema, "t")

    def test_the_kind_is_registered_under_its_own_name(self) -> None:
        assert self._table_class.kind.lower() == self._kind.lower()

    def test_an_unknown_option_is_refused(self) -> None:
        with pytest.raises(OptionError) as caught:
            self.make_table(KEYED, {"no.such.option": "1"})
        assert caught.value.code == "unknown-option"

    def test_a_table_found_again_is_as_it_was(self) -> None:
        if self.lacks("durable", "insert", "epochs"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a", Decimal("1.50")), (2, None, None)), Epoch("q", 3))
        version, before = table.version, content(table.snapshot().scan())
        for again in (self.crash, self.reopen):
            found = again(table)
            assert (found.version, content(found.snapshot().scan())) == (version, before)
            found.commit(write(Mode.APPEND, (9, "repeated", None)), Epoch("q", 3))
            assert content(found.snapshot().scan()) == before
            table = self.reopen(found)

    def test_other_columns_than_the_stored_ones_are_refused(self) -> None:
        if self.lacks("durable"):
            return
        table = self.make_table(KEYED)
        self.close(table)
        spec = self.spec_of(table)
        for other in (Schema.of(("id", "INT"), ("other", "DATE"), key=["id"]), BAG):
            with pytest.raises(StateError):
                self.open(replace(spec, schema=other))
        assert self.open(spec).snapshot().count() == 0

    def test_a_dropped_table_leaves_nothing(self) -> None:
        if self.lacks("insert"):
            return
        table = self.make_table(KEYED)
        neighbour = self.make_table(KEYED)
        for one in (table, neighbour):
            one.commit(write(Mode.APPEND, (1, "a")), Epoch("q", 5))
        table.drop()
        self.close(table)
        again = self.open(replace(self.spec_of(table), id="incarnation"))
        assert again.snapshot().count() == 0
        again.commit(write(Mode.APPEND, (2, "b")), Epoch("of the new incarnation", 1))
        assert content(again.snapshot().scan()) == content(rows_of(KEYED, (2, "b")))
        assert neighbour.snapshot().count() == 1

    def test_refuses_what_it_does_not_claim(self) -> None:
        table = self.make_table(KEYED)
        for mode, capabilities in CAPABILITIES_OF.items():
            if not self.lacks(*capabilities):
                continue
            rows = rows_of(KEYED, (1, "a", None))
            if mode is Mode.CHANGES:
                rows = rows.append_column(CHANGE, pa.array([1], pa.int8()))
            with pytest.raises(UnsupportedError) as caught:
                table.commit(Write(mode, rows))
            self._check_names(caught.value, *capabilities)
        if self.lacks("transactions"):
            with pytest.raises(UnsupportedError) as caught:
                table.commit_together([TableWrites(table, [write(Mode.APPEND, (1, "a"))])])
            self._check_names(caught.value, "transactions")
        if self.lacks("update") and self.lacks("delete"):
            with pytest.raises(UnsupportedError) as caught, table.exclusive():
                pass
            self._check_names(caught.value, "update")
        if self.lacks("changes"):
            for refused in (table.follow, lambda: table.changes(table.version)):
                with pytest.raises(UnsupportedError) as caught:
                    refused()
                self._check_names(caught.value, "changes")
        if self.lacks("versions"):
            with pytest.raises((UnsupportedError, TableError)):
                table.snapshot(table.version + 1000)
        assert table.snapshot().count() == 0

    def _check_names(self, error: UnsupportedError, *capabilities: str) -> None:
        """A refusal names the kind and what it can't do."""
        assert error.code == "unsupported-capability"
        assert self._table_class.kind in error.message
        assert any(f'"{name}"' in error.message for name in capabilities)
