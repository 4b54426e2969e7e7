"""The README's session gives the rows it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import velostream
from velostream.cli.output import text_of
from velostream.cli.splitting import split_script

ROOT = Path(__file__).parent.parent.parent


def block(language: str) -> str:
    """The only block of code in a language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    return blocks[0]


@pytest.mark.usefixtures("spark_kept")
def test_the_session_of_the_readme(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = block("sql")
    expected = re.findall(r"^-- (.+)$", text, re.MULTILINE)
    shown = []
    with velostream.connect() as connection:
        for statement in split_script(text):
            if statement.strip().startswith("SELECT"):
                connection.drain_all(timeout=60)
            result = connection.execute(statement)
            if result.message is None:
                shown += [" | ".join(map(text_of, row)) for row in result]
    assert shown == expected
    assert len(expected) == 2


@pytest.mark.usefixtures("spark_kept")
def test_the_python_of_the_readme(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app.sql").write_text(block("sql").replace("./examples", str(ROOT / "examples")))
    exec(compile(block("python"), "README.md", "exec"), {})
    assert capsys.readouterr().out == "3.70\n"


def test_the_readme_fits_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 64
