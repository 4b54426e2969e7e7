from __future__ import annotations

import csv
import io
import json
from datetime import date, datetime
from decimal import Decimal

import pytest

from velostream.cli.output import OutputFormat, json_of, text_of, write_rows

ROWS = [
    (1, Decimal("1.50"), "a", None),
    (20, Decimal("-0.50"), "", [Decimal("3.10"), None]),
    (300, Decimal("12345678901234567890123456789.123456789"), 'say "x", y', {"k": True}),
]
COLUMNS = ["id", "amount", "text", "more"]


def written(form: OutputFormat, columns=COLUMNS, rows=ROWS) -> str:
    stream = io.StringIO()
    assert write_rows(columns, iter(rows), form=form, stream=stream) == len(rows)
    return stream.getvalue()


def test_a_plain_table_lines_up_numbers_and_shows_null():
    lines = written(OutputFormat.TABLE, rows=ROWS[:2]).splitlines()
    assert lines == [
        "id | amount | text | more",
        "---+--------+------+------------",
        " 1 |   1.50 | a    | NULL",
        "20 |  -0.50 |      | [3.10,null]",
    ]


def test_a_table_without_rows_has_its_header():
    assert written(OutputFormat.TABLE, rows=[]).splitlines() == [
        "id | amount | text | more",
        "---+--------+------+-----",
    ]


def test_csv_tells_null_from_the_empty_string():
    text = written(OutputFormat.CSV)
    assert text.splitlines()[1:3] == ["1,1.50,a,", '20,-0.50,"","[3.10,null]"']
    assert next(csv.DictReader(io.StringIO(text.split("\n", 3)[0] + "\n" + text.split("\n", 3)[3]))) == {
        "id": "300",
        "amount": "12345678901234567890123456789.123456789",
        "text": 'say "x", y',
        "more": '{"k":true}',
    }


def test_json_lines_carry_decimals_as_exact_numbers():
    lines = written(OutputFormat.JSON).splitlines()
    assert lines[0] == '{"id":1,"amount":1.50,"text":"a","more":null}'
    assert '"amount":12345678901234567890123456789.123456789' in lines[2]
    assert json.loads(lines[2], parse_float=Decimal)["amount"] == ROWS[2][1]


def test_json_keeps_both_of_two_columns_of_one_name():
    assert written(OutputFormat.JSON, columns=["a", "a"], rows=[(1, 2)]) == '{"a":1,"a":2}\n'


@pytest.mark.parametrize(
    ("value", "text", "in_json"),
    [
        (None, "NULL", "null"),
        (True, "true", "true"),
        (Decimal("1E+3"), "1000", "1000"),
        (0.1, "0.1", "0.1"),
        (float("nan"), "NaN", '"NaN"'),
        (float("-inf"), "-Infinity", '"-Infinity"'),
        (2**70, str(2**70), str(2**70)),
        (b"\x00\xff", "00ff", '"AP8="'),
        (date(2024, 2, 29), "2024-02-29", '"2024-02-29"'),
        (datetime(2024, 2, 29, 12, 0, 0, 5), "2024-02-29 12:00:00.000005", '"2024-02-29T12:00:00.000005"'),  # noqa: DTZ001
        ({1: [None]}, '{"1":[null]}', '{"1":[null]}'),
    ],
)
def test_values(value, text, in_json):
    assert text_of(value) == text
    assert json_of(value) == in_json


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table_with_all_values():
    terminal = _Terminal()
    write_rows(COLUMNS, iter(ROWS[:2]), form=OutputFormat.TABLE, stream=terminal)
    shown = terminal.getvalue()
    assert "1.50" in shown
    assert "NULL" in shown
    assert "[3.10,null]" in shown
