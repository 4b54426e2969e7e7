"""docs/tables.md tells of every kind what its class says. Run this file to write that part anew."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

from velostream import plugins
from velostream.tables.base import Table, TableCapabilities
from velostream.tables.cache import LAYER_OPTIONS

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "tables.md"
BEGIN, END = "<!-- kinds -->\n", "<!-- end of kinds -->\n"


def kinds() -> list[type[Table]]:
    """The kinds of this package; whatever else is installed doesn't belong in its documents."""
    built_in = sorted(plugins._BUILT_IN[plugins.Group.TABLES])
    return [plugins.load(plugins.Group.TABLES, name) for name in built_in]


def introduction(kind: type[Table]) -> str:
    """The first paragraph of what the kind's module says."""
    text = inspect.getdoc(sys.modules[kind.__module__]) or ""
    return " ".join(text.split("\n\n")[0].split())


def capability_table() -> list[str]:
    names = [capability.name for capability in fields(TableCapabilities)]
    lines = [f"| kind | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for kind in kinds():
        claims = ["✓" if getattr(kind.capabilities, name) else "" for name in names]
        lines.append(f"| `{kind.kind}` | {' | '.join(claims)} |")
    return lines


def option_table(options) -> list[str]:
    rows = []
    for option in options:
        meaning = f"{option.summary}: {', '.join(option.choices)}" if option.choices else option.summary
        rows.append(f"| `{option.name}` | {option.default or ''} | {meaning.replace('|', chr(92) + '|')} |")
    return ["| option | default | meaning |", "|---|---|---|", *rows]


def section() -> str:
    lines = [*capability_table(), ""]
    for kind in kinds():
        lines += [f"### {kind.kind}", "", introduction(kind), ""]
        lines += [*option_table(kind.options), ""] if kind.options else []
    lines += ["### A cache in front of any kind", "", *option_table(LAYER_OPTIONS), ""]
    return "\n".join(lines)


def test_the_document_says_what_the_kinds_say():
    written = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]
    assert written == section(), "run python tests/unit/test_table_document.py"


def test_every_capability_is_explained():
    explained = DOCUMENT.read_text().partition(BEGIN)[0]
    for capability in fields(TableCapabilities):
        assert re.search(rf"^\| `{capability.name}` \| .+ \|$", explained, re.MULTILINE), capability.name


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + section() + END + rest.partition(END)[2])
