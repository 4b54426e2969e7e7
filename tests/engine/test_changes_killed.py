"""A stream that changes tables in a store and of ours, killed between the two."""

from __future__ import annotations

import velostream
from velostream.testing.crash import play_until_crash

SCRIPT = """
> CREATE TABLE sales (product STRING, n INT);
> CREATE TABLE stock (product STRING PRIMARY KEY, n INT)
  WITH ('extension' = 'sqlite', 'url' = 'sqlite:///{folder}/stock.db');
> INSERT INTO stock VALUES ('apple', 100);
> CREATE STREAM sold (product STRING, n INT) WITH ('source' = 'memory://sold');
> BEGIN; INSERT INTO sales SELECT * FROM sold;
  UPDATE stock SET n = stock.n - s.n FROM sold s WHERE stock.product = s.product; COMMIT;
$ append sold
{{"product": "apple", "n": 3}}
{{"product": "apple", "n": 4}}
> SELECT count(*) FROM sales;
2
"""


def test_a_batch_repeated_after_a_crash_changes_the_store_once(tmp_path):  # B51, B55
    play_until_crash(SCRIPT.format(folder=tmp_path), folder=tmp_path, point="store.after-write", timeout=300)
    with velostream.connect(tmp_path / "state") as connection:
        connection.memory("sold").append([{"product": "apple", "n": 1}])
        connection.drain("transaction_1", timeout=200)
        assert connection.execute("SELECT n FROM stock").fetchall() == [(92,)]
        assert sorted(connection.execute("SELECT n FROM sales").fetchall()) == [(1,), (3,), (4,)]
