"""The README's session gives the rows it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import velostream
from velostream.cli.output import text_of
from velostream.cli.splitting import split_script

ROOT = Path(__file__).parent.parent.parent


def session() -> str:
    blocks = re.findall(r"^```sql\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 1
    return blocks[0]


@pytest.mark.usefixtures("spark_kept")
def test_the_session_of_the_readme(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = session()
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


def test_the_readme_fits_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 64
