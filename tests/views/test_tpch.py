"""The 22 queries of TPC-H as views over changing tables: each is what Spark answers, at whatever version one looks.

The data is our own: small, and drawn so that every question has an answer.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import velostream

BATCHES, LOOKS = 51, 3

SCRIPT = Path(__file__).with_name("tpch.sql").read_text()
TABLES = dict(re.findall(r"(?m)^-- table (\w+)\n(.*)$", SCRIPT))
QUERIES = {int(number): text for number, text in re.findall(r"(?ms)^-- question (\d+)\n(.*?)(?=^-- |\Z)", SCRIPT)}

NATIONS = (
    *("ALGERIA", "ARGENTINA", "BRAZIL", "CANADA", "EGYPT", "ETHIOPIA", "FRANCE", "GERMANY", "INDIA", "INDONESIA"),
    *("IRAN", "IRAQ", "JAPAN", "JORDAN", "KENYA", "MOROCCO", "MOZAMBIQUE", "PERU", "CHINA", "ROMANIA"),
    *("SAUDI ARABIA", "VIETNAM", "RUSSIA", "UNITED KINGDOM", "UNITED STATES"),
)
REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
ASKED_FOR = (2, 3, 6, 7, 8, 12, 20, 23)
"""Nations that suppliers and customers are of: enough of each for questions about it to have an answer."""
REGION_OF = (0, 1, 1, 1, 4, 0, 3, 3, 2, 2, 4, 4, 2, 4, 0, 0, 0, 1, 2, 3, 4, 2, 3, 3, 1)
TYPES = ("ECONOMY ANODIZED STEEL", "PROMO BURNISHED BRASS", "MEDIUM POLISHED TIN", "SMALL PLATED BRASS", "PROMO TIN")
BRANDS = ("Brand#12", "Brand#23", "Brand#34", "Brand#45")
CONTAINERS = ("SM CASE", "MED BOX", "LG PKG", "MED BAG", "SM PACK")
NAMES = ("forest green", "green lace", "forest rose", "navy linen")
MODES = ("AIR", "AIR REG", "MAIL", "SHIP", "RAIL")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
SUPPLIERS, PARTS, CUSTOMERS, ORDERS, LINES = 100, 1_000, 1_500, 15_000, 4
FIRST_DAY = date(1993, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
DAYS = 5 * 365


class Warehouse:
    """Rows of the tables, drawn at random; the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._next_order = 0

    def load(self, connection: Any) -> None:
        """Make the tables and fill them."""
        for name, columns in TABLES.items():
            connection.execute(f"CREATE TABLE {name} {columns}")
        regions = pa.table({"r_regionkey": range(5), "r_name": REGIONS, "r_comment": [""] * 5})
        names = [name.replace("_", " ") for name in NATIONS]
        nations = pa.table(
            {"n_nationkey": range(25), "n_name": names, "n_regionkey": REGION_OF, "n_comment": [""] * 25}
        )
        filled = {
            "region": regions,
            "nation": nations,
            "supplier": self.suppliers(np.arange(SUPPLIERS)),
            "part": self.parts(np.arange(PARTS)),
            "partsupp": self.offers(np.arange(PARTS)),
            "customer": self.customers(np.arange(CUSTOMERS)),
            **self.orders(ORDERS),
        }
        for name, rows in filled.items():
            self.write(connection.table(name), rows)

    @staticmethod
    def write(table: Any, rows: pa.Table) -> None:
        """Rows that take the place of those with the same key."""
        table.upsert(rows.cast(table.arrow().slice(0, 0).schema))

    def change(self, connection: Any) -> None:
        """One batch: orders come and go, and some rows of every table become others."""
        for name, rows in self.orders(20).items():
            self.write(connection.table(name), rows)
        gone = ", ".join(map(str, self._some(self._next_order, 20)))
        connection.execute(f"DELETE FROM orders WHERE o_orderkey IN ({gone})")
        connection.execute(f"DELETE FROM lineitem WHERE l_orderkey IN ({gone})")
        again = self._some(self._next_order, 15)
        self.write(connection.table("lineitem"), self.lines(again))
        self.write(connection.table("customer"), self.customers(self._some(CUSTOMERS, 10)))
        self.write(connection.table("partsupp"), self.offers(self._some(PARTS, 5)))
        self.write(connection.table("part"), self.parts(self._some(PARTS, 5)))
        self.write(connection.table("supplier"), self.suppliers(self._some(SUPPLIERS, 1)))
        if self._random.random() < 0.2:
            connection.execute(f"DELETE FROM customer WHERE c_custkey = {self._random.integers(CUSTOMERS)}")
            connection.execute(f"DELETE FROM partsupp WHERE ps_partkey = {self._random.integers(PARTS)}")

    def suppliers(self, keys: np.ndarray) -> pa.Table:
        count = len(keys)
        return pa.table(
            {
                "s_suppkey": keys,
                "s_name": [f"Supplier#{key:09}" for key in keys],
                "s_address": [f"street {key}" for key in keys],
                "s_nationkey": self._of(ASKED_FOR, count),
                "s_phone": self._phones(count),
                "s_acctbal": self._cents(-99_999, 999_999, count),
                "s_comment": self._of(["", "the Customer has Complaints", "quick"], count),
            }
        )

    def parts(self, keys: np.ndarray) -> pa.Table:
        count = len(keys)
        return pa.table(
            {
                "p_partkey": keys,
                "p_name": self._of(NAMES, count),
                "p_mfgr": self._of(["Manufacturer#1", "Manufacturer#2"], count),
                "p_brand": self._of(BRANDS, count),
                "p_type": self._of(TYPES, count),
                "p_size": self._of([1, 3, 5, 9, 14, 15, 45], count),
                "p_container": self._of(CONTAINERS, count),
                "p_retailprice": self._cents(90_000, 200_000, count),
                "p_comment": [""] * count,
            }
        )

    def offers(self, parts: np.ndarray) -> pa.Table:
        """Four suppliers of each part."""
        keys = np.repeat(parts, 4)
        suppliers = (keys + np.tile(np.arange(4) * (SUPPLIERS // 4), len(parts))) % SUPPLIERS
        return pa.table(
            {
                "ps_partkey": keys,
                "ps_suppkey": suppliers,
                "ps_availqty": self._random.integers(1, 200, len(keys)),
                "ps_supplycost": self._cents(100, 500, len(keys)),
                "ps_comment": [""] * len(keys),
            }
        )

    def customers(self, keys: np.ndarray) -> pa.Table:
        count = len(keys)
        return pa.table(
            {
                "c_custkey": keys,
                "c_name": [f"Customer#{key:09}" for key in keys],
                "c_address": [f"road {key}" for key in keys],
                "c_nationkey": self._of(ASKED_FOR, count),
                "c_phone": self._phones(count),
                "c_acctbal": self._cents(-99_999, 999_999, count),
                "c_mktsegment": self._of(["BUILDING", "MACHINERY", "HOUSEHOLD"], count),
                "c_comment": [""] * count,
            }
        )

    def orders(self, count: int) -> dict[str, pa.Table]:
        """New orders, and their lines."""
        keys = np.arange(self._next_order, self._next_order + count)
        self._next_order += count
        orders = pa.table(
            {
                "o_orderkey": keys,
                # A third of the customers never order anything.
                "o_custkey": self._random.integers(0, CUSTOMERS // 3, count) * 3 + self._random.integers(0, 2, count),
                "o_orderstatus": self._of(["F", "O", "P"], count),
                "o_totalprice": self._cents(100_000, 30_000_000, count),
                "o_orderdate": self._days(count, 0),
                "o_orderpriority": self._of(PRIORITIES, count),
                "o_clerk": [""] * count,
                "o_shippriority": np.zeros(count, dtype=np.int32),
                "o_comment": self._of(["", "special requests", "the special handling requests"], count),
            }
        )
        return {"orders": orders, "lineitem": self.lines(keys)}

    def lines(self, orders: np.ndarray) -> pa.Table:
        keys = np.repeat(orders, LINES)
        count = len(keys)
        parts = self._random.integers(0, PARTS, count)
        return pa.table(
            {
                "l_orderkey": keys,
                "l_partkey": parts,
                "l_suppkey": (parts + self._random.integers(0, 4, count) * (SUPPLIERS // 4)) % SUPPLIERS,
                "l_linenumber": np.tile(np.arange(LINES), len(orders)),
                "l_quantity": self._cents(1, 100, count, scale=0),
                "l_extendedprice": self._cents(90_000, 10_000_000, count),
                "l_discount": self._cents(0, 11, count),
                "l_tax": self._cents(0, 9, count),
                "l_returnflag": self._of(["R", "A", "N"], count),
                "l_linestatus": self._of(["O", "F"], count),
                "l_shipdate": self._days(count, 30),
                "l_commitdate": self._days(count, 45),
                "l_receiptdate": self._days(count, 60),
                "l_shipinstruct": self._of(["DELIVER IN PERSON", "NONE"], count),
                "l_shipmode": self._of(MODES, count),
                "l_comment": [""] * count,
            }
        )

    def _some(self, below: int, count: int) -> np.ndarray:
        return self._random.choice(below, count, replace=False)

    def _of(self, values: Sequence[Any], count: int) -> pa.Array:
        return pa.array(values).take(pa.array(self._random.integers(0, len(values), count)))

    def _cents(self, low: int, high: int, count: int, scale: int = 2) -> pa.Array:
        whole = pa.array(self._random.integers(low, high, count).astype(np.int64)).cast(pa.decimal128(20, 0))
        return pa.array([value.scaleb(-scale) for value in whole.to_pylist()], pa.decimal128(12, 2))

    def _days(self, count: int, later: int) -> pa.Array:
        days = FIRST_DAY + later + self._random.integers(0, DAYS, count)
        return pa.array(days.astype(np.int32)).cast(pa.date32())

    def _phones(self, count: int) -> list[str]:
        codes = self._random.choice([13, 31, 23, 29, 44, 50], count)
        return [f"{code}-{number}" for code, number in zip(codes, self._random.integers(100, 999, count), strict=True)]


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        yield connection


def test_every_view_equals_its_query_while_its_tables_change(connection, tmp_path, capsys):
    """Batches are committed as fast as they can be; the views are looked at when they have caught up, now and then."""
    warehouse = Warehouse(seed=7)
    warehouse.load(connection)
    assert len(connection.table("lineitem")) >= 60_000
    strategies = {number: _strategy(connection, query) for number, query in QUERIES.items()}
    for number, query in QUERIES.items():
        connection.execute(f"CREATE TABLE q{number} AS {query}")
    for look in range(LOOKS):
        for _ in range(BATCHES // LOOKS):
            warehouse.change(connection)
        for number in QUERIES:
            connection.drain(f"q{number}", timeout=300)
        _check(connection, tmp_path / str(look))
    followed = [number for number, strategy in strategies.items() if strategy == "delta"]
    with capsys.disabled():
        sys.stdout.write(f"\n{len(followed)} of {len(QUERIES)} TPC-H queries follow changes: {followed}\n")
    assert followed == list(QUERIES)


def _strategy(connection, query):
    return dict(connection.execute(f"EXPLAIN CREATE TABLE q AS {query}").fetchall())["strategy"]


def _check(connection, folder):
    folder.mkdir()
    session = connection._context.spark.session()
    for name in TABLES:
        path = folder / f"{name}.parquet"
        pq.write_table(connection.table(name).arrow(), path)
        session.read.parquet(str(path)).createOrReplaceTempView(name)
    for number, query in QUERIES.items():
        right = session.sql(query).toArrow()
        found = connection.table(f"q{number}").arrow()
        assert found.num_rows, f"question {number} has no answer, which proves little"
        assert _bag(found) == _bag(right), f"question {number}"


def _bag(rows):
    return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
