"""What the documents name exists, and the SQL in them is SQL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from velostream.sql.parse import parse_script

ROOT = Path(__file__).parent.parent.parent
PATHS = (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in PATHS if not path.name.startswith("."))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_named_files_exist(document):
    text = (ROOT / document).read_text().partition("<!-- modules -->")[0]
    named = set(re.findall(r"`([a-z_]+(?:/[a-z_]+)*\.py)`", text))
    files = {str(path.relative_to(ROOT)) for path in (*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"))}
    assert [name for name in sorted(named) if not any(f"/{file}".endswith(f"/{name}") for file in files)] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    path = ROOT / document
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", path.read_text()):
        if target.startswith("http"):
            continue
        linked = path.parent / target if target else path
        assert linked.exists(), target
        if anchor:
            assert anchor in {_anchor(heading) for heading in re.findall(r"^#+ (.*)", linked.read_text(), re.MULTILINE)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_sql_can_be_parsed(document):
    for block in re.findall(r"```sql\n(.*?)```", (ROOT / document).read_text(), re.DOTALL):
        parse_script(block)


def _anchor(heading: str) -> str:
    """The name by which a heading is linked to."""
    return re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
