"""The real-time P&L statement: six subqueries over live tables, wherever the rows come from, equal to a batch (B35)."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from decimal import Decimal
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.csv
import pytest

import velostream
from velostream.testing.kafka_feed import send
from velostream.testing.services.kafka import KafkaService
from velostream.testing.services.postgres import PostgresService

TABLES = """
-- User positions from Kafka (real-time trading data)
CREATE TABLE user_positions AS
SELECT
    user_id,
    symbol,
    SUM(quantity) as position_size,
    SUM(quantity * price) as position_value
FROM {trades}
GROUP BY user_id, symbol;

-- Reference data from CSV file (updated daily)
CREATE TABLE symbol_metadata AS
SELECT
    symbol,
    sector,
    market_cap,
    risk_rating
FROM {symbols};

-- User profiles from database (CRM system)
CREATE TABLE user_profiles AS
SELECT
    user_id,
    account_type,
    risk_tolerance,
    max_position_size
FROM {accounts};

CREATE TABLE market_benchmarks AS
SELECT sector, avg_position
FROM {benchmarks};
"""

STATEMENT = """
-- Real-time P&L calculation with mixed datasource joins and Table subqueries
SELECT
    t.trade_id,
    t.user_id,
    t.symbol,
    t.quantity,
    t.price,
    -- Scalar subquery for position size
    (SELECT position_size FROM user_positions p WHERE p.user_id = t.user_id AND p.symbol = t.symbol) as current_position,
    -- Scalar subquery for risk rating
    (SELECT risk_rating FROM symbol_metadata s WHERE s.symbol = t.symbol) as risk_rating,
    -- EXISTS subquery for premium users
    CASE
        WHEN EXISTS (SELECT 1 FROM user_profiles u WHERE u.user_id = t.user_id AND u.account_type = 'premium')
        THEN t.price * t.quantity * 0.95  -- Premium discount
        ELSE t.price * t.quantity
    END as adjusted_trade_value,
    -- IN subquery for high-risk symbols
    CASE
        WHEN t.symbol IN (SELECT symbol FROM symbol_metadata WHERE risk_rating >= 8)
        THEN 'HIGH_RISK'
        ELSE 'NORMAL'
    END as risk_category
FROM {live} t
-- Filter using ANY subquery
WHERE t.quantity > ANY (
    SELECT avg_position
    FROM market_benchmarks m, symbol_metadata s
    WHERE m.sector = s.sector AND s.symbol = t.symbol
)
-- Filter premium users with EXISTS
AND EXISTS (SELECT 1 FROM user_profiles u WHERE u.user_id = t.user_id AND u.account_type IN ('premium', 'enterprise'));
"""  # noqa: E501 - the statement as it was given

ANY = """t.quantity > ANY (
    SELECT avg_position
    FROM market_benchmarks m, symbol_metadata s
    WHERE m.sector = s.sector AND s.symbol = t.symbol
)"""
WITHOUT_ANY = """EXISTS (
    SELECT 1
    FROM market_benchmarks m, symbol_metadata s
    WHERE m.sector = s.sector AND s.symbol = t.symbol AND t.quantity > avg_position
)"""
"""The same where only the truth counts, in words that Spark's grammar has."""

PRICE = pa.decimal128(18, 2)
USERS, SYMBOLS, SECTORS = 9, 7, 3


def rows_of(live: int) -> dict[str, pa.Table]:
    """What each source holds. Some users have no profile or two, some symbols no data, and everything may be NULL."""
    trades = range(300)
    everything = range(live)
    return {
        "trades": pa.table(
            {
                "user_id": [number % USERS for number in trades],
                "symbol": [f"S{number * number % SYMBOLS}" for number in trades],
                "quantity": [number % 50 - 10 for number in trades],
                "price": pa.array([Decimal(number * 37 % 1000).scaleb(-2) for number in trades], PRICE),
            }
        ),
        "symbols": pa.table(
            {
                "symbol": [f"S{number}" for number in range(SYMBOLS - 1)],
                "sector": [None if number == 2 else f"sector {number % SECTORS}" for number in range(SYMBOLS - 1)],
                "market_cap": [number * 1_000_000 for number in range(SYMBOLS - 1)],
                "risk_rating": [8, 9, 8, None, 10, 1],
            }
        ),
        "accounts": pa.table(
            {
                "user_id": [0, 1, 2, 3, 4, 5, 5, 6],
                "account_type": ["premium", "basic", "enterprise", "premium", None, "premium", "enterprise", "basic"],
                "risk_tolerance": ["low", "high"] * 4,
                "max_position_size": list(range(8)),
            }
        ),
        "benchmarks": pa.table(
            {
                "sector": ["sector 0", "sector 0", "sector 1", "sector 2", "sector 2"],
                "avg_position": pa.array([Decimal("10.50"), Decimal("40.00"), None, Decimal("20.25"), None], PRICE),
            }
        ),
        "live": pa.table(
            {
                "trade_id": list(everything),
                "user_id": [None if number % 11 == 0 else number % USERS for number in everything],
                "symbol": [None if number % 13 == 0 else f"S{number % SYMBOLS}" for number in everything],
                "quantity": [None if number % 17 == 0 else number % 60 for number in everything],
                "price": pa.array([Decimal(number * 53 % 10_000).scaleb(-2) for number in everything], PRICE),
            }
        ),
    }


