"""Views that follow changes: equal to what Spark answers for their SELECT after every commit, and after a restart."""

import json
import random
import re
from collections import Counter
from datetime import date
from decimal import Decimal

import pytest

import velostream

TABLES = {
    "sales": "(id BIGINT PRIMARY KEY, shop STRING, item INT, amount DECIMAL(10,2), weight DOUBLE, day DATE)",
    "items": "(item INT PRIMARY KEY, title STRING, price DECIMAL(8,2), grp STRING)",
    "marks": "(shop STRING, mark BIGINT)",
}
LINEAR = {
    "filtered": "SELECT id, shop, amount * 2 AS twice FROM sales WHERE amount > 3 AND shop <> 'c'",
    "renamed": "SELECT id AS number, * FROM sales",
    "by_spark": "SELECT shop, date_format(day, 'yyyy') AS year, weight / 2 AS half FROM sales WHERE weight < 40",
    "bag": "SELECT shop, amount FROM sales WHERE shop IS NOT NULL",
    "nested": "WITH q AS (SELECT item, amount FROM sales WHERE amount > 1) SELECT item + 1 AS next FROM q",
    "united": "SELECT shop AS name FROM sales UNION ALL SELECT title FROM items UNION ALL SELECT shop FROM marks",
    "exploded": "SELECT id, explode(split(shop, '')) AS letter FROM sales",
}
GROUPED = {
    "totals": "SELECT shop, COUNT(*) AS n, COUNT(amount) AS m, SUM(amount) AS total, AVG(amount) AS mean FROM sales "
    "GROUP BY shop",
    "integers": "SELECT item, SUM(id) AS ids, AVG(id) AS mean, AVG(item) AS self FROM sales GROUP BY item",
    "extremes": "SELECT shop, MIN(amount) AS low, MAX(amount) AS high, MAX(day) AS last, MIN(shop) AS same FROM sales "
    "GROUP BY shop",
    "frequent": "SELECT shop, SUM(amount) / COUNT(*) AS mean FROM sales GROUP BY shop HAVING COUNT(*) > 2",
    "whole": "SELECT COUNT(*) AS n, SUM(mark) AS total, MAX(shop) AS high, AVG(mark) AS mean FROM marks",
    "single": "SELECT COUNT(*) AS n, SUM(amount) AS total, MIN(amount) AS low, AVG(id) AS mean FROM sales "
    "WHERE item > 2",
    "expressions": "SELECT item % 3 AS third, year(day) AS year, COUNT(*) FILTER (WHERE amount > 4) AS big, "
    "SUM(CASE WHEN shop = 'a' THEN amount ELSE 0 END) + 1 AS a FROM sales GROUP BY item % 3, year(day)",
    "unselected": "SELECT SUM(mark) AS total FROM marks GROUP BY shop",
    "pairs": "SELECT DISTINCT shop, item FROM sales",
    "doubled": "SELECT shop, COUNT(*) AS n, SUM(amount * 2) AS total, AVG(item + 1) AS mean FROM sales GROUP BY shop",
    "some": "SELECT shop, COUNT(amount) AS n, SUM(amount) AS total FROM sales WHERE item > 2 GROUP BY shop",
    "in_another_order": "SELECT item, COUNT(*) AS n, shop, SUM(amount) AS total FROM sales GROUP BY shop, item",
    "double_groups": "SELECT weight, COUNT(*) AS n FROM sales GROUP BY weight",
}

