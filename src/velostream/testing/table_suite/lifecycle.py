"""Tables made, found again, refused and dropped."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import AlreadyExistsError, NotFoundError, OptionError, StateError, TableError, UnsupportedError
from velostream.model.change import CHANGE, Epoch, Mode, Write
from velostream.model.options import OptionType
from velostream.model.schema import Schema
from velostream.tables.base import Table, TableWrites
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

    def test_wrong_values_of_options_are_refused(self) -> None:
        nonsense = {option.name for option in self._table_class.options if option.type is not OptionType.TEXT}
        for name in nonsense:
            with pytest.raises(OptionError) as caught:
                self.make_table(KEYED, {name: "nonsense"})
            assert (caught.value.code, name in caught.value.message) == ("invalid-option-value", True)

    def test_any_name_of_a_table_will_do(self) -> None:
        """But for the dot, by which many stores name a schema."""
        if self.lacks("insert", "epochs") or not self._has_option("table"):
            return
        name = f"o'dd \"na`me; -- %s {{}} ö {uuid.uuid4().hex[:12]}"
        table = self.make_table(KEYED, {"table": name})
        table.commit(write(Mode.APPEND, (1, "a")), Epoch("q", 1))
        if not self.lacks("durable"):
            table = self.crash(table)
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a")))
        table.drop()

    def test_what_is_there_already_is_adopted_refused_or_replaced(self) -> None:
        if self.lacks("insert") or not self._has_option("if.exists"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a")))
        self.close(table)
        spec = self.spec_of(table)

        def open_as(id_: str, choice: str) -> Table:
            return self.open(replace(spec, id=id_, options={**spec.options, "if.exists": choice}))

        with pytest.raises(AlreadyExistsError):
            open_as("other", "fail")
        for id_, choice, expected in (("other", "adopt", 1), (spec.id, "replace", 1), ("another", "replace", 0)):
            found = open_as(id_, choice)
            assert found.snapshot().count() == expected
            self.close(found)

    def test_a_table_attached_read_only_is_only_read(self) -> None:
        if self.lacks("insert") or not self._has_option("access"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a")))
        spec = self.spec_of(table)
        reader = self.open(replace(spec, id="reader", options={**spec.options, "access": "read-only"}))
        assert content(reader.snapshot().scan()) == content(rows_of(KEYED, (1, "a")))
        with pytest.raises(UnsupportedError) as caught:
            reader.commit(write(Mode.APPEND, (2, "b")), Epoch("q", 1))
        assert caught.value.code == "unsupported-capability"
        table.commit(write(Mode.APPEND, (3, "c")))
        assert sorted(reader.snapshot().scan().column("id").to_pylist()) == [1, 3]
        reader.drop()
        self.close(reader)
        assert table.snapshot().count() == 2
        with pytest.raises(NotFoundError):
            self.make_table(KEYED, {"access": "read-only"})

    def test_figures(self) -> None:
        if self.lacks("insert"):
            return
        table = self.make_table(BAG)
        table.commit(write(Mode.APPEND, (1, "a"), (1, "a")))
        assert (table.stats()["rows"], table.stats()["version"]) == (2, table.version)

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

    def _has_option(self, name: str) -> bool:
        return any(option.covers(name) for option in self._table_class.options)

    def _check_names(self, error: UnsupportedError, *capabilities: str) -> None:
        """A refusal names the kind and what it can't do."""
        assert error.code == "unsupported-capability"
        assert self._table_class.kind in error.message
        assert any(f'"{name}"' in error.message for name in capabilities)
