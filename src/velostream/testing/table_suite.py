"""What every kind of table must do, as a suite that the author of a kind runs.

Subclass it in a test module and say which kind is meant:

    class TestMyTable(TableSuite):
        @pytest.fixture
        def kind(self) -> str:
            return "mystore"

Tables are made by `Table.open`; a store that needs more than a directory overrides `options_for`, one that is no
directory `crash`. What is tested follows the kind's `TableCapabilities`, never its name: what it claims must hold, what
it doesn't claim it must refuse.
"""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velostream import plugins
from velostream.errors import NotFoundError, OptionError, StateError, TableError, UnsupportedError
from velostream.model.change import CHANGE, Epoch, Mode, Scope, Write
from velostream.model.expression import Call, ColumnRef, Expression, Literal
from velostream.model.schema import Column, Schema
from velostream.tables.base import Snapshot, Table, TableSpec
from velostream.tables.memory.compare import hashable_rows
from velostream.testing.table_cases import (
    BAG,
    KEYED,
    NAMES,
    STEPS,
    TYPES,
    Model,
    changes,
    content,
    equals,
    in_threads,
    keys,
    rows_of,
    run_together,
    write,
)

_CAPABILITIES_OF: Mapping[Mode, tuple[str, ...]] = {
    Mode.APPEND: ("insert",),
    Mode.UPSERT: ("upsert",),
    Mode.DELETE: ("delete",),
    Mode.CHANGES: ("insert", "update", "delete"),
    Mode.REPLACE: ("insert", "update", "delete"),
}


