"""Tables changed by streams and by other tables: what the scripts in tests/views don't show."""

from __future__ import annotations

import pytest

import velostream
from velostream.errors import InUseError, NotExecutableError, TableError, ValidationError

DEADLINE = 120


@pytest.fixture
def connection():
    with velostream.connect() as opened:
        opened.execute("CREATE TABLE stock (product STRING PRIMARY KEY, n INT NOT NULL)")
        opened.execute("INSERT INTO stock VALUES ('apple', 100), ('pear', 50)")
        opened.execute("CREATE STREAM sold (product STRING, n INT) WITH ('source' = 'memory://sold')")
        yield opened


def rows(connection, sql="SELECT * FROM stock"):
    return sorted(connection.execute(sql).fetchall(), key=repr)


def sell(connection, *sold):
    connection.memory("sold").append([{"product": product, "n": n} for product, n in sold])


SELL = "UPDATE stock SET n = stock.n - s.n FROM sold s WHERE stock.product = s.product"


def test_rows_that_can_not_be_applied_are_dead_letters_and_the_rest_goes_on(connection):  # B57
    connection.execute(SELL)
    sell(connection, ("apple", 1), ("pear", -2147483648), ("apple", None), ("pear", 2))
    connection.drain("stock", timeout=DEADLINE)
    assert rows(connection) == [("apple", 99), ("pear", 48)]
    letters = connection.execute("SHOW DEAD LETTERS").fetchall()
    assert len(letters) == 2
    assert any("NOT NULL" in str(letter) for letter in letters)
    assert any("2147483648" in str(letter) for letter in letters)


def test_a_query_of_changes_is_shown_stopped_resumed_and_dropped_with_its_table(connection):
    connection.execute_script(f"BEGIN; INSERT INTO stock SELECT concat(product, '!'), n FROM sold; {SELL}; COMMIT")
    (query,) = [row for row in connection.execute("SHOW QUERIES").fetchall() if row[0] == "transaction_1"]
    assert query[1] == "change"
    assert query[4].startswith("BEGIN; INSERT INTO stock SELECT")
    sell(connection, ("apple", 1))
    connection.drain("transaction_1", timeout=DEADLINE)
    connection.execute("STOP QUERY transaction_1")
    sell(connection, ("apple", 2))
    assert rows(connection) == [("apple!", 1), ("apple", 99), ("pear", 50)]
    connection.execute("RESUME QUERY transaction_1")
    connection.drain("transaction_1", timeout=DEADLINE)
    assert rows(connection) == [("apple!", 2), ("apple", 97), ("pear", 50)]
    with pytest.raises(InUseError, match="stock"):
        connection.execute("DROP TABLE stock")
    connection.execute("DROP TABLE stock CASCADE")
    assert connection.queries() == []


def test_a_source_without_columns_is_waited_for(connection):
    connection.execute("UPDATE stock SET n = stock.n - l.n FROM memory://later l WHERE stock.product = l.product")
    assert connection.status("update_stock_1").state == "waiting"
    connection.memory("later").append([{"product": "apple", "n": 7}])
    connection.wait("update_stock_1", timeout=DEADLINE)
    connection.drain("update_stock_1", timeout=DEADLINE)
    assert rows(connection) == [("apple", 93), ("pear", 50)]


def test_what_a_transaction_over_a_stream_refuses(connection):
    connection.execute("CREATE STREAM other (product STRING, n INT) WITH ('source' = 'memory://other')")
    connection.execute("BEGIN")
    connection.execute(SELL)
    for statement, error in [
        ("DELETE FROM stock USING other o WHERE stock.product = o.product", NotExecutableError),
        ("INSERT INTO stock SELECT product, CAST(sum(n) AS INT) FROM sold GROUP BY product", NotExecutableError),
        ("UPDATE stock SET n = 1", ValidationError),
        ("SELECT * FROM sold", ValidationError),
    ]:
        with pytest.raises(error):
            connection.execute(statement)
    connection.execute("ROLLBACK")
    assert connection.queries() == []
    connection.execute("BEGIN")
    connection.execute("UPDATE stock SET n = 1")
    with pytest.raises(ValidationError) as raised:
        connection.execute(SELL)
    assert raised.value.code == "not-in-transaction"
    connection.execute("ROLLBACK")


