"""The enrichment join in Pathway, from CSV to CSV: `pathway_join trades.csv users.csv folder`.

The files are read to their end (`static`), which spares Pathway waiting for more; PATHWAY_THREADS gives it the same two
threads as the others. It has no decimals: prices are doubles, exact to the cent at this size.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pathway as pw

from benchmarks.peers.protocol import serve


class Trade(pw.Schema):  # type: ignore[misc]
    trade_id: int
    user_id: int
    symbol: str
    quantity: int
    price: float


class User(pw.Schema):  # type: ignore[misc]
    user_id: int
    name: str
    tier: str
    factor: int


def main() -> None:
    paths = [Path(argument) for argument in sys.argv[1:]]
    serve(lambda: join(*paths))


def join(trades_path: Path, users_path: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    # What an earlier run has built would be run again.
    pw.internals.parse_graph.G.clear()
    trades = pw.io.csv.read(str(trades_path), schema=Trade, mode="static")
    users = pw.io.csv.read(str(users_path), schema=User, mode="static")
    enriched = trades.join(users, trades.user_id == users.user_id).select(
        trades.trade_id, users.name, users.tier, weighted=trades.quantity * trades.price * users.factor
    )
    pw.io.csv.write(enriched, str(folder / "enriched.csv"))
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)


if __name__ == "__main__":
    main()