@pytest.fixture
def connection():
    with velostream.connect() as connection:
        yield connection


def batch_answer(connection, rows):
    """What Spark answers for the same statements over the same rows."""
    session = connection._context.spark.session()
    for name, table in rows.items():
        session.createDataFrame(table).createOrReplaceTempView(name)
    for name, query in re.findall(r"CREATE TABLE (\w+) AS\n([^;]*);", TABLES.format_map({name: name for name in rows})):
        session.sql(query).createOrReplaceTempView(name)
    assert ANY in STATEMENT
    batch = STATEMENT.replace(ANY, WITHOUT_ANY).format(live="live").strip().removesuffix(";")
    return Counter(map(tuple, session.sql(batch).collect()))


def test_over_memory(connection):
    rows = rows_of(live=600)
    addresses = {name: f"memory://{name}" for name in rows}
    for name, table in rows.items():
        connection.memory(name).append(table.slice(0, 300))
    connection.execute_script(TABLES.format_map(addresses))
    connection.execute(f"CREATE TABLE profit_and_loss AS {STATEMENT.format_map(addresses)}")
    pushed = connection.execute(STATEMENT.format_map(addresses))
    connection.memory("live").append(rows["live"].slice(300))
    connection.drain("profit_and_loss", timeout=120)
    right = batch_answer(connection, rows)
    found = connection.execute("SELECT * FROM profit_and_loss").fetchall()
    assert Counter(found) == right
    assert {row[-1] for row in found} == {"HIGH_RISK", "NORMAL"}
    assert Counter(itertools.islice(pushed, len(found))) == right
    pushed.close()


def test_over_files(connection, tmp_path):
    rows = rows_of(live=600)
    for name, table in rows.items():
        pa.csv.write_csv(table, tmp_path / f"{name}.csv")
    addresses = {name: f"file://{tmp_path}/{name}.csv" for name in rows}
    connection.execute_script(TABLES.format_map(addresses))
    found = connection.execute(STATEMENT.format_map(addresses)).fetchall()
    assert found
    assert Counter(found) == batch_answer(connection, rows)


@pytest.fixture
def broker(monkeypatch):
    with KafkaService() as broker:
        monkeypatch.setenv("VELOSTREAM_KAFKA_BROKERS", urlsplit(broker.url).netloc)
        yield broker


@pytest.fixture
def accounts():
    """A database by its name, and the options that say where it is."""
    server = PostgresService.shared()
    place = urlsplit(server.url)
    with psycopg.connect(server.url, autocommit=True) as session:
        session.execute("CREATE DATABASE crm_db")
    yield "crm_db", f"host = '{place.hostname}', port = {place.port}, username = '{place.username}'"
    with psycopg.connect(server.url, autocommit=True) as session:
        session.execute("DROP DATABASE crm_db WITH (FORCE)")


def messages(rows):
    """Rows as JSON; a decimal as the number it is."""
    for row in rows.to_pylist():
        price = row.pop("price")
        yield None, f'{json.dumps(row)[:-1]}, "price": {price}}}'


def test_over_the_sources_it_was_written_for(connection, broker, accounts, tmp_path):
    rows = rows_of(live=600)
    for topic, table in {"trades-topic": rows["trades"], "live-trades-stream": rows["live"].slice(0, 300)}.items():
        broker.create_topic(topic, partitions=2)
        send(f"{broker.url}/{topic}", messages(table))
    for name in ("symbols", "benchmarks"):
        pa.csv.write_csv(rows[name], tmp_path / f"{name}.csv")
    database, place = accounts
    url = urlsplit(PostgresService.shared().url)._replace(path=f"/{database}").geturl()
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(
            "CREATE TABLE user_accounts (user_id int, account_type text, risk_tolerance text, max_position_size int)"
        )
        with session.cursor().copy("COPY user_accounts FROM STDIN") as copy:
            for row in zip(*rows["accounts"].to_pydict().values(), strict=True):
                copy.write_row(row)
    addresses = {
        "trades": "kafka://trades-topic",
        "symbols": f"file://{tmp_path}/symbols.csv",
        "accounts": f"postgres://{database}/user_accounts WITH ({place})",
        "benchmarks": f"file://{tmp_path}/benchmarks.csv",
        "live": "kafka://live-trades-stream",
    }
    connection.execute_script(TABLES.format_map(addresses))
    connection.drain("user_positions", timeout=120)
    connection.execute(f"CREATE TABLE profit_and_loss AS {STATEMENT.format_map(addresses)}")
    send(f"{broker.url}/live-trades-stream", messages(rows["live"].slice(300)))
    connection.drain("profit_and_loss", timeout=120)
    found = connection.execute("SELECT * FROM profit_and_loss").fetchall()
    assert found
    assert Counter(found) == batch_answer(connection, rows)