def test_changes_of_others_in_between_are_not_lost(connection):
    connection.execute(SELL)
    for turn in range(5):
        sell(connection, ("apple", 1))
        connection.execute("UPDATE stock SET n = n - 10 WHERE product = 'apple'")
        connection.drain("stock", timeout=DEADLINE)
        assert rows(connection, "SELECT * FROM stock WHERE product = 'apple'") == [("apple", 89 - 11 * turn)]


def test_expressions_that_only_spark_computes(connection):
    connection.execute(
        "UPDATE stock SET n = CAST(regexp_replace(concat(stock.n, s.n), '0', '1') AS INT) "
        "FROM sold s WHERE stock.product = s.product AND soundex(stock.product) = soundex(s.product)"
    )
    sell(connection, ("apple", 5), ("pear", 6))
    connection.drain("stock", timeout=DEADLINE)
    assert rows(connection) == [("apple", 1115), ("pear", 516)]


def test_a_stream_joined_with_a_table_changes_another(connection):
    connection.execute("CREATE TABLE factors (product STRING PRIMARY KEY, f INT)")
    connection.execute("INSERT INTO factors VALUES ('apple', 10)")
    connection.execute(
        "UPDATE stock SET n = stock.n - s.n * f.f FROM sold s JOIN factors f ON s.product = f.product "
        "WHERE stock.product = s.product"
    )
    sell(connection, ("apple", 1), ("pear", 1), ("apple", 2))
    connection.drain("stock", timeout=DEADLINE)
    assert rows(connection) == [("apple", 70), ("pear", 50)]


def test_merge(connection):
    connection.execute("CREATE TABLE news (product STRING, n INT)")
    connection.execute("INSERT INTO news VALUES ('apple', 1), ('fig', 3), ('kiwi', -1)")
    merged = connection.execute(
        "MERGE INTO stock t USING (SELECT product, n FROM news) s ON t.product = s.product "
        "WHEN MATCHED AND s.n > 100 THEN DELETE WHEN MATCHED THEN UPDATE SET n = t.n + s.n "
        "WHEN NOT MATCHED AND s.n > 0 THEN INSERT * WHEN NOT MATCHED BY SOURCE THEN UPDATE SET n = 0"
    )
    assert merged.rowcount == 3
    assert rows(connection) == [("apple", 101), ("fig", 3), ("pear", 0)]
    connection.execute("INSERT INTO news VALUES ('apple', 2)")
    with pytest.raises(TableError) as raised:
        connection.execute("MERGE INTO stock USING news ON stock.product = news.product WHEN MATCHED THEN DELETE")
    assert raised.value.code == "merge-cardinality"
    with connection.begin() as tx:
        tx.execute("DELETE FROM news WHERE n = 2")
        tx.execute("MERGE INTO stock USING news ON stock.product = news.product WHEN MATCHED THEN DELETE")
        assert rows(tx) == [("pear", 0)]
        assert rows(connection) == [("apple", 101), ("fig", 3), ("pear", 0)]
    assert rows(connection) == [("pear", 0)]


def test_sources_in_subqueries_of_dml(connection, tmp_path):
    (tmp_path / "gone.csv").write_text("product,n\napple,1\n")
    file = f"file://{tmp_path}/gone.csv"
    assert connection.execute(f"DELETE FROM stock WHERE product IN (SELECT product FROM {file})").rowcount == 1
    assert connection.execute(f"INSERT INTO stock SELECT product, CAST(n AS INT) FROM {file}").rowcount == 1
    assert connection.execute(f"UPDATE stock SET n = n + (SELECT max(n) FROM {file})").rowcount == 2
    assert rows(connection) == [("apple", 2), ("pear", 51)]