JOINED = {
    "inner_join": "SELECT s.id, i.title, s.amount * i.price AS value FROM sales s JOIN items i ON s.item = i.item",
    "left_join": "SELECT s.id, i.title, m.mark FROM sales s LEFT JOIN items i ON s.item = i.item AND i.price > 1 "
    "LEFT JOIN marks m ON m.shop = s.shop AND m.mark > s.item",
    "right_join": "SELECT s.id, i.item, i.title FROM sales s RIGHT JOIN items i ON s.item = i.item AND s.amount > 2",
    "chain": "SELECT m.mark, s.id, i.grp FROM marks m JOIN sales s ON m.shop = s.shop JOIN items i ON i.item = s.item "
    "WHERE s.amount IS NOT NULL",
    "commas": "SELECT s.id, i.title FROM sales s, items i WHERE s.item = i.item AND s.amount < i.price",
    "using_join": "SELECT shop, id, mark FROM sales JOIN marks USING (shop)",
    "self_join": "SELECT a.id, b.id AS other FROM sales a JOIN sales b ON a.shop = b.shop AND a.id < b.id",
    "semi": "SELECT id, shop FROM sales s WHERE EXISTS (SELECT 1 FROM marks m WHERE m.shop = s.shop AND m.mark > 0)",
    "anti": "SELECT id FROM sales s WHERE NOT EXISTS (SELECT 1 FROM marks m WHERE m.shop = s.shop) AND amount > 0",
    "left_semi": "SELECT s.id FROM sales s LEFT SEMI JOIN items i ON s.item = i.item",
    "left_anti": "SELECT s.shop FROM sales s LEFT ANTI JOIN items i ON s.item = i.item",
    "membership": "SELECT id FROM sales WHERE item IN (SELECT item FROM items WHERE price > 3)",
    "scalar": "SELECT i.item, (SELECT SUM(s.amount) FROM sales s WHERE s.item = i.item) AS sold FROM items i",
    "join_totals": "SELECT i.grp, COUNT(*) AS n, SUM(s.amount * i.price) AS value, AVG(s.amount) AS mean FROM sales s "
    "JOIN items i ON s.item = i.item GROUP BY i.grp HAVING COUNT(*) > 1",
    "left_totals": "SELECT s.shop, COUNT(m.mark) AS marks, SUM(m.mark) AS total FROM sales s LEFT JOIN marks m "
    "ON m.shop = s.shop GROUP BY s.shop",
    "join_pairs": "SELECT DISTINCT s.shop, i.title FROM sales s JOIN items i ON s.item = i.item",
}

DIVIDED = {
    "spread": "SELECT shop, STDDEV(amount) AS spread, COUNT(DISTINCT item) AS kinds, SUM(weight) AS weight FROM sales "
    "GROUP BY shop",
    "texts": "SELECT item, array_sort(collect_set(shop)) AS shops, MAX(weight) AS heaviest FROM sales WHERE id > 3 "
    "GROUP BY item",
    "full_join": "SELECT s.id, s.item AS sold, i.item, i.title FROM sales s FULL JOIN items i ON s.item = i.item",
    "ranked": "SELECT shop, id, amount, rank() OVER (PARTITION BY shop ORDER BY amount, id) AS place FROM sales",
    "flattened": "SELECT shop, SUM(value) AS value, COUNT(*) AS n FROM (SELECT s.shop, s.amount * i.price AS value "
    "FROM sales s, items i WHERE s.item = i.item AND (i.price > 2 OR s.amount > 2)) GROUP BY shop",
    "newest": "SELECT id, shop, day FROM sales WHERE day IS NOT NULL ORDER BY day DESC, id LIMIT 5",
    "best_shops": "SELECT shop, SUM(amount) AS total FROM sales GROUP BY shop "
    "ORDER BY total DESC NULLS LAST, shop LIMIT 2",
    "best_joined": "SELECT s.id, i.price FROM sales s JOIN items i ON s.item = i.item ORDER BY 2 DESC, id LIMIT 3",
    "highest": "SELECT i.item, MAX(s.amount) AS high, AVG(s.weight) AS mean FROM items i LEFT JOIN sales s "
    "ON s.item = i.item GROUP BY i.item",
}

