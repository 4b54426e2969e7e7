"""The demo: a trading desk on live tables.

Trades are generated, traders and symbols come from CSV files, limits stand in a table that DML changes. Trades are
enriched as they arrive, positions are kept per trader and symbol, and a subquery finds who is over the limit.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table

from velostream.errors import WaitTimeoutError

if TYPE_CHECKING:
    from velostream.engine.connection import Connection

TRADES = 20_000
TRADES_PER_SECOND = 1_000
PATIENCE_SECONDS = 180
TRADERS = ("Ada", "Ben", "Chi", "Dee", "Eli", "Fay", "Gus", "Hal")
SYMBOLS = (
    ("AAPL", "Apple", "Technology"),
    ("JPM", "JPMorgan Chase", "Financials"),
    ("MSFT", "Microsoft", "Technology"),
    ("NVDA", "NVIDIA", "Technology"),
    ("PFE", "Pfizer", "Health care"),
    ("XOM", "Exxon Mobil", "Energy"),
)

SCRIPT = """
CREATE TABLE traders AS SELECT user_id PRIMARY KEY, name, desk FROM file://{folder}/traders.csv;

CREATE TABLE symbols AS SELECT symbol PRIMARY KEY, company, sector FROM file://{folder}/symbols.csv;

CREATE TABLE limits (user_id STRING PRIMARY KEY, max_notional DECIMAL(18,2));

INSERT INTO limits VALUES {limits};

CREATE STREAM trades WITH ('source' = 'generator://trades', 'rows' = '{rows}', 'rows.per.second' = '{rate}',
  'fields' = 'trade_id:sequence, user_id:label(u,{traders}), symbol:choice({symbols}), quantity:int(1,400),
              price:decimal(20,500,2)');

CREATE TABLE enriched AS
  SELECT t.trade_id PRIMARY KEY, u.name, u.desk, t.symbol, s.sector, t.quantity, t.price,
    t.quantity * t.price AS notional
  FROM trades t JOIN traders u ON t.user_id = u.user_id LEFT JOIN symbols s ON t.symbol = s.symbol;

CREATE TABLE positions AS
  SELECT t.user_id, t.symbol, COUNT(*) AS trades, SUM(t.quantity) AS quantity, SUM(t.quantity * t.price) AS notional
  FROM trades t GROUP BY t.user_id, t.symbol;

CREATE TABLE exposure AS SELECT user_id, SUM(notional) AS notional FROM positions GROUP BY user_id;

CREATE TABLE breaches AS
  SELECT e.user_id PRIMARY KEY, e.notional,
    (SELECT l.max_notional FROM limits l WHERE l.user_id = e.user_id) AS max_notional
  FROM exposure e
  WHERE e.notional > (SELECT l.max_notional FROM limits l WHERE l.user_id = e.user_id);
"""


def run(*, once: bool = False, keep: bool = False, console: Console | None = None) -> int:
    """Play the demo; gives the exit code. `once` shows the final tables only, `keep` leaves the state directory."""
    screen = console or Console()
    folder = Path(tempfile.mkdtemp(prefix="velostream-demo-"))
    try:
        _write_files(folder)
        screen.print("starting the trading desk (Spark takes some seconds the first time) …")
        started_at = time.monotonic()
        _play(folder, screen, once=once)
        screen.print(f"{TRADES:,} trades in {time.monotonic() - started_at:.0f} s, Spark's start included")
        if keep:
            screen.print(f"state kept; look around with: velostream sql --state {folder / 'state'}", soft_wrap=True)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 0


def _play(folder: Path, screen: Console, *, once: bool) -> None:
    import velostream

    with velostream.connect(folder / "state") as connection:
        connection.execute_script(_script(folder))
        if once or not screen.is_terminal:
            _trade(connection, on_tick=lambda: None)
            screen.print(_view(connection))
            return
        with Live(_view(connection), console=screen, refresh_per_second=4) as live:
            _trade(connection, on_tick=lambda: live.update(_view(connection)))
            live.update(_view(connection))


def _trade(connection: Connection, *, on_tick: Callable[[], None]) -> None:
    """Return when all trades have gone through every table; raise what has failed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while connection.table("enriched").record_count() < TRADES:
        for name in connection.queries():
            connection.raise_failure(name)
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"the trades did not all arrive within {PATIENCE_SECONDS} s")
        on_tick()
        time.sleep(0.25)
    connection.drain_all(timeout=PATIENCE_SECONDS)


def _write_files(folder: Path) -> None:
    desks = ("Equities", "Macro", "Quant")
    lines = [f"u{number},{name},{desks[number % len(desks)]}" for number, name in enumerate(TRADERS)]
    (folder / "traders.csv").write_text("\n".join(["user_id,name,desk", *lines, ""]))
    lines = [",".join(symbol) for symbol in SYMBOLS]
    (folder / "symbols.csv").write_text("\n".join(["symbol,company,sector", *lines, ""]))


def _script(folder: Path) -> str:
    limits = ", ".join(f"('u{number}', {126_000_000 + 1_500_000 * number}.00)" for number in range(len(TRADERS)))
    return SCRIPT.format(
        folder=folder,
        limits=limits,
        rows=TRADES,
        rate=TRADES_PER_SECOND,
        traders=len(TRADERS),
        symbols="|".join(symbol for symbol, _, _ in SYMBOLS),
    )


def _view(connection: Connection) -> Group:
    """The three tables people came for, as they are now."""
    count = connection.table("enriched").record_count()
    latest = connection.execute("SELECT * FROM enriched ORDER BY trade_id DESC LIMIT 6")
    positions = connection.execute(
        "SELECT user_id, symbol, trades, quantity, notional FROM positions ORDER BY notional DESC LIMIT 6"
    )
    breaches = connection.execute("SELECT user_id, notional, max_notional FROM breaches ORDER BY notional DESC")
    return Group(
        _panel(f"enriched trades ({count:,})", latest.columns, latest.fetchall()),
        _panel("largest positions", positions.columns, positions.fetchall()),
        _panel("limit breaches", breaches.columns, breaches.fetchall()),
    )


def _panel(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Panel:
    table = Table(box=None, expand=True)
    for column in columns:
        table.add_column(
            column, justify="left" if column in ("name", "desk", "symbol", "sector", "user_id") else "right"
        )
    for row in rows:
        table.add_row(
            *("NULL" if value is None else f"{value:,}" if not isinstance(value, str) else value for value in row)
        )
    return Panel(table, title=title, title_align="left")
