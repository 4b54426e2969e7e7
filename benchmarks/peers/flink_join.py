"""The enrichment join in Flink SQL, streaming mode, from CSV to CSV: `flink_join trades.csv users.csv folder`.

Two tasks run at once. Flink's files can't be looked up in, so it is the join of two streams that end: both sides are
kept in Flink's own state, on the heap, which is its fastest. The header is the one line that can't be parsed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

from benchmarks.peers.protocol import serve

PARALLELISM = 2


def main() -> None:
    trades, users, folder = (Path(argument).resolve() for argument in sys.argv[1:])
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    environment.get_config().set("parallelism.default", str(PARALLELISM))
    for name, columns, path in (
        ("trades", "trade_id BIGINT, user_id BIGINT, symbol STRING, quantity BIGINT, price DECIMAL(18, 2)", trades),
        ("users", "user_id BIGINT, name STRING, tier STRING, factor BIGINT", users),
        ("enriched", "trade_id BIGINT, name STRING, tier STRING, weighted DECIMAL(38, 2)", folder),
    ):
        environment.execute_sql(
            f"CREATE TEMPORARY TABLE {name} ({columns}) WITH ('connector' = 'filesystem', 'path' = '{path.as_uri()}', "
            "'format' = 'csv', 'csv.ignore-parse-errors' = 'true')"
        )
    join = (
        "INSERT INTO enriched SELECT t.trade_id, u.name, u.tier, t.quantity * t.price * u.factor "
        "FROM trades t JOIN users u ON t.user_id = u.user_id"
    )
    serve(lambda: environment.execute_sql(join).wait())


if __name__ == "__main__":
    main()
