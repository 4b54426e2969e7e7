"""Whatever the text: statements or a `SqlError`, in bounded time, and what was accepted can be written again."""

from __future__ import annotations

import random
import re
import string
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from velostream.errors import SqlError
from velostream.sql import parse_expression, parse_script, render
from velostream.sql.statements import Statement

_SECONDS_PER_STATEMENT = 5.0
_GOLDEN = Path(__file__).parents[2] / "sql"
_VALID = tuple(
    "\n".join(line for line in block.splitlines() if not line.startswith("--"))
    for path in sorted(_GOLDEN.glob("*.sql"))
    if path.name != "errors.sql"
    for block in re.split(r"\n[ ]*\n", path.read_text())
)
_WORDS = tuple(
    """
    SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT OFFSET JOIN LEFT RIGHT FULL OUTER INNER CROSS NATURAL ASOF ON USING AS
    WITH UNION ALL EXCEPT INTERSECT DISTINCT AND OR NOT IN EXISTS BETWEEN LIKE RLIKE IS NULL TRUE FALSE CASE WHEN THEN
    ELSE END CAST INTERVAL DATE TIMESTAMP ANY SOME OVER PARTITION ROWS RANGE PRECEDING FOLLOWING WINDOW TUMBLING SLIDING
    SESSION SIZE ADVANCE WITHIN EMIT CHANGES FINAL CREATE OR REPLACE TABLE STREAM INDEX IF PRIMARY KEY INT STRING
    DECIMAL ARRAY MAP STRUCT INSERT INTO VALUES UPDATE SET DELETE UPSERT MERGE MATCHED BEGIN COMMIT ROLLBACK DROP
    CASCADE TRUNCATE REFRESH EXPLAIN EXTENDED ANALYZE
    QUERY VALIDATE DESCRIBE SHOW TABLES STATUS DEAD LETTERS PAUSE
    RESUME
    STOP RESTART LATERAL VIEW PIVOT UNPIVOT TABLESAMPLE VERSION OF MATCH_CONDITION EXTRACT TRIM SUBSTRING FILTER QUALIFY
    ROLLUP CUBE GROUPING SETS RECURSIVE VALUES COLLATE ESCAPE SORT CLUSTER DISTRIBUTE TRANSFORM IGNORE NULLS
    a b t s x.y "q" `r` 'text' "" '' 1 2.5 5m 30s 1e3 0x1F :p ? * ** + - / % || -> => :: : ; , . ( ) [ ] < > = <> <=> !=
    |> memory://m file:///d/*.csv kafka_topic('x') ./p.csv db://h?q="a b" ${V} count(*) sum(a) f(x) a[0] a.*.b -- /* */
    """.split()  # noqa: SIM905
)
_ALPHABETS = (
    string.printable,
    string.ascii_letters + "    ''\"\"()[],.;:*/-+<>=",
    "".join(map(chr, range(0x250))),
    "'\"`\\/*-(){}[]$?:;,.\x00\n\r\t aä€漢🙂\u200b\u2028\ud800",
)


def characters(generator: random.Random) -> str:
    alphabet = generator.choice(_ALPHABETS)
    return "".join(generator.choices(alphabet, k=generator.randint(0, 60)))


def words(generator: random.Random) -> str:
    start = generator.choice(("", "SELECT ", "CREATE TABLE t AS SELECT ", "INSERT INTO t ", "SELECT * FROM t "))
    return start + " ".join(generator.choices(_WORDS, k=generator.randint(1, 18)))


def truncated(generator: random.Random) -> str:
    text = generator.choice(_VALID)
    begin, end = sorted((generator.randint(0, len(text)), generator.randint(0, len(text))))
    return text[:end] if generator.random() < 0.7 else text[begin:]


def mutated(generator: random.Random) -> str:
    text = generator.choice(_VALID)
    for _ in range(generator.randint(1, 3)):
        at = generator.randint(0, len(text))
        length = generator.randint(0, 8)
        piece = generator.choice((generator.choice(_WORDS), characters(generator)[:5], text[at : at + length] * 2, ""))
        text = text[:at] + generator.choice(("", " ")) + piece + text[at + generator.choice((0, length)) :]
    return text


def shuffled(generator: random.Random) -> str:
    tokens = re.findall(r"\w+|'[^']*'|\S", generator.choice(_VALID))
    for _ in range(generator.randint(1, 4)):
        if len(tokens) > 1:
            first, second = generator.randrange(len(tokens)), generator.randrange(len(tokens))
            tokens[first], tokens[second] = tokens[second], tokens[first]
    return " ".join(tokens)


@pytest.mark.parametrize(
    ("make", "number"),
    [(characters, 3_000), (words, 3_000), (truncated, 2_000), (mutated, 3_000), (shuffled, 2_000)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_garbage_gives_statements_or_an_sql_error(make: Callable[[random.Random], str], number: int):
    generator = random.Random(f"{make.__name__} 1")
    for _ in range(number):
        text = make(generator)
        started = time.monotonic()
        outcome = _outcome(text)
        if isinstance(outcome, SqlError):
            assert outcome.line >= 1, text
            assert outcome.column >= 1, text
            assert outcome.text == text
            assert outcome.caret() or not text.splitlines(), text
        else:
            assert all(render(statement) for statement in outcome), text
        assert time.monotonic() - started < _SECONDS_PER_STATEMENT, text


def _outcome(text: str) -> tuple[Statement, ...] | SqlError:
    try:
        return parse_script(text)
    except SqlError as error:
        return error


def test_garbage_is_no_expression_or_an_sql_error():
    generator = random.Random("expressions")
    for _ in range(2_000):
        text = generator.choice((characters, words))(generator)
        try:
            parse_expression(text)
        except SqlError:
            continue


_PIECES = (
    *(
        "a ",
        "a,",
        "(",
        "[",
        "'",
        '""',
        "''",
        "a.",
        "a+",
        "a/",
        "-",
        "/*",
        "/**/",
        "--\n",
        ";",
        "SELECT 1;",
        "memory://a ",
    ),
    *(
        "FROM a/",
        "FROM ./a,",
        "${",
        "{a",
        "?a=",
        ":a",
        "\\'",
        "NOT ",
        "CASE WHEN ",
        "1",
        "\n",
        " AND a",
        " JOIN b ON c",
    ),
    *("a[1]", " UNION SELECT 1", "::int", ".*", "*", "\x00", "é"),
)


@pytest.mark.parametrize("piece", _PIECES)
@pytest.mark.parametrize("start", ["SELECT ", "SELECT * FROM "])
def test_repeated_pieces_take_bounded_time(start: str, piece: str):
    _within_time(start + piece * (6_000 // len(piece)))


@pytest.mark.parametrize("piece", ["'", "''", "/*", "{a", "${", "a?b", "a,", "?a=b&", "`", "\n", "x"])
def test_long_texts_take_linear_time(piece: str):
    _within_time("SELECT * FROM kafka://" + piece * (100_000 // len(piece)))


def _within_time(text: str) -> None:
    started = time.process_time()
    outcome = _outcome(text)
    assert time.process_time() - started < _SECONDS_PER_STATEMENT
    assert isinstance(outcome, tuple) or len(outcome.message) < 200
