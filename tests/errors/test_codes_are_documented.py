"""docs/errors.md has an entry for every error code the package can raise, and for no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def codes_in(source: str) -> set[str]:
    """Codes written in a module: `default_code = "…"` of a class, `code = "…"` and `code="…"` of a call.

    An f-string stands for a family of codes, written with `*` for what is filled in. The planner's `_warn` puts
    `warning-` in front of its codes.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign):
            for target, value in _assigned(node):
                if isinstance(target, ast.Name) and target.id in ("default_code", "code"):
                    found |= _texts(value)
        elif isinstance(node, ast.Call):
            prefix = "warning-" if isinstance(node.func, ast.Attribute) and node.func.attr == "_warn" else ""
            for keyword in node.keywords:
                if keyword.arg == "code":
                    found |= {prefix + text for text in _texts(keyword.value)}
    return found


def _assigned(node: ast.Assign) -> list[tuple[ast.expr, ast.expr]]:
    """Names and what they are given, one by one where several are given something."""
    (target,), value = node.targets[:1], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        return list(zip(target.elts, value.elts, strict=False))
    return [(target, value)]


def _texts(value: ast.expr) -> set[str]:
    match value:
        case ast.Constant(str() as text):
            return {text}
        case ast.JoinedStr(parts):
            return {"".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in parts)}
        case ast.IfExp():
            return _texts(value.body) | _texts(value.orelse)
        case _:
            return set()


def test_the_collector_finds_all_ways_to_name_a_code():
    source = """
class E:
    default_code = "a"
raise E(code="b")
raise E(code=f"c-{x}")
raise E(code=other.code)
raise E(code="d" if x else "e")
self._warn("text", code="f")
"""
    assert codes_in(source) == {"a", "b", "c-*", "d", "e", "warning-f"}


def test_every_code_has_an_entry():
    codes = set().union(*(codes_in(path.read_text()) for path in (ROOT / "src").rglob("*.py")))
    entries = re.findall(r"^### `([^`]+)`", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    documented = set(entries)
    assert len(documented) == len(entries), "codes with two entries"
    assert codes - documented == set(), "codes without an entry"
    assert documented - codes == set(), "entries without a code"


def test_every_entry_says_what_it_means_and_what_to_do():
    text = (ROOT / "docs" / "errors.md").read_text()
    for entry in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = entry.partition("\n")
        assert len(body.split("\n## ")[0].split()) >= 8, f"{heading} says too little"


def test_codes_are_kebab_case():
    for path in (ROOT / "src").rglob("*.py"):
        for code in codes_in(path.read_text()):
            assert re.fullmatch(r"[a-z]+(-([a-z]+|\*))*", code), f"{code} in {path}"