class TableSuite:
    """Inherit it and add a fixture `kind`; see the module's text."""

    _table_class: type[Table]
    _directory: Path

    @pytest.fixture(autouse=True)
    def _prepare(self, kind: str, tmp_path: Path) -> Iterator[None]:
        self._table_class = plugins.load(plugins.Group.TABLES, kind)
        self._directory = tmp_path
        self._specs: dict[int, TableSpec] = {}
        self._opened: list[Table] = []
        yield
        for table in self._opened:
            table.close()

    def options_for(self, number: int) -> Mapping[str, str]:
        """Options that make a table of this kind, different for every number; for a server its address."""
        return {}

    def make_table(self, schema: Schema, options: Mapping[str, str] | None = None) -> Table:
        """A new, empty table."""
        number = len(self._opened)
        spec = TableSpec(
            id=f"t{number}",
            name="t",
            schema=schema,
            options={**self.options_for(number), **(options or {})},
            directory=self._directory / str(number),
        )
        return self._open(spec)

    def reopen(self, table: Table) -> Table:
        """The same table after an orderly end."""
        table.close()
        return self._open(self._specs[id(table)])

    def crash(self, table: Table) -> Table:
        """The same table as another process finds it after this one was killed now."""
        spec = self._specs[id(table)]
        if spec.directory is None or not spec.directory.exists():
            return self._open(spec)
        image = self._directory / f"crashed-{len(self._opened)}"
        shutil.copytree(spec.directory, image)
        return self._open(replace(spec, directory=image))

    def lacks(self, *capabilities: str) -> bool:
        """Whether the kind doesn't claim one of these; `test_refuses_what_it_does_not_claim` is about it then."""
        return not all(getattr(self._table_class.capabilities, name) for name in capabilities)

    def _open(self, spec: TableSpec) -> Table:
        table = self._table_class.open(spec)
        self._specs[id(table)] = spec
        self._opened.append(table)
        return table

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

    def test_an_unknown_option_is_refused(self) -> None:
        with pytest.raises(OptionError):
            self.make_table(KEYED, {"no.such.option": "1"})

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
            found.close()
            table = self._open(self._specs[id(found)])

    def test_other_columns_than_the_stored_ones_are_refused(self) -> None:
        if self.lacks("durable"):
            return
        table = self.make_table(KEYED)
        table.close()
        other = replace(self._specs[id(table)], schema=Schema.of(("id", "INT"), ("other", "DATE"), key=["id"]))
        with pytest.raises(StateError):
            self._open(other)

    def test_refuses_what_it_does_not_claim(self) -> None:
        table = self.make_table(KEYED)
        for mode, capabilities in _CAPABILITIES_OF.items():
            if not self.lacks(*capabilities):
                continue
            rows = rows_of(KEYED, (1, "a", None))
            if mode is Mode.CHANGES:
                rows = rows.append_column(CHANGE, pa.array([1], pa.int8()))
            with pytest.raises(UnsupportedError) as caught:
                table.commit(Write(mode, rows))
            assert caught.value.code == "unsupported-capability"
        if self.lacks("transactions"):
            with pytest.raises(UnsupportedError):
                table.exclusive()
        if self.lacks("versions"):
            with pytest.raises((UnsupportedError, TableError)):
                table.snapshot(table.version + 1000)

    def test_append(self) -> None:
        if self.lacks("insert"):
            return
        for schema in (KEYED, BAG):
            table = self.make_table(schema)
            version = table.commit(write(Mode.APPEND, (1, "a", Decimal("1.50")), (2, None, None)))
            assert version == table.version == table.snapshot().version
            table.commit(write(Mode.APPEND, (3, "c", None)))
            assert table.version > version
            assert content(table.snapshot().scan()) == content(
                rows_of(schema, (1, "a", Decimal("1.50")), (2, None, None), (3, "c", None))
            )

    def test_a_bag_keeps_duplicates(self) -> None:
        if self.lacks("insert"):
            return
        table = self.make_table(BAG)
        table.commit(write(Mode.APPEND, (1, "a", None), (1, "a", None)))
        table.commit(write(Mode.APPEND, (1, "a", None)))
        assert table.snapshot().count() == 3

    def test_a_duplicate_key_applies_nothing(self) -> None:  # B49
        if self.lacks("insert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a", None)))
        version = table.version
        for rows in ([(2, "b"), (1, "again")], [(3, "c"), (3, "d")]):
            with pytest.raises(TableError) as caught:
                table.commit(write(Mode.APPEND, *rows))
            assert caught.value.code == "duplicate-key"
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a", None)))
        assert table.version == version

    def test_upsert(self) -> None:  # B46
        if self.lacks("upsert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.UPSERT, (1, "a"), (2, "b")))
        table.commit(write(Mode.UPSERT, (2, "x"), (3, "c"), (2, "B")))
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a"), (2, "B"), (3, "c")))

    def test_delete(self) -> None:
        if self.lacks("insert", "delete"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, "c")))
        table.commit(keys(2, 9, 2))
        assert content(table.snapshot().scan()) == content(rows_of(KEYED, (1, "a"), (3, "c")))
        bag = self.make_table(BAG)
        bag.commit(write(Mode.APPEND, (1, "a"), (1, "a"), (2, None)))
        bag.commit(write(Mode.DELETE, (1, "a"), (2, None), (5, "nobody")))
        assert content(bag.snapshot().scan()) == content(rows_of(BAG, (1, "a")))

    def test_changes_apply_in_order(self) -> None:  # B48
        if self.lacks(*_CAPABILITIES_OF[Mode.CHANGES]):
            return
        for schema in (KEYED, BAG):
            table = self.make_table(schema)
            table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
            table.commit(
                changes(((1, "a"), -1), ((1, "A"), 1), ((3, "c"), 1), ((3, "c"), -1), ((2, "b"), -1), ((2, "b"), 1))
            )
            assert content(table.snapshot().scan()) == content(rows_of(schema, (1, "A"), (2, "b")))

    def test_replace_commits_the_difference_only(self) -> None:
        if self.lacks(*_CAPABILITIES_OF[Mode.REPLACE]):
            return
        for schema in (KEYED, BAG):
            table = self.make_table(schema)
            table.commit(write(Mode.APPEND, (1, "a"), (2, "b"), (3, None)))
            before = table.version
            table.commit(write(Mode.REPLACE, (3, None), (2, "b"), (1, "a")))
            assert table.version == before
            table.commit(write(Mode.REPLACE, (2, "b"), (4, "d")))
            assert content(table.snapshot().scan()) == content(rows_of(schema, (2, "b"), (4, "d")))
            if not self.lacks("versions"):
                assert table.changes(before).arrow.num_rows == 3
            table.commit(Write(Mode.REPLACE, rows_of(schema, (5, "d")), Scope("name", "d")))
            assert content(table.snapshot().scan()) == content(rows_of(schema, (2, "b"), (5, "d")))

    def test_a_write_without_effect_is_no_version(self) -> None:
        table = self.make_table(KEYED)
        before = table.version
        for mode, capabilities in _CAPABILITIES_OF.items():
            if mode is not Mode.CHANGES and not self.lacks(*capabilities):
                table.commit(write(mode))
        assert table.version == before

    def test_not_null_and_types_are_held(self) -> None:  # B13
        if self.lacks("insert"):
            return
        schema = Schema((Column("id", pa.int64(), nullable=False), Column("n", pa.int32())), ("id",))
        table = self.make_table(schema)
        with pytest.raises(TableError) as caught:
            table.commit(Write(Mode.APPEND, pa.table({"id": pa.array([1, None], pa.int64())})))
        assert caught.value.code == "not-null"
        for wrong in (pa.array(["1"]), pa.array([1.5]), pa.array([2**40])):
            with pytest.raises(TableError) as caught:
                table.commit(Write(Mode.APPEND, pa.table({"id": [1], "n": wrong})))
            assert caught.value.code == "wrong-type"
        with pytest.raises(NotFoundError):
            table.commit(Write(Mode.APPEND, pa.table({"id": [1], "m": [1]})))
        assert table.snapshot().count() == 0
        table.commit(Write(Mode.APPEND, pa.table({"N": pa.array([7], pa.int8()), "ID": pa.array([1], pa.int16())})))
        assert table.snapshot().scan().to_pylist() == [{"id": 1, "n": 7}]

    def test_a_repeated_epoch_changes_nothing(self) -> None:
        if self.lacks("epochs", "insert"):
            return
        table = self.make_table(BAG)
        first = table.commit(write(Mode.APPEND, (1, "a")), Epoch("q", 7))
        for number in (7, 6):
            assert table.commit(write(Mode.APPEND, (1, "again")), Epoch("q", number)) == first
        table.commit(write(Mode.APPEND, (2, "b")), Epoch("other", 7))
        table.commit(write(Mode.APPEND, (3, "c")), Epoch("q", 8))
        assert content(table.snapshot().scan()) == content(rows_of(BAG, (1, "a"), (2, "b"), (3, "c")))

    def test_an_epoch_that_was_refused_can_be_tried_again(self) -> None:
        if self.lacks("epochs", "insert"):
            return
        table = self.make_table(KEYED)
        with pytest.raises(TableError):
            table.commit(write(Mode.APPEND, (1, "a"), (1, "b")), Epoch("q", 1))
        table.commit(write(Mode.APPEND, (1, "a")), Epoch("q", 1))
        assert table.snapshot().count() == 1

    def test_rows_and_epoch_survive_a_crash_together(self) -> None:  # B55
        if self.lacks("epochs", "insert", "durable"):
            return
        table = self.make_table(BAG)
        for number in range(5):
            table.commit(write(Mode.APPEND, (number, "x")), Epoch("q", number))
            table = self.crash(table)
            table.commit(write(Mode.APPEND, (number, "x")), Epoch("q", number))
            assert table.snapshot().count() == number + 1

    def test_get_and_contains(self) -> None:  # B20
        if self.lacks("insert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a", Decimal("1.50")), (2, None, None)))
        snapshot = table.snapshot()
        row = snapshot.get(1)
        assert row is not None
        assert dict(row) == row.as_dict() == {"id": 1, "name": "a", "amount": Decimal("1.50")}
        assert str(row["amount"]) == "1.50"
        assert snapshot.get(3) is None
        assert (snapshot.contains(2), snapshot.contains(3), snapshot.contains("1")) == (True, False, False)
        bag = self.make_table(BAG)
        for ask in (bag.snapshot().get, bag.snapshot().contains):
            with pytest.raises(TableError) as caught:
                ask(1)
            assert caught.value.code == "no-key"

    def test_lookup(self) -> None:
        if self.lacks("insert", "lookup"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, *((number, f"n{number}") for number in range(100))))
        wanted = pa.chunked_array([[7, None, 3], [1000, 7]], pa.int64())
        found = table.snapshot().lookup(wanted, ["name"])
        assert found.to_pylist() == [
            {"_position": 0, "name": "n7"},
            {"_position": 2, "name": "n3"},
            {"_position": 4, "name": "n7"},
        ]
        assert table.snapshot().lookup(pa.array([], pa.int64())).num_rows == 0
        assert table.snapshot().lookup(pa.array([5])).column_names == ["_position", "id", "name", "amount"]

    def test_a_composite_key(self) -> None:
        if self.lacks("insert", "lookup"):
            return
        schema = Schema.of(("a", "STRING"), ("b", "INT"), ("v", "INT"), key=["b", "a"])
        table = self.make_table(schema)
        table.commit(write(Mode.APPEND, ("x", 1, 10), ("y", 1, 11), ("x", None, 12), schema=schema))
        snapshot = table.snapshot()
        assert snapshot.contains((1, "y"))
        assert not snapshot.contains((2, "y"))
        assert snapshot.contains((None, "x"))
        wanted = pa.table({"b": pa.array([1, None, 1], pa.int32()), "a": ["z", "x", "x"]})
        assert snapshot.lookup(wanted, ["v"]).to_pylist() == [{"_position": 2, "v": 10}]

    def test_paging_gives_every_row_once(self) -> None:  # B22
        if self.lacks("insert"):
            return
        table = self.make_table(BAG)
        table.commit(write(Mode.APPEND, *((number, "x") for number in range(23))))
        snapshot = table.snapshot()
        expected = snapshot.scan().column("id").to_pylist()
        for size, offset in ((10, 0), (23, 0), (7, 5), (5, 23), (100, 0)):
            paged = [batch.column("id").to_pylist() for batch in snapshot.batches(size, offset)]
            assert [number for page in paged for number in page] == expected[offset:]
            assert all(len(page) <= size for page in paged)

    def test_a_snapshot_never_changes(self) -> None:
        if self.lacks("insert", "upsert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "a"), (2, "b")))
        snapshot = table.snapshot()
        before = content(snapshot.scan())
        table.commit(write(Mode.UPSERT, (1, "A"), (3, "c")))
        assert content(snapshot.scan()) == before
        assert snapshot.count() == 2
        assert not snapshot.contains(3)

    def test_older_versions_and_what_changed_since(self) -> None:
        if self.lacks("versions", "insert", "upsert", "delete"):
            return
        table = self.make_table(KEYED)
        versions = [table.version]
        states = [content(table.snapshot().scan())]
        there, back = write(Mode.UPSERT, (1, "A")), write(Mode.UPSERT, (1, "a"))
        for step in (write(Mode.APPEND, (1, "a"), (2, "b")), there, back, keys(2), keys(1), back):
            versions.append(table.commit(step))
            states.append(content(table.snapshot().scan()))
        assert versions == sorted(set(versions))
        for since, before in zip(versions, states, strict=True):
            assert content(table.snapshot(since).scan()) == before
            for until, after in zip(versions, states, strict=True):
                if until >= since:
                    self._check_changes(table, since, until, before, after)
        with pytest.raises(TableError):
            table.snapshot(versions[-1] + 1)

    def _check_changes(self, table: Table, since: int, until: int, before: Counter[Any], after: Counter[Any]) -> None:
        batch = table.changes(since, until)
        assert batch.version == until
        signs = batch.arrow.column(CHANGE).to_pylist()
        assert signs == sorted(signs)
        changed = Counter(before)
        for row, sign in zip(hashable_rows(batch.arrow.drop_columns([CHANGE])), signs, strict=True):
            changed[row] += sign
        assert +changed == after
        assert len(signs) == sum((before - after).values()) + sum((after - before).values())

    def test_conditions(self) -> None:  # B15, B16
        if self.lacks("conditions", "insert"):
            return
        table = self.make_table(KEYED)
        rows = [(1, "a", Decimal("1.50")), (2, "b", None), (3, None, Decimal("2.00")), (4, "a%", Decimal("1.49"))]
        table.commit(write(Mode.APPEND, *rows))
        price = pa.decimal128(10, 2)
        name, amount = ColumnRef("name"), ColumnRef("Amount")
        cases: list[tuple[Expression, list[int]]] = [
            (equals("id", 3, pa.int64()), [3]),
            (equals("name", "a", pa.string()), [1]),
            (Call("not", (equals("name", "a", pa.string()),)), [2, 4]),
            (Call(">=", (amount, Literal(Decimal("1.50"), price))), [1, 3]),
            (Call("is_null", (amount,)), [2]),
            (Call("<=>", (name, Literal(None, pa.string()))), [3]),
            (Call("in", (name, Literal("a", pa.string()), Literal("b", pa.string()))), [1, 2]),
            (Call("like", (name, Literal("a_", pa.string()))), [4]),
            (Call("and", (Call("is_null", (name,)), equals("id", 3, pa.int64()))), [3]),
            (Call("or", (Call("is_null", (name,)), equals("id", 1, pa.int64()))), [1, 3]),
            (equals("name", "a' OR '1'='1", pa.string()), []),
        ]
        for condition, expected in cases:
            found = table.snapshot().scan(condition, ["id"])
            assert sorted(found.column("id").to_pylist()) == expected, condition
            assert table.snapshot().count(condition) == len(expected)
            assert table.compile_condition(condition).access in ("key", "index", "scan")
        with pytest.raises(NotFoundError):
            table.snapshot().count(equals("nam", "a", pa.string()))

    @pytest.mark.parametrize("type_", TYPES)
    def test_every_type_comes_back_exactly(self, type_: str) -> None:
        if self.lacks("insert"):
            return
        schema = Schema.of(("n", "INT"), ("v", type_))
        table = self.make_table(schema)
        rows = rows_of(schema, *enumerate([None, *TYPES[type_]]))
        table.commit(Write(Mode.APPEND, rows))
        self._check_values(table.snapshot(), rows)
        if not self.lacks("durable"):
            self._check_values(self.reopen(table).snapshot(), rows)

    def _check_values(self, snapshot: Snapshot, rows: pa.Table) -> None:
        found = snapshot.scan()
        assert found.schema.types == rows.schema.types
        assert content(found) == content(rows)

    @pytest.mark.parametrize("type_", [name for name in TYPES if "<" not in name])
    def test_every_plain_type_can_be_a_key(self, type_: str) -> None:
        if self.lacks("insert", "upsert", "lookup"):
            return
        schema = Schema.of(("k", type_), ("v", "INT"), key=["k"])
        table = self.make_table(schema)
        values = [None, *TYPES[type_]]
        table.commit(write(Mode.APPEND, *((value, 1) for value in values), schema=schema))
        table.commit(write(Mode.UPSERT, *((value, number) for number, value in enumerate(values)), schema=schema))
        snapshot = table.snapshot()
        assert snapshot.count() == len(values)
        found = snapshot.lookup(pa.array(values, schema.columns[0].type), ["v"])
        assert found.column("v").to_pylist() == list(range(1, len(values)))
        for number, value in enumerate(values[1:], 1):
            row = snapshot.get(value)
            assert row is not None
            assert row["v"] == number

    def test_any_name_will_do(self) -> None:
        if self.lacks("insert", "upsert", "lookup", "conditions"):
            return
        schema = Schema(tuple(Column(name, pa.string()) for name in NAMES), NAMES[:2])
        table = self.make_table(schema)
        table.commit(write(Mode.UPSERT, NAMES, schema=schema))
        table.commit(write(Mode.UPSERT, [*NAMES[:2], *("changed" for _ in NAMES[2:])], schema=schema))
        snapshot = table.snapshot()
        row = snapshot.get(NAMES[:2])
        assert row is not None
        assert [row[name] for name in NAMES] == [*NAMES[:2], *("changed" for _ in NAMES[2:])]
        for name in NAMES:
            assert snapshot.count(equals(name, row[name], pa.string())) == 1
            assert snapshot.scan(columns=[name]).column_names == [name]

    def test_readers_see_one_version_while_others_write(self) -> None:  # B33
        if self.lacks("insert", "upsert"):
            return
        table = self.make_table(KEYED)
        size = 50
        table.commit(write(Mode.APPEND, *((number, "0") for number in range(size))))

        def read_once() -> None:
            snapshot = table.snapshot()
            seen = snapshot.scan().column("name").to_pylist()
            assert len(seen) == size
            assert len(set(seen)) == 1
            row = snapshot.get(size - 1)
            assert row is not None
            assert row["name"] == seen[0]

        def write_once(step: int) -> None:
            table.commit(write(Mode.UPSERT, *((number, str(step)) for number in range(size))))

        run_together([read_once] * 4, write_once, steps=60)

    def test_writers_lose_nothing(self) -> None:
        if self.lacks("insert"):
            return
        table = self.make_table(BAG)
        writers, each = 4, 25

        def append(writer: int) -> None:
            for number in range(each):
                table.commit(write(Mode.APPEND, (writer * each + number, "x")), Epoch(f"w{writer}", number))

        in_threads([lambda writer=writer: append(writer) for writer in range(writers)])  # type: ignore[misc]
        assert sorted(table.snapshot().scan().column("id").to_pylist()) == list(range(writers * each))

    def test_reading_and_writing_can_be_made_one_step(self) -> None:
        if self.lacks("transactions", "insert", "upsert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, (1, "counter", Decimal(0))))

        def increment() -> None:
            for _ in range(20):
                with table.exclusive():
                    row = table.snapshot().get(1)
                    assert row is not None
                    table.commit(write(Mode.UPSERT, (1, "counter", row["amount"] + 1)))

        in_threads([increment] * 4)
        row = table.snapshot().get(1)
        assert row is not None
        assert row["amount"] == 80

    @settings(
        max_examples=30, deadline=None, suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow]
    )
    @given(st.data())
    def test_any_program_gives_what_a_dict_would(self, data: st.DataObject) -> None:
        if self.lacks("insert", "update", "delete", "upsert", "epochs"):
            return
        keyed = data.draw(st.booleans(), label="keyed")
        table = self.make_table(KEYED if keyed else BAG)
        model = Model(keyed=keyed)
        epoch = 0
        for _ in range(data.draw(st.integers(0, 12), label="steps")):
            step = data.draw(STEPS)
            if step in ("reopen", "crash"):
                if not self.lacks("durable"):
                    table = self.reopen(table) if step == "reopen" else self.crash(table)
                continue
            before, since = Counter(model.rows), table.version
            repeated = data.draw(st.booleans(), label="repeated")
            epoch += 1
            try:
                model.apply(step)
            except KeyError:
                with pytest.raises(TableError):
                    table.commit(step, Epoch("w", epoch))
            else:
                for _ in range(1 + repeated):
                    table.commit(step, Epoch("w", epoch))
            assert content(table.snapshot().scan()) == +model.rows
            assert (table.version == since) == (before == model.rows)
            if not self.lacks("versions"):
                self._check_changes(table, since, table.version, before, +model.rows)