IN_PARTS = {
    "not_in": "SELECT id FROM sales WHERE shop NOT IN (SELECT shop FROM marks WHERE mark > 0)",
    "not_in_itself": "SELECT id FROM sales WHERE amount NOT IN (SELECT amount FROM sales WHERE item = 3)",
    "not_in_groups": "SELECT id, shop FROM sales WHERE shop NOT IN (SELECT shop FROM marks GROUP BY shop "
    "HAVING COUNT(*) > 2)",
    "not_in_joined": "SELECT s.id FROM sales s LEFT JOIN items i ON s.item = i.item WHERE i.item NOT IN "
    "(SELECT item FROM sales WHERE item IS NOT NULL AND amount > 4)",
    "in_groups": "SELECT id FROM sales WHERE shop IN (SELECT shop FROM marks GROUP BY shop HAVING SUM(mark) > 1)",
    "above_mean": "SELECT id, amount FROM sales WHERE amount > (SELECT AVG(amount) FROM sales WHERE shop <> 'b')",
    "share": "SELECT id, amount - (SELECT MAX(amount) FROM sales) AS below, (SELECT COUNT(*) FROM marks) AS marks "
    "FROM sales",
    "someone": "SELECT id FROM sales WHERE EXISTS (SELECT 1 FROM marks WHERE mark = 2) AND amount > 1",
    "above_own": "SELECT id FROM sales s WHERE amount < (SELECT 2 * SUM(m.mark) FROM marks m WHERE m.shop = s.shop)",
    "great_shops": "SELECT shop, SUM(amount) AS total FROM sales GROUP BY shop HAVING SUM(amount) > "
    "(SELECT SUM(amount) / 4 FROM sales)",
    "sizes": "SELECT n, COUNT(*) AS shops FROM (SELECT shop, COUNT(*) AS n FROM sales GROUP BY shop) AS q GROUP BY n",
    "best_of_all": "WITH q AS (SELECT shop, SUM(amount) AS total FROM sales GROUP BY shop) "
    "SELECT q.shop, m.mark, total FROM q JOIN marks m ON m.shop = q.shop WHERE total = (SELECT MAX(total) FROM q)",
    "kinds": "SELECT shop, COUNT(DISTINCT item) AS kinds, SUM(DISTINCT item) AS total FROM sales GROUP BY shop",
    "joined_kinds": "SELECT i.grp, COUNT(DISTINCT s.shop) AS shops FROM sales s JOIN items i ON s.item = i.item "
    "GROUP BY i.grp",
    "joined_extremes": "SELECT i.grp, MIN(s.amount) AS low, MAX(s.day) AS last FROM sales s JOIN items i "
    "ON s.item = i.item GROUP BY i.grp",
    "joined_spread": "SELECT i.grp, STDDEV(s.amount) AS spread, array_sort(collect_list(s.shop)) AS shops FROM sales s "
    "JOIN items i ON s.item = i.item GROUP BY i.grp",
    "second_page": "SELECT id, amount FROM sales ORDER BY amount DESC, id LIMIT 3 OFFSET 2",
    "one_of_two": "SELECT s.id, i.title FROM sales s, items i WHERE (s.item = i.item AND i.price > 3) "
    "OR (s.item = i.item AND s.amount > 2 AND i.grp = 'g')",
    "years": "SELECT extract(YEAR FROM s.day) AS year, extract(MONTH FROM s.day) AS month, COUNT(*) AS n FROM sales s "
    "JOIN items i ON s.item = i.item WHERE s.day < DATE '2024-02-29' + INTERVAL '1' YEAR GROUP BY 1, 2",
}


