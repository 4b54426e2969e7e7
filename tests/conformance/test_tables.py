"""Every registered kind of table against the one suite, and all of them against one another."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from velostream import plugins
from velostream.errors import TableError
from velostream.model.change import Epoch, Mode, Scope, Write
from velostream.model.expression import Call, ColumnRef, Literal
from velostream.tables.base import Table, TableSpec
from velostream.tables.cache import CachedTable
from velostream.tables.cache.options import CacheLimits
from velostream.testing.stores import TestStore, store_of
from velostream.testing.table_cases import BAG, KEYED, changes, equals, keys, rows_of, write
from velostream.testing.table_suite import TableSuite

KINDS = plugins.names(plugins.Group.TABLES)


class TestTables(TableSuite):
    @pytest.fixture(params=KINDS)
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


class TestTablesBehindACache(TableSuite):
    """A cache so small that rows are evicted in every test, in front of a table."""

    @pytest.fixture(params=["inmemory", "sqlite"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @property
    def store(self) -> TestStore:
        """Without other programs: what they write is seen when the time is up, not at once."""
        return replace(super().store, foreign=None)

    def layered(self, table: Table) -> Table:
        return CachedTable(table, CacheLimits(max_size=3, ttl=timedelta(minutes=1)))


def answers(table: Table) -> list[object]:
    """What a table says now, in an order that doesn't depend on where its rows are."""
    snapshot = table.snapshot()
    cheap = Call("<", (ColumnRef("amount"), Literal(Decimal("2.00"), pa.decimal128(10, 2))))
    named = Call("like", (ColumnRef("name"), Literal("_%", pa.string())))
    return [
        sorted(map(str, snapshot.scan().to_pylist())),
        sorted(map(str, snapshot.scan(cheap, ["name", "id"]).to_pylist())),
        snapshot.count(Call("or", (Call("not", (named,)), cheap))),
        snapshot.count(equals("name", "É", pa.string())),
        *([snapshot.lookup(pa.array([3, 1, 99, 3])).to_pylist(), str(snapshot.get(1))] if table.schema.key else []),
    ]


def play(table: Table) -> bytes:
    """A script of writes; all that it answers on the way."""
    told: list[object] = []
    steps = [
        write(Mode.APPEND, (1, "a", Decimal("1.50")), (2, None, None), (3, "é", Decimal("-0.50"))),
        write(Mode.UPSERT, (3, "É", Decimal("2.00")), (4, "", None), (4, "last", Decimal("0.10"))),
        write(Mode.APPEND, (5, "e"), (5, "twice")) if table.schema.key else write(Mode.APPEND, (5, "e"), (5, "e")),
        changes(((1, "a", Decimal("1.50")), -1), ((1, "A", Decimal("1.51")), 1), ((6, "f"), 1), ((6, "f"), -1)),
        keys(2) if table.schema.key else write(Mode.DELETE, (2, None, None)),
        Write(Mode.REPLACE, rows_of(KEYED, (7, "last", Decimal("7.00"))), Scope("name", "last")),
        write(Mode.UPSERT, (1, "A", Decimal("1.51"))),
        write(Mode.REPLACE, (1, "A", Decimal("1.51")), (3, "É", None), (8, "x" * 300, Decimal("99999999.99"))),
    ]
    for number, step in enumerate(steps):
        before = table.version
        try:
            table.commit(step, Epoch("script", number))
        except TableError as error:
            told.append(error.code)
        table.commit(step, Epoch("script", 0))
        told += [table.version > before, *answers(table)]
    return "\n".join(map(str, told)).encode()


def test_one_script_gives_the_same_bytes_on_all_kinds_of_tables(tmp_path):
    told: dict[str, bytes] = {}
    written = [kind for kind in KINDS if plugins.load(plugins.Group.TABLES, kind).capabilities.insert]
    for kind in written:
        for number, schema in enumerate((KEYED, BAG)):
            name = f"script_{uuid.uuid4().hex[:12]}"
            folder = tmp_path / kind
            folder.mkdir(exist_ok=True)
            options = store_of(kind).options(folder, name)
            spec = TableSpec(name, "t", schema, options=options, directory=folder / str(number))
            table = plugins.load(plugins.Group.TABLES, kind).open(spec)
            told[kind] = told.get(kind, b"") + play(table)
            table.drop()
            table.close()
    print("one script, the same answers on:", ", ".join(told))  # noqa: T201 - shown by pytest -s and on failure
    assert len(told["inmemory"]) > 1000
    assert {kind: answer for kind, answer in told.items() if answer != told["inmemory"]} == {}
