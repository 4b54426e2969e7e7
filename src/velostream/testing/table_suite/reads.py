"""What a snapshot answers: rows by key, by other columns, all of them, page by page."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from velostream.errors import NotFoundError, TableError, UnsupportedError
from velostream.model.schema import Schema
from velostream.testing.table_cases import BAG, KEYED
from velostream.testing.table_suite.harness import TableHarness


class Reads(TableHarness):
    def test_get_and_contains(self) -> None:  # B20
        if not self.has_rows:
            return
        table = self.filled(KEYED, (1, "a", Decimal("1.50")), (2, None, None))
        snapshot = table.snapshot()
        row = snapshot.get(1)
        assert row is not None
        assert dict(row) == row.as_dict() == {"id": 1, "name": "a", "amount": Decimal("1.50")}
        assert str(row["amount"]) == "1.50"
        assert row["NAME"] == "a"
        with pytest.raises(KeyError):
            row["nam"]
        assert snapshot.get(3) is None
        assert (snapshot.contains(2), snapshot.contains(3), snapshot.contains("1")) == (True, False, False)
        bag = self.make_table(BAG)
        for ask in (bag.snapshot().get, bag.snapshot().contains, lambda key: bag.snapshot().lookup(pa.array([key]))):
            with pytest.raises(TableError) as caught:
                ask(1)
            assert caught.value.code == "no-key"

    def test_lookup(self) -> None:
        if not self.has_rows or self.lacks("lookup"):
            return
        table = self.filled(KEYED, *((number, f"n{number}") for number in range(100)))
        wanted = pa.chunked_array([[7, None, 3], [1000, 7]], pa.int64())
        found = table.snapshot().lookup(wanted, ["name"])
        assert found.to_pylist() == [
            {"_position": 0, "name": "n7"},
            {"_position": 2, "name": "n3"},
            {"_position": 4, "name": "n7"},
        ]
        assert found.schema.types == [pa.int64(), pa.string()]
        assert table.snapshot().lookup(pa.array([], pa.int64())).num_rows == 0
        assert table.snapshot().lookup(pa.array([5])).column_names == ["_position", "id", "name", "amount"]
        assert table.snapshot().lookup(pa.array([5, 300], pa.int16()), ["id"]).column("id").to_pylist() == [5]
        with pytest.raises(TableError) as caught:
            table.snapshot().lookup(pa.array(["5"]))
        assert caught.value.code == "wrong-type"
        with pytest.raises(NotFoundError):
            table.snapshot().lookup(pa.array([5]), ["nam"])

    def test_a_lookup_of_many_keys(self) -> None:
        """More keys than a statement has room for parameters."""
        if not self.has_rows or self.lacks("lookup"):
            return
        size = 40_000
        table = self.filled(KEYED, *((number, f"n{number}") for number in range(0, 100, 2)))
        found = table.snapshot().lookup(pa.array(range(size)), ["name"])
        assert found.column("_position").to_pylist() == list(range(0, 100, 2))
        assert found.column("name").to_pylist() == [f"n{number}" for number in range(0, 100, 2)]

    def test_lookup_by_other_columns(self) -> None:
        if not self.has_rows or self.lacks("lookup"):
            return
        for schema in (KEYED, BAG):
            rows = [(1, "a", Decimal("1.50")), (2, "b", None), (3, "a", Decimal("2.00")), (4, None, None)]
            table = self.filled(schema, *rows)
            snapshot = table.snapshot()
            try:
                found = snapshot.lookup_by(["NAME"], pa.array(["b", None, "z", "a"]), ["id"])
            except UnsupportedError as error:
                assert error.code == "unsupported-capability"  # noqa: PT017 - the seam leaves the choice
                return
            assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [(0, 2), (3, 1), (3, 3)]
            positions = found.column("_position").to_pylist()
            assert positions == sorted(positions)
            both = pa.table({"name": ["a", "b", "a"], "amount": pa.array([2, None, 9], pa.decimal128(10, 2))})
            assert snapshot.lookup_by(["name", "amount"], both, ["id"]).to_pylist() == [{"_position": 0, "id": 3}]
            assert snapshot.lookup_by(["name"], pa.array([], pa.string())).column_names == ["_position", *schema.names]

    def test_a_composite_key(self) -> None:
        if not self.has_rows or self.lacks("lookup"):
            return
        schema = Schema.of(("a", "STRING"), ("b", "INT"), ("v", "INT"), key=["b", "a"])
        table = self.filled(schema, ("x", 1, 10), ("y", 1, 11), ("x", None, 12))
        snapshot = table.snapshot()
        assert snapshot.contains((1, "y"))
        assert not snapshot.contains((2, "y"))
        assert snapshot.contains((None, "x"))
        wanted = pa.table({"b": pa.array([1, None, 1], pa.int32()), "a": ["z", "x", "x"]})
        assert snapshot.lookup(wanted, ["v"]).to_pylist() == [{"_position": 2, "v": 10}]

    def test_keys_differ_by_case_and_spaces(self) -> None:
        """Keys are told apart by their bytes, whatever collation the store prefers."""
        if not self.has_rows or self.lacks("lookup"):
            return
        schema = Schema.of(("k", "STRING"), ("v", "INT"), key=["k"])
        names = ["a", "A", "a ", "ä", "a\u0308", "", " ", "ß", "ss", "\u212b", "\xc5"]
        table = self.filled(schema, *((name, number) for number, name in enumerate(names)))
        snapshot = table.snapshot()
        assert snapshot.lookup(pa.array(names), ["v"]).column("v").to_pylist() == list(range(len(names)))
        for number, name in enumerate(names):
            row = snapshot.get(name)
            assert row is not None
            assert row["v"] == number

    def test_paging_gives_every_row_once(self) -> None:  # B22
        if not self.has_rows:
            return
        table = self.filled(BAG, *((number, "x") for number in range(23)))
        snapshot = table.snapshot()
        expected = snapshot.scan().column("id").to_pylist()
        assert sorted(expected) == list(range(23))
        for size, offset in ((10, 0), (23, 0), (7, 5), (5, 23), (100, 0)):
            paged = [batch.column("id").to_pylist() for batch in snapshot.batches(size, offset)]
            assert [number for page in paged for number in page] == expected[offset:]
            assert all(len(page) <= size for page in paged)

    def test_chosen_columns(self) -> None:
        if not self.has_rows:
            return
        table = self.filled(KEYED, (1, "a", Decimal("1.50")))
        assert table.snapshot().scan(columns=["AMOUNT", "id"]).to_pylist() == [{"amount": Decimal("1.50"), "id": 1}]
        with pytest.raises(NotFoundError):
            table.snapshot().scan(columns=["amunt"])
