"""The stranger's package, installed for these tests."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from velostream import plugins

STRANGER = Path(__file__).parent / "stranger"


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory):
    """What `pip install` would leave: the package on the path, its entry points in a dist-info folder next to it."""
    project = tomllib.loads((STRANGER / "pyproject.toml").read_text())["project"]
    site = tmp_path_factory.mktemp("site-packages")
    information = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    points = project["entry-points"].items()
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in named.items()) for group, named in points
    ]
    (information / "entry_points.txt").write_text("\n".join(lines))
    with pytest.MonkeyPatch.context() as patch:
        for folder in (site, STRANGER):
            patch.syspath_prepend(str(folder))
        plugins._registry.cache_clear()
        yield
    plugins._registry.cache_clear()
