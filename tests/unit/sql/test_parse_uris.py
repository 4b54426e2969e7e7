"""Bare URIs in text: where they begin and end, and what hides them."""

from __future__ import annotations

import pytest

from velostream.errors import ParseError
from velostream.sql import uri_parameters
from velostream.sql.statements import OptionValue
from velostream.sql.uris import is_bare_uri, mask_uris


def found(text: str) -> list[str]:
    return [uri.text for uri in mask_uris(text).uris.values()]


@pytest.mark.parametrize(
    ("text", "uris"),
    [
        ("FROM file:///d/*.csv WHERE", ["file:///d/*.csv"]),
        ("FROM memory://a,memory://b", ["memory://a", "memory://b"]),
        ("FROM memory://a, b", ["memory://a"]),
        ("(SELECT * FROM memory://a)", ["memory://a"]),
        ("FROM memory://a; SELECT", ["memory://a"]),
        ("FROM kafka://h1:9092,h2:9092/t, x", ["kafka://h1:9092,h2:9092/t"]),
        ("INTO kafka://t(a, b)", ["kafka://t"]),
        ("FROM s3://b/{a,b}/x-?.csv,t", ["s3://b/{a,b}/x-?.csv"]),
        ("FROM file:///x?a=1&b=2)", ["file:///x?a=1&b=2"]),
        ("FROM file:///x?delimiter=;&y=1;", ["file:///x?delimiter=;&y=1"]),
        ("FROM file:///x?delimiter=;;", ["file:///x?delimiter=;"]),
        (
            'FROM db://h?query="SELECT a FROM b; -- \'x\' ""y"" ) ?" z',
            ['db://h?query="SELECT a FROM b; -- \'x\' ""y"" ) ?"'],
        ),
        ("FROM db://h?query='a b' z", ["db://h?query='a b'"]),
        ("FROM db://h?columns=a,b&x=f(y) z", ["db://h?columns=a,b&x=f(y)"]),
        ("FROM file:///d/${VAR:-a b}/x y", ["file:///d/${VAR:-a b}/x"]),
        ("FROM db://u:p@h:5432/d?ssl=${S:?set S}", ["db://u:p@h:5432/d?ssl=${S:?set S}"]),
        ("FROM db://[::1]:5432/d x", ["db://[::1]:5432/d"]),
        ("FROM ./a/*.csv b", ["./a/*.csv"]),
        ("FROM ../a.csv", ["../a.csv"]),
        ("FROM /a/b/*.json x", ["/a/b/*.json"]),
        ("FROM -- here\n /* or */ ~/x.csv", ["~/x.csv"]),
        ("FROM data/2020/*.csv.gz d", ["data/2020/*.csv.gz"]),
        ("join a/b.parquet?x=1 USING", ["a/b.parquet?x=1"]),
    ],
)
def test_found(text, uris):
    assert found(text) == uris


@pytest.mark.parametrize(
    "text",
    [
        "'memory://a'",
        '"memory://a"',
        "`memory://a`",
        "-- memory://a",
        "/* memory://a /* memory://b */ */",
        "r'memory://a'",
        "'it''s memory://a'",
        "'\\' memory://a'",
        "FROM t /* x */ WHERE",
        "FROM a/b WHERE",
        "SELECT a/b.csv",
        "SELECT ./a",
        "FROM /* ./a.csv */ t",
        "a : // b",
    ],
)
def test_not_found(text):
    assert found(text) == []


def test_masking_keeps_every_position():
    text = 'SELECT a\nFROM file:///d/*.csv?q="x\ny"\r\n, memory://b WHERE c'
    masked = mask_uris(text)
    assert len(masked.masked) == len(text)
    assert masked.masked.index("WHERE") == text.index("WHERE")
    assert masked.positions.place(text.index("memory")).line == 4
    assert "/*" not in masked.masked


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("SELECT\n 'a", 2, 2),
        ("'a''", 1, 1),
        ("'\\'", 1, 1),
        ('"a""', 1, 1),
        ("`a", 1, 1),
        ("a /* b", 1, 3),
        ("/* /* */", 1, 1),
        ("a \x00 b", 1, 3),
        ("a \x1b", 1, 3),
        ("a{b}", 1, 2),
        ("→", 1, 1),
        ("a\u200b", 1, 2),
    ],
)
def test_what_can_not_be_placed_is_refused(text, line, column):
    with pytest.raises(ParseError) as caught:
        mask_uris(text)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    ("uri", "bare"),
    [
        ("memory://a", True),
        ('db://h?q="a b"', True),
        ("file:///a b", False),
        ("file:///a;b", False),
        ("file:///a'b", False),
        ("memory://a,b", False),
        ("x", False),
        ("", False),
        ("file:///a --", False),
    ],
)
def test_whether_a_uri_can_stand_bare(uri, bare):
    assert is_bare_uri(uri) is bare


@pytest.mark.parametrize(
    ("uri", "address", "options"),
    [
        ("memory://a", "memory://a", {}),
        ("file:///d/x-?.csv", "file:///d/x-?.csv", {}),
        (
            "file:///x?Format=csv&delimiter=;&header=false",
            "file:///x",
            {"format": "csv", "delimiter": ";", "header": "false"},
        ),
        ('db://h?query="SELECT ""a"" & ?"&x=1', "db://h", {"query": 'SELECT "a" & ?', "x": "1"}),
        ("db://h?delimiter=%3B&p=a+b&empty=", "db://h", {"delimiter": ";", "p": "a+b", "empty": ""}),
        ("db://h?password=${SECRET}", "db://h", {"password": "${SECRET}"}),
    ],
)
def test_a_uri_taken_apart(uri, address, options):
    expected = tuple(OptionValue(name, value) for name, value in options.items())
    assert uri_parameters(uri) == (address, expected)
