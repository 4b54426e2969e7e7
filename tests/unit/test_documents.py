"""Files that the documents name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/life-of-a-row.md",
    "docs/sources.md",
    "docs/tables.md",
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_exist(document):
    text = (ROOT / document).read_text().partition("<!-- modules -->")[0]
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", text))
    files = {str(path.relative_to(ROOT)) for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"))}
    assert [name for name in sorted(named) if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/errors.md"])
def test_links_lead_somewhere(document):
    path = ROOT / document
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target
