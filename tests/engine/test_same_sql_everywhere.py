"""One script gives the same rows whatever kind of table it is run on: DML, joins, views and pull queries alike."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest

import velostream
from velostream import plugins
from velostream.testing.stores import store_of

SCRIPT = """
CREATE STREAM orders (id BIGINT, sku STRING, quantity INT) WITH ('source' = 'memory://orders');
CREATE TABLE products (sku STRING PRIMARY KEY, name STRING, price DECIMAL(10,2), added DATE, tags ARRAY<STRING>)
  {products};
CREATE TABLE stock (house STRING, sku STRING, amount INT, PRIMARY KEY (house, sku)) {stock};
CREATE TABLE log (sku STRING, quantity INT) {log};
INSERT INTO products VALUES
  ('apple', 'Apple', 1.50, DATE'2024-02-29', array('red', 'sweet')), ('pear', 'Pear', 2.25, NULL, NULL),
  ('plum', NULL, 0.10, DATE'1969-12-31', array()), ('fig', 'Fig', 99999999.99, NULL, array('dear'));
INSERT INTO stock VALUES ('north', 'apple', 10), ('north', 'pear', 5), ('south', 'apple', 7), ('south', 'fig', 1);
UPDATE products SET price = price * 2, name = upper(name) WHERE price < 2 AND name IS NOT NULL;
UPDATE stock SET amount = amount + 1 WHERE house = 'north';
UPSERT INTO products VALUES ('kiwi', 'Kiwi', 0.75, NULL, NULL), ('pear', 'Pear', 2.50, NULL, NULL);
DELETE FROM products WHERE sku = 'plum';
UPDATE stock SET house = 'west' WHERE house = 'south';
CREATE TABLE value AS
  SELECT s.house PRIMARY KEY, count(*) AS lines, sum(s.amount * p.price) AS total
  FROM stock s JOIN products p ON s.sku = p.sku GROUP BY s.house;
CREATE TABLE cheap AS SELECT sku PRIMARY KEY, price FROM products WHERE price < 3 {cheap};
CREATE TABLE sold AS
  SELECT o.id PRIMARY KEY, p.name, o.quantity * p.price AS paid FROM orders o
  LEFT JOIN products p ON o.sku = p.sku {sold};
CREATE TABLE placed AS
  SELECT o.id, s.house, s.amount FROM orders o JOIN stock s ON s.sku = o.sku AND s.amount >= o.quantity;
INSERT INTO log SELECT sku, quantity FROM orders;
"""
LATER = """
UPDATE products SET price = 4 WHERE sku = 'apple';
DELETE FROM stock WHERE amount < 2;
INSERT INTO products VALUES ('date', 'Date', 2.99, NULL, NULL);
"""
ORDERS = [
    [{"id": 1, "sku": "apple", "quantity": 2}, {"id": 2, "sku": "none", "quantity": 1}],
    [
        {"id": 3, "sku": "apple", "quantity": 9},
        {"id": 2, "sku": "kiwi", "quantity": 4},
        {"id": 4, "sku": None, "quantity": 1},
    ],
]
QUESTIONS = [
    "SELECT * FROM products ORDER BY sku",
    "SELECT name, price FROM products WHERE sku = 'pear'",
    "SELECT count(*), sum(price), min(price), max(name) FROM products WHERE price > 1",
    "SELECT house, sku FROM stock WHERE amount BETWEEN 5 AND 11 ORDER BY house, sku",
    "SELECT sku FROM products WHERE array_contains(tags, 'red')",
    "SELECT s.house, p.name, s.amount FROM stock s LEFT JOIN products p ON s.sku = p.sku ORDER BY 1, 2, 3",
    "SELECT sku FROM products p WHERE NOT EXISTS (SELECT 1 FROM stock s WHERE s.sku = p.sku) ORDER BY sku",
    "SELECT * FROM value ORDER BY house",
    "SELECT * FROM cheap ORDER BY sku",
    "SELECT * FROM sold ORDER BY id",
    "SELECT * FROM placed ORDER BY id, house",
    "SELECT sku, quantity FROM log ORDER BY sku, quantity",
]
TABLES = ("products", "stock", "log", "cheap", "sold")
VIEWS = ("value", "cheap", "sold", "placed")


def play(kind: str, folder: Path) -> list[object]:
    """Everything the script's questions are answered, at each of its stages."""
    store = store_of(kind)
    clauses = {}
    for name in TABLES:
        options = {"extension": kind, **store.options(folder, f"{name}_{uuid.uuid4().hex[:8]}")}
        clauses[name] = "WITH (" + ", ".join(f"'{option}' = '{value}'" for option, value in options.items()) + ")"
    answers: list[object] = []
    with ExitStack() as stack:
        connection = stack.enter_context(velostream.connect(folder / "state"))
        connection.execute_script(SCRIPT.format(**clauses))
        for orders in ORDERS:
            connection.memory("orders").append(orders)
            for view in (*VIEWS, "insert_into_log_1"):
                connection.drain(view, timeout=120)
            answers += [connection.execute(question).fetchall() for question in QUESTIONS]
        answers += [connection.execute_script(LATER)[-1].rowcount]
        answers += [connection.execute(question).fetchall() for question in QUESTIONS]
        for name in ("value", "placed", "sold", "cheap"):
            connection.execute(f"DROP TABLE {name}")
        connection.execute("DROP TABLE products")
    return answers


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return play("inmemory", tmp_path_factory.mktemp("inmemory"))


def written_kinds() -> list[str]:
    """Those whose tables can be filled by statements."""
    kinds = {kind: plugins.load(plugins.Group.TABLES, kind) for kind in plugins.names(plugins.Group.TABLES)}
    return [name for name, kind in kinds.items() if kind.capabilities.insert and name != "inmemory"]


@pytest.mark.parametrize("kind", written_kinds())
def test_the_script_gives_the_same_rows(kind: str, tmp_path_factory: pytest.TempPathFactory, expected: list[object]):
    assert play(kind, tmp_path_factory.mktemp(kind)) == expected


def test_the_rows_are_the_right_ones(expected: list[object]):
    by_question = dict(zip(QUESTIONS, expected[-len(QUESTIONS) :], strict=True))
    assert [row[0] for row in by_question["SELECT * FROM cheap ORDER BY sku"]] == ["date", "kiwi", "pear"]
    assert len(by_question["SELECT sku, quantity FROM log ORDER BY sku, quantity"]) == 5
    assert [row[0] for row in by_question["SELECT * FROM sold ORDER BY id"]] == [1, 2, 3, 4]
    assert [row[:2] for row in by_question["SELECT * FROM value ORDER BY house"]] == [("north", 2), ("west", 1)]
