"""The process that is killed: a durable table that follows a table of a database through its log.

Prints `commit <n>` whenever the table has moved, and ends with an error should it ever hold a part of a transaction.
Once the file `finish` is there it drains, leaves its rows as an Arrow file in the folder, prints `done` and ends.
Spark isn't needed for this, so that it is up again soon.
"""
# ruff: noqa: T201 - the test reads what is printed

import sys
import time
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.feather

import velostream
from velostream.engine.maintain.fold import FoldRunner
from velostream.plugins import Group, load
from velostream.sources.base import SourceSpec

_DRAIN_SECONDS = 240


def main(folder: Path, url: str) -> None:
    connection = velostream.connect(folder / "state")
    context = connection._context
    kind = next((kind for kind in ("mysql", "mongodb") if url.startswith(kind)), "postgres")
    key = "_id" if kind == "mongodb" else "id"
    columns = f"{key} BIGINT NOT NULL, name STRING, amount DECIMAL(18,2), body STRING"
    if context.catalog.find("folded") is None:
        connection.execute(f"CREATE TABLE folded ({columns}, _origin STRING, PRIMARY KEY ({key}))")
    options = {"table": "things", "cdc": "true", "max.rows.per.trigger": "2000", "fetch.size": "500"}
    if kind == "mongodb":
        # Documents don't say what columns they have.
        options["record.schema"] = columns
    source = load(Group.SOURCES, kind)(SourceSpec(kind, url, options))
    entry = context.catalog.find("folded")
    runner = FoldRunner(context, entry, source=source, schema=source.schema())
    context.board(entry).become("loading")
    runner.start()
    table = context.memory_table(entry.id)
    print("running", flush=True)
    newest = -1
    while not (folder / "finish").exists():
        if runner.board.failure is not None:
            sys.exit(str(runner.board.failure))
        snapshot = table.snapshot()
        if snapshot.version != newest:
            newest = snapshot.version
            rows = snapshot.scan(columns=[key, "amount"])
            total = pc.sum(rows.filter(pc.less(rows[key], 0))["amount"]).as_py()
            if runner.board.state == "ready" and total != 0:
                sys.exit(f"version {newest} has a part of a transaction: {total}")
            print(f"commit {newest}", flush=True)
        runner.board.wait_for_news(0.05)
    runner.drain(time.monotonic() + _DRAIN_SECONDS)
    rows = table.snapshot().scan(columns=[key, "name", "amount", "body"]).sort_by(key)
    pyarrow.feather.write_feather(rows, str(folder / "folded.arrow"))
    print("done", flush=True)
    runner.stop()
    connection.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
