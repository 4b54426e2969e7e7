from __future__ import annotations

from pathlib import Path

import pytest

from velostream.engine import java as java_module
from velostream.engine.java import find_java, java_version
from velostream.errors import VelostreamError


def java_home(folder: Path, *, release: str | None = None, says: str | None = None) -> Path:
    """A Java home that consists of a `release` file, or of a `java` that answers -version."""
    binary = folder / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{says}' >&2\n" if says is not None else "#!/bin/sh\nexit 1\n")
    binary.chmod(0o755)
    if release is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{release}"\n')
    return folder


@pytest.mark.parametrize(
    ("release", "version"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("1.8.0_392", 8), ("24-ea", 24)]
)
def test_the_release_file_tells_the_version(tmp_path, release, version):
    assert java_version(java_home(tmp_path / "jdk", release=release) / "bin" / "java") == version


def test_without_a_release_file_java_is_asked(tmp_path):
    home = java_home(tmp_path / "jdk", says='openjdk version "21.0.1" 2023-10-17')
    assert java_version(home / "bin" / "java") == 21


def test_what_is_no_java_has_no_version(tmp_path):
    assert java_version(tmp_path / "absent") is None
    assert java_version(java_home(tmp_path / "jdk", says="no java at all") / "bin" / "java") is None


def test_java_home_comes_before_the_path(tmp_path):
    home = java_home(tmp_path / "home", release="21.0.1")
    other = java_home(tmp_path / "other", release="17.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.version, found.origin, found.path) == (21, "JAVA_HOME", home / "bin" / "java")


def test_one_that_is_too_old_is_passed_over(tmp_path):
    old = java_home(tmp_path / "old", release="11.0.2")
    new = java_home(tmp_path / "new", release="17.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.version, found.origin) == (17, "PATH")


def test_the_bundled_java_is_the_last_resort(tmp_path, monkeypatch):
    bundled = java_home(tmp_path / "bundled", release="25.0.1") / "bin" / "java"
    monkeypatch.setattr(java_module, "bundled_java", lambda: bundled)
    assert find_java({"PATH": ""}).origin == "the jdk extra"
    own = java_home(tmp_path / "own", release="17.0.1")
    assert find_java({"PATH": str(own / "bin")}).origin == "PATH"
    assert find_java({"PATH": str(own / "bin"), "VELOSTREAM_JAVA": "bundled"}).path == bundled


def test_a_choice_is_not_overruled(tmp_path):
    own = java_home(tmp_path / "own", release="17.0.1")
    chosen = java_home(tmp_path / "chosen", release="21.0.1")
    assert find_java({"PATH": str(own / "bin"), "VELOSTREAM_JAVA": str(chosen)}).version == 21
    with pytest.raises(VelostreamError, match="no Java 17 or newer found"):
        find_java({"PATH": str(own / "bin"), "VELOSTREAM_JAVA": str(tmp_path / "absent")})


def test_the_error_says_what_was_looked_at_and_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setattr(java_module, "bundled_java", lambda: None)
    old = java_home(tmp_path / "old", release="1.8.0_392")
    with pytest.raises(VelostreamError) as raised:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert raised.value.code == "missing-java"
    assert "JAVA_HOME: Java 8 is too old" in str(raised.value.detail)
    assert "pip install 'velostream[jdk]'" in str(raised.value.hint)
    with pytest.raises(VelostreamError) as raised:
        find_java({"VELOSTREAM_JAVA": "bundled", "PATH": ""})
    assert raised.value.code == "missing-java"
