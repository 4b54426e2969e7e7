from __future__ import annotations

import pytest

from velostream.cli.splitting import is_blank, is_complete, split_script
from velostream.errors import SqlError
from velostream.sql.parse import parse_statement


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1;",
        "SELECT 1; -- done;",
        "SELECT ';' FROM file:///d/*.csv;",
        "SELECT 'it''s';\n",
        "SELECT § ;",
    ],
)
def test_a_text_that_ends_with_a_semicolon_is_complete(text):
    assert is_complete(text)


@pytest.mark.parametrize(
    "text", ["", "SELECT 1", "SELECT 'a;", "SELECT 1 /* ;", "SELECT 1 -- ;", 'SELECT "a;', "SELECT `a;"]
)
def test_a_semicolon_in_a_string_name_or_comment_ends_nothing(text):
    assert not is_complete(text)


def test_statements_keep_their_places():
    first, second = split_script("SELECT 1 FROM t;\n  SELECT frm\nFROM u -- end;\n;")
    assert first == "SELECT 1 FROM t"
    assert second == "                \n  SELECT frm\nFROM u -- end;\n"
    with pytest.raises(SqlError) as raised:
        parse_statement(split_script("SELECT 1;\n\n  SELEC 2")[1])
    assert (raised.value.line, raised.value.column) == (3, 3)
    assert "SELEC 2" in str(raised.value)


def test_uris_are_not_cut():
    assert split_script("SELECT * FROM file:///d/*.csv; SELECT 2")[0] == "SELECT * FROM file:///d/*.csv"


def test_text_without_tokens_stays_whole_for_the_parser_to_refuse():
    assert split_script("SELECT 'open; SELECT 2") == ["SELECT 'open; SELECT 2"]


@pytest.mark.parametrize(("text", "blank"), [("", True), ("  \n -- note\n;", True), ("SELECT", False), ("'", False)])
def test_blank(text, blank):
    assert is_blank(text) is blank