def test_a_stream_changes_a_table_in_a_store_once_whatever_happens(tmp_path):  # B51
    url = f"sqlite:///{tmp_path / 'stock'}.db"
    with velostream.connect(tmp_path / "state") as connection:
        connection.execute("CREATE TABLE sales (product STRING, n INT)")
        connection.execute(
            f"CREATE TABLE stock (product STRING PRIMARY KEY, n INT) WITH ('extension' = 'sqlite', 'url' = '{url}')"
        )
        connection.execute("INSERT INTO stock VALUES ('apple', 100)")
        connection.execute("CREATE STREAM sold (product STRING, n INT) WITH ('source' = 'memory://sold')")
        connection.execute_script(f"BEGIN; INSERT INTO sales SELECT * FROM sold; {SELL}; COMMIT")
        sell(connection, ("apple", 3), ("apple", 4))
        connection.drain("transaction_1", timeout=DEADLINE)
        assert rows(connection) == [("apple", 93)]
    with velostream.connect(tmp_path / "state") as connection:
        sell(connection, ("apple", 1))
        connection.drain("transaction_1", timeout=DEADLINE)
        assert rows(connection) == [("apple", 92)]
        assert rows(connection, "SELECT n FROM sales") == [(1,), (3,), (4,)]


def test_the_statements_of_the_seeds_run_as_written(connection):
    for name, columns in [
        ("ProfileStream", "userId STRING, name STRING, tier STRING"),
        ("UpgradeStream", "userId STRING"),
        ("ChurnStream", "userId STRING"),
    ]:
        connection.execute(f"CREATE STREAM {name} ({columns}) WITH ('source' = 'memory://{name}')")
    connection.execute(
        "CREATE TABLE UserProfiles (userId STRING, name STRING, tier STRING) WITH ('extension' = 'cache')"
    )
    connection.execute("INSERT INTO UserProfiles SELECT * FROM ProfileStream")
    connection.execute(
        "UPDATE UserProfiles SET tier = 'GOLD' FROM UpgradeStream u WHERE UserProfiles.userId = u.userId"
    )
    connection.execute("DELETE FROM UserProfiles FROM ChurnStream c WHERE UserProfiles.userId = c.userId")
    profiles = [{"userId": user, "name": user.upper(), "tier": "BASIC"} for user in "abc"]
    for feed, given in [
        ("ProfileStream", profiles),
        ("UpgradeStream", [{"userId": "a"}, {"userId": "z"}]),
        ("ChurnStream", [{"userId": "b"}]),
    ]:
        connection.memory(feed).append(given)
        connection.drain("UserProfiles", timeout=DEADLINE)
    assert rows(connection, "SELECT * FROM UserProfiles") == [("a", "A", "GOLD"), ("c", "C", "BASIC")]


def test_rows_that_a_lookup_misses_are_left_out_of_an_upsert_and_counted(connection):  # B41
    connection.execute("CREATE TABLE prices (product STRING PRIMARY KEY, price DECIMAL(6,2))")
    connection.execute("INSERT INTO prices VALUES ('apple', 0.50)")
    connection.execute("CREATE TABLE worth (product STRING PRIMARY KEY, total DECIMAL(20,2))")
    connection.execute(
        "UPSERT INTO worth SELECT s.product, CAST(s.n * p.price AS DECIMAL(20,2)) AS total "
        "FROM sold s JOIN prices p ON s.product = p.product ON worth.product = s.product "
        "WITH ('join.missing' = 'skip')"
    )
    sell(connection, ("apple", 4), ("fig", 1))
    connection.drain("worth", timeout=DEADLINE)
    assert [str(value) for row in rows(connection, "SELECT * FROM worth") for value in row] == ["apple", "2.00"]
