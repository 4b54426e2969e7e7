"""Environments made on demand: whole and importable, or an error that says what is missing."""

from __future__ import annotations

import subprocess
import zipfile

import pytest

from velostream.errors import ServiceError
from velostream.testing.services.downloads import fetch_environment


@pytest.fixture
def wheel(tmp_path):
    """A package of one module, which needs no package index."""
    path = tmp_path / "tiny_peer-1.0-py3-none-any.whl"
    info = "tiny_peer-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_peer.py", "NAME = 'tiny'\n")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-peer\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"tiny_peer.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_an_environment_works_where_it_is_moved_to(wheel, tmp_path, capfd):
    fetch_environment(str(wheel), into=tmp_path / "made")
    moved = (tmp_path / "made").rename(tmp_path / "moved")
    command = [moved / "bin" / "python", "-c", "import tiny_peer; print(tiny_peer.NAME)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "tiny\n"
    assert "==> installed" in capfd.readouterr().err


def test_a_package_that_cannot_be_installed_is_an_error_with_its_reason(tmp_path):
    with pytest.raises(ServiceError, match="can't be installed") as refused:
        fetch_environment(str(tmp_path / "missing-1.0-py3-none-any.whl"), into=tmp_path / "made")
    assert "missing-1.0" in (refused.value.detail or "")
