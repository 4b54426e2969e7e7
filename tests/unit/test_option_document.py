"""docs/options.md lists what every kind of source and sink says of itself. Run this file to write it anew."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from velostream import plugins
from velostream.engine.options import QUERY_OPTIONS
from velostream.engine.sourcing import INTERNAL
from velostream.engine.table_sink import KEY, table_sink
from velostream.plugins import Group

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "options.md"
HEAD = """# Options of queries, sources and sinks

Written by `tests/unit/test_option_document.py` from what the classes declare. What the options do together is in
[sources.md](sources.md) and [queries.md](queries.md); those of tables are in [tables.md](tables.md#the-kinds).
"""


def kinds(group) -> list[type]:
    """The kinds of this package; whatever else is installed doesn't belong in its documents."""
    return list(dict.fromkeys(plugins.load(group, name) for name in sorted(plugins._BUILT_IN[group])))


def introduction(kind) -> str:
    """The first paragraph of what the class says, else its module."""
    text = inspect.getdoc(kind) or inspect.getdoc(sys.modules[kind.__module__]) or ""
    return " ".join(text.split("\n\n")[0].split())


def option_table(options) -> list[str]:
    rows = []
    for option in sorted(options, key=lambda one: one.name):
        if option.name in INTERNAL:
            continue
        meaning = f"{option.summary}: {', '.join(option.choices)}" if option.choices else option.summary
        rows.append(f"| `{option.name}` | {option.default or ''} | {meaning.replace('|', chr(92) + '|')} |")
    return ["| option | default | meaning |", "|---|---|---|", *rows, ""] if rows else []


def sink_table() -> list[str]:
    lines = ["| sink | guarantee | `EMIT CHANGES` of a view |", "|---|---|---|"]
    for kind in kinds(Group.SINKS):
        claims = kind.capabilities
        lines.append(f"| `{kind.kind}` | {claims.guarantee} | {'✓' if claims.changes else ''} |")
    for name in sorted(plugins._BUILT_IN[Group.TABLES]):
        kind = None if name in plugins._BUILT_IN[Group.SINKS] else table_sink(name)
        if kind is not None:
            lines.append(
                f"| `{kind.kind}`: a [table](tables.md#{name.lower()}), with `{KEY.name}` | exactly-once | ✓ |"
            )
    return [*lines, ""]


def document() -> str:
    lines = [HEAD, "## Queries", "", *option_table(QUERY_OPTIONS), "## Sources", ""]
    for kind in kinds(Group.SOURCES):
        lines += [f"### Source {kind.kind}", "", introduction(kind), "", *option_table(kind.options)]
    lines += ["## Sinks", "", *sink_table()]
    for kind in kinds(Group.SINKS):
        lines += [f"### Sink {kind.kind}", "", introduction(kind), "", *option_table(kind.options)]
    return "\n".join(lines)


def test_the_document_says_what_the_kinds_say():
    assert DOCUMENT.read_text() == document(), "run python tests/unit/test_option_document.py"


if __name__ == "__main__":
    DOCUMENT.write_text(document())
