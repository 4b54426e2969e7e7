"""Golden pairs: each `.sql` file here holds statements, each followed by what becomes of it.

`-->` is the text it renders to, `--$` the Spark SQL of its query, `--!` the place and message of its error. Blocks are
separated by empty lines; a comment line before a statement says what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from velostream.errors import SqlError
from velostream.sql import parse_statement, render

_FOLDER = Path(__file__).parent
_MARK = re.compile(r"--(?P<kind>[>$!]) ?(?P<text>.*)")


@dataclass(frozen=True)
class Block:
    """One statement of a file and what is expected of it."""

    file: str
    line: int
    statement: str
    rendered: str | None
    spark: str | None
    error: str | None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def blocks() -> Iterator[Block]:
    for path in sorted(_FOLDER.glob("*.sql")):
        line = 1
        for text in re.split(r"\n[ ]*\n", path.read_text()):
            marks = {match["kind"]: match["text"] for match in map(_MARK.fullmatch, text.splitlines()) if match}
            statement = "\n".join(row for row in text.splitlines() if not _MARK.fullmatch(row)).strip("\n")
            if marks:
                yield Block(path.name, line, statement, marks.get(">"), marks.get("$"), marks.get("!"))
            line += text.count("\n") + 2


@pytest.mark.parametrize("block", list(blocks()), ids=str)
def test_block(block: Block) -> None:
    if block.error is not None:
        with pytest.raises(SqlError) as caught:
            parse_statement(block.statement)
        assert f"{caught.value.line}:{caught.value.column} {caught.value.message}" == block.error
        return
    statement = parse_statement(block.statement)
    rendered = render(statement)
    if block.rendered is not None:
        assert rendered == block.rendered
    if block.spark is not None:
        assert statement.query.tree.sql(dialect="spark") == block.spark
    assert parse_statement(rendered) == statement


def test_every_file_has_blocks() -> None:
    files = {path.name for path in _FOLDER.glob("*.sql")}
    assert {block.file for block in blocks()} == files
