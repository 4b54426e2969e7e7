"""Reading and playing `.view` scripts, on a connection that answers from a list."""

import datetime as dt
from decimal import Decimal

import pytest

from velostream.errors import NotFoundError, ParseError
from velostream.testing.script import (
    Await,
    FeedRows,
    FileLines,
    Player,
    Refused,
    Script,
    ScriptFailure,
    Statement,
    is_ordered,
    value_text,
)


class Answers:
    """Stands for a connection: every statement gives the next answer, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def execute(self, sql):
        self.asked.append(sql)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        self.rows = answer
        return self

    def execute_script(self, sql):
        return [self.execute(sql)]

    def fetchall(self):
        return self.rows


def player(connection, script, folder):
    return Player(connection, script, directory=folder, deadline=0.2)


def test_steps_of_every_kind():
    script = Script.parse(
        "# a comment\n"
        "> CREATE TABLE t AS\n"
        "  SELECT a FROM memory://f;\n"
        "$ append f\n"
        '{"a": 1.10}\n'
        "$ write d/x.csv\n"
        "a,b\n"
        "1,2\n"
        "\n"
        "$ wait t\n"
        "> SELECT * FROM t;\n"
        "1.10   | NULL\n"
        "> SELECT * FROM t WHERE false\n"
        "! SELECT b FROM t;\n"
        'column "b" does not exist\n'
    )
    assert script.steps == (
        Statement(2, "CREATE TABLE t AS\n  SELECT a FROM memory://f", None),
        FeedRows(4, "f", ({"a": Decimal("1.10")},)),
        FileLines(6, "d/x.csv", "a,b\n1,2\n"),
        Await(10, "t", drained=False),
        Statement(11, "SELECT * FROM t", ("1.10 | NULL",)),
        Statement(13, "SELECT * FROM t WHERE false", ()),
        Refused(14, "SELECT b FROM t", 'column "b" does not exist'),
    )
    assert script.last_change == 2


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("1 | 2\n", 1),
        ("# fine\n$ fly away\n", 2),
        ("$ append\n", 1),
        ("$ append f\n{no json}\n", 2),
        ("$ append f\n[1]\n", 2),
        ("! SELECT 1\n> SELECT 2\n", 1),
    ],
)
def test_a_text_that_is_no_script_is_refused_with_its_line(text, line):
    with pytest.raises(ParseError) as refused:
        Script.parse(text)
    assert refused.value.line == line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "true"),
        (Decimal("1.50"), "1.50"),
        (Decimal("1E+2"), "100"),
        ("plain text", "plain text"),
        ("", '""'),
        ("NULL", '"NULL"'),
        ("a | b", '"a | b"'),
        (dt.datetime(2024, 5, 1, 10, 0), "2024-05-01 10:00:00"),  # noqa: DTZ001 - as Python gets them
        (dt.date(2024, 5, 1), "2024-05-01"),
        ([1, Decimal("2.50"), None], '[1, "2.50", null]'),
        ({"a": {"b": 1}}, '{"a": {"b": 1}}'),
    ],
)
def test_values_as_text(value, text):
    assert value_text(value) == text


@pytest.mark.parametrize(
    ("sql", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("SELECT a FROM t order\nby a LIMIT 3", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT (1)) x", False),
        ("SELECT ' ORDER BY ' FROM t", False),
    ],
)
def test_whether_a_query_is_ordered(sql, ordered):
    assert is_ordered(sql) is ordered


def test_a_query_is_asked_again_until_it_matches(tmp_path):
    script = Script.parse("> SELECT * FROM t\n1 | x\n2 | y\n")
    connection = Answers(NotFoundError.of("table", "t"), [], [(2, "y"), (1, "x")])
    player(connection, script, tmp_path).play(script.steps[0])
    assert len(connection.asked) == 3


def test_rows_in_another_order_do_not_match_an_ordered_query(tmp_path):
    script = Script.parse("> SELECT * FROM t ORDER BY 1\n1\n2\n")
    with pytest.raises(ScriptFailure):
        player(Answers([(2,), (1,)]), script, tmp_path).play(script.steps[0])


def test_a_bag_counts_its_duplicates(tmp_path):
    script = Script.parse("> SELECT * FROM t\n1\n1\n")
    with pytest.raises(ScriptFailure):
        player(Answers([(1,)]), script, tmp_path).play(script.steps[0])


def test_a_failure_shows_place_statement_and_difference(tmp_path):
    script = Script.parse("# first\n> SELECT * FROM t\n1 | x\n2 | y\n", name="sums")
    with pytest.raises(ScriptFailure) as failed:
        player(Answers([(1, "x"), (3, "z")]), script, tmp_path).play(script.steps[0])
    text = str(failed.value)
    assert "sums, line 2" in text
    assert "> SELECT * FROM t" in text
    assert "-2 | y" in text
    assert "+3 | z" in text


def test_an_expected_error_must_come_and_begin_as_written(tmp_path):
    script = Script.parse('! SELECT 1\ntable "t" does not exist\n')
    player(Answers([], NotFoundError.of("table", "t")), script, tmp_path).play(script.steps[0])
    for answer in ([(1,)], NotFoundError.of("stream", "t")):
        with pytest.raises(ScriptFailure, match="expected the error"):
            player(Answers(answer), script, tmp_path).play(script.steps[0])


def test_files_are_written_below_the_folder_and_named_in_the_sql(tmp_path):
    script = Script.parse("$ write d/x.csv\na\n1\n$ append-file d/x.csv\n2\n> SELECT * FROM file://${DIR}/d/x.csv\n")
    connection = Answers([])
    for step in script.steps:
        player(connection, script, tmp_path).play(step)
    assert (tmp_path / "d/x.csv").read_text() == "a\n1\n2\n"
    assert connection.asked == [f"SELECT * FROM file://{tmp_path}/d/x.csv"]