class Shop:
    """Tables with random content, changed at random; the views over them, and what Spark makes of their queries."""

    def __init__(self, directory, views, seed):
        self.directory = directory
        self.views = views
        self.random = random.Random(seed)
        self.connection = velostream.connect(directory)
        for name, columns in TABLES.items():
            self.connection.execute(f"CREATE TABLE {name} {columns}")
        self.change()
        for name, query in views.items():
            self.connection.execute(f"CREATE TABLE {name} AS {query}")

    def change(self):
        """A few commits: rows inserted, updated (keys too) and deleted."""
        for _ in range(self.random.randint(1, 4)):
            self.statement(self.connection.execute)

    def statement(self, execute):
        pick = self.random.randrange
        low, high = sorted((pick(60), pick(60)))
        match pick(10):
            case 0 | 1 | 2 | 3:
                rows = [(pick(60), *self.sale()) for _ in range(pick(1, 9))]
                values = ", ".join(
                    f"({', '.join(map(literal, row))})" for row in {row[0]: row for row in rows}.values()
                )
                execute(f"UPSERT INTO sales VALUES {values}")
            case 4:
                shop, _, amount, _, day = map(literal, self.sale())
                execute(
                    f"UPDATE sales SET shop = {shop}, amount = {amount}, day = {day} WHERE id BETWEEN {low} AND {high}"
                )
            case 5:
                execute(f"DELETE FROM sales WHERE id BETWEEN {low} AND {min(high, low + 20)}")
            case 6:
                execute(f"UPDATE sales SET id = id + 100 WHERE id BETWEEN {low} AND {low + 3} AND id < 60")
                execute("DELETE FROM sales WHERE id >= 100")
            case 7:
                row = (pick(8), self.choice(["x", "y", None]), self.decimal(), self.choice(["g", "h", None]))
                execute(f"UPSERT INTO items VALUES ({', '.join(map(literal, row))})")
            case 8:
                execute(f"DELETE FROM items WHERE item = {pick(8)}")
            case _:
                shop = literal(self.choice(["a", "b", None]))
                if pick(3):
                    execute(f"INSERT INTO marks VALUES ({shop}, {pick(3)}), ({shop}, {pick(3)})")
                else:
                    execute(f"DELETE FROM marks WHERE mark = {pick(3)}")

    def sale(self):
        day = self.choice(["DATE '2024-02-29'", "DATE '2025-01-01'", "DATE '2025-12-31'", None])
        shop = self.choice(["a", "b", "c", "", None])
        item = self.choice([None, *range(8)])
        return shop, item, self.decimal(), self.choice([None, 0.5, 1.5, -0.0, 0.0, 40.25]), day

    def decimal(self):
        return self.choice([None, Decimal(self.random.randrange(-500, 1000)) / 100])

    def choice(self, values):
        return self.random.choice(values)

    def restart(self):
        self.connection.close()
        self.connection = velostream.connect(self.directory)

    def check(self):
        """Every view holds what Spark gives for its query; all queries are asked in one go."""
        for view in self.views:
            self.connection.drain(view, timeout=120)
        session = self.connection._context.spark.session()
        for name in TABLES:
            session.createDataFrame(self.connection.table(name).arrow()).createOrReplaceTempView(f"{name}_now")
        asked = [
            f"SELECT '{view}' AS view, to_json(struct(*), map('ignoreNullFields', 'false')) AS row FROM ({query})"
            for view, query in self.views.items()
        ]
        right = {view: Counter() for view in self.views}
        for answer in session.sql(
            re.sub(rf"\b({'|'.join(TABLES)})\b(?= |\)|$)", r"\1_now", " UNION ALL ".join(asked))
        ).collect():
            right[answer.view][tuple(map(plain, json.loads(answer.row, parse_float=Decimal).values()))] += 1
        for view, rows in right.items():
            content = self.connection.table(view).arrow().to_pylist()
            assert Counter(tuple(map(plain, row.values())) for row in content) == rows, view


def literal(value):
    if value is None:
        return "NULL"
    return f"'{value}'" if isinstance(value, str) and not value.startswith("DATE") else str(value)


def plain(value):
    """A value as both Python and JSON can have it: exact numbers, floats to nine digits."""
    if isinstance(value, int | float | Decimal):
        return Decimal(value).quantize(Decimal("1e-9"))
    if isinstance(value, list):
        return tuple(map(plain, value))
    return str(value) if isinstance(value, date) else value


@pytest.mark.parametrize(
    "views",
    [LINEAR, GROUPED, JOINED, DIVIDED, IN_PARTS],
    ids=["linear", "grouped", "joined", "divided", "in parts"],
)
def test_a_view_equals_its_query_after_every_commit(views, tmp_path, spark_kept):
    shop = Shop(tmp_path / "state", views, seed=11)
    plans = {
        name: dict(shop.connection.execute(f"EXPLAIN CREATE TABLE v AS {q}").fetchall()) for name, q in views.items()
    }
    assert {name: plan["strategy"] for name, plan in plans.items()} == dict.fromkeys(views, "delta")
    shop.check()
    for step in range(5):
        shop.change()
        shop.check()
        if step == 2:
            shop.restart()
    shop.connection.execute("DELETE FROM sales")
    shop.check()
    shop.connection.close()
