from decimal import Decimal

import pyarrow as pa

from velostream.model.change import Epoch
from velostream.model.schema import Schema
from velostream.sinks.base import SinkSpec
from velostream.sinks.console import ConsoleSink

ROWS = pa.table(
    {
        "name": ["ann", None, "two\nlines"],
        "price": pa.array([Decimal("1.50"), Decimal("100.00"), None]),
        "tags": [["a"], None, []],
    }
)


def printed(capsys, table, **options):
    sink = ConsoleSink(SinkSpec("console", "console://", options))
    sink.open(Schema.from_arrow(table.schema))
    sink.write(table, Epoch("q", 1))
    return capsys.readouterr().out


def test_rows_are_shown_as_a_table(capsys):
    assert printed(capsys, ROWS) == (
        "name       |  price | tags\n"
        "-----------+--------+------\n"
        'ann        |   1.50 | ["a"]\n'
        "NULL       | 100.00 | NULL\n"
        "two\\nlines |   NULL | []\n\n"
    )


def test_long_batches_are_cut(capsys):
    shown = printed(capsys, pa.table({"n": list(range(30))}), rows="2")
    assert shown == "n\n-\n0\n1\n… and 28 more rows\n\n"


def test_json(capsys):
    assert printed(capsys, ROWS.slice(0, 1), format="json") == '{"name":"ann","price":1.50,"tags":["a"]}\n\n'


def test_an_empty_batch_shows_nothing(capsys):
    assert printed(capsys, ROWS.slice(0, 0)) == ""
