"""The process that is killed: a durable connection with a join, an aggregate and a keyed map on one growing file.

Prints `commit <n>` whenever one of its tables has moved. Once the file `finish` is there it drains everything, leaves
the tables as Arrow files in the folder, prints `done` and ends.
"""
# ruff: noqa: T201 - the test reads what is printed

import sys
import time
from pathlib import Path

import pyarrow.feather

import velostream

SCRIPT = """
CREATE TABLE users AS SELECT user_id PRIMARY KEY, country, rate FROM file://{folder}/users.csv;
CREATE TABLE enriched AS
  SELECT o.id, o.sku, u.country, o.amount * u.rate AS charged
  FROM file://{folder}/orders.csv o WITH ('watch' = 'true', 'watch.mode' = 'append')
  JOIN users u ON o.user_id = u.user_id;
CREATE TABLE charges AS
  SELECT u.country, o.sku, COUNT(*) AS n, SUM(o.amount * u.rate) AS charged
  FROM file://{folder}/orders.csv o WITH ('watch' = 'true', 'watch.mode' = 'append')
  JOIN users u ON o.user_id = u.user_id
  GROUP BY u.country, o.sku;
CREATE TABLE latest AS
  SELECT user_id PRIMARY KEY, id, amount
  FROM file://{folder}/orders.csv WITH ('watch' = 'true', 'watch.mode' = 'append');
"""
TABLES = ("enriched", "charges", "latest")
_DRAIN_SECONDS = 240


def main(folder: Path) -> None:
    connection = velostream.connect(folder / "state")
    connection.run_script(SCRIPT.format(folder=folder))
    print("running", flush=True)
    newest = -1
    while not (folder / "finish").exists():
        before, newest = newest, max(connection.table(name).version for name in TABLES)
        if newest != before:
            print(f"commit {newest}", flush=True)
        for name in TABLES:
            if connection.status(name).state == "failed":
                sys.exit(f"{name} failed: {connection.status(name).error}")
        time.sleep(0.02)
    for name in TABLES:
        connection.drain(name, timeout=_DRAIN_SECONDS)
        pyarrow.feather.write_feather(connection.table(name).arrow(), str(folder / f"{name}.arrow"))
    print("done", flush=True)
    connection.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
