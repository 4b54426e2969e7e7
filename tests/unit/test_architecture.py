"""ARCHITECTURE.md names every module with the first sentence of its docstring. Run this file to write them anew."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "velostream"
DOCUMENT = ROOT / "ARCHITECTURE.md"
BEGIN, END = "<!-- modules -->\n", "<!-- end of modules -->\n"


def sentence(module: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(module.read_text())) or ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph, maxsplit=1)[0]


def rooms() -> dict[str, list[Path]]:
    """Modules by folder, the package itself first; an `__init__` that only re-exports needs no sentence."""
    found: dict[str, list[Path]] = {}
    for module in sorted(PACKAGE.rglob("*.py"), key=lambda path: (str(path.parent), path.name)):
        if module.name != "__init__.py" or module.parent == PACKAGE:
            found.setdefault(str(module.parent.relative_to(PACKAGE.parent)), []).append(module)
    return found


def section() -> str:
    lines = []
    for room, modules in rooms().items():
        lines += [f"### {room}", "", "| module | |", "|---|---|"]
        lines += [f"| `{module.name}` | {sentence(module).replace('|', chr(92) + '|')} |" for module in modules]
        lines.append("")
    return "\n".join(lines)


def test_every_module_says_what_it_is():
    without = [str(module) for modules in rooms().values() for module in modules if not sentence(module)]
    assert without == []


def test_the_document_names_every_module_as_it_names_itself():
    written = DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]
    assert written == section(), "run python tests/unit/test_architecture.py"


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + section() + END + rest.partition(END)[2])
