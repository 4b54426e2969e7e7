from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from velostream.engine import jvm as jvm_module
from velostream.engine.archive import cache_directory, class_archive
from velostream.engine.java import Java
from velostream.engine.jvm import (
    Identity,
    SparkJvm,
    await_orphan,
    default_heap_megabytes,
    end_orphan,
    new_home,
    record_user,
)
from velostream.errors import StateError, VelostreamError


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_process_is_known_by_more_than_its_number(sleeper):
    identity = Identity.of(sleeper.pid)
    assert identity.alive
    assert not Identity(pid=sleeper.pid, started="another time").alive
    sleeper.kill()
    sleeper.wait()
    assert not identity.alive


def test_an_orphan_that_does_not_end_keeps_the_directory_closed(sleeper, tmp_path, monkeypatch):
    monkeypatch.setattr(jvm_module, "_ORPHAN_TIMEOUT_SECONDS", 0.2)
    record_user(tmp_path, Identity.of(sleeper.pid))
    with pytest.raises(StateError, match="is in use"):
        await_orphan(tmp_path)
    await_orphan(tmp_path, ours=Identity.of(sleeper.pid))


def test_an_orphan_that_is_to_end_is_killed_when_it_does_not(sleeper, monkeypatch):
    monkeypatch.setattr(jvm_module, "_ORPHAN_TIMEOUT_SECONDS", 0.2)
    end_orphan(Identity(pid=sleeper.pid, started="another time"))
    assert sleeper.poll() is None
    end_orphan(Identity.of(sleeper.pid))
    assert sleeper.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"pid": "x", "started": ""}'])
def test_a_record_that_says_nothing_holds_nobody_up(tmp_path, content):
    (tmp_path / "jvm.json").write_text(content)
    await_orphan(tmp_path)


def test_a_java_that_fails_is_an_error_with_its_last_words(tmp_path):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'Invalid maximum heap size: -Xmx1z' >&2\nexit 1\n")
    java.chmod(0o755)
    began = time.monotonic()
    with pytest.raises(VelostreamError) as raised:
        SparkJvm(
            Java(path=java, version=17, origin="a test"), home=new_home(), settings={}, log_directory=tmp_path / "logs"
        )
    assert time.monotonic() - began < 30
    assert raised.value.code == "spark-start"
    assert "Invalid maximum heap size" in str(raised.value.detail)
    assert str(tmp_path / "logs") in str(raised.value.hint)


def test_settings_are_for_the_owner_only_and_not_on_the_command_line(tmp_path):
    java = tmp_path / "java"
    java.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/command\nls -l $(dirname "$_") > /dev/null\nexit 1\n')
    java.chmod(0o755)
    home = new_home()
    with pytest.raises(VelostreamError):
        SparkJvm(
            Java(path=java, version=17, origin="a test"),
            home=home,
            settings={"spark.hadoop.fs.s3a.secret.key": "hush:hush = 1", "spark.driver.memory": "2g"},
            log_directory=tmp_path,
        )
    command = (tmp_path / "command").read_text()
    assert "hush" not in command
    assert "-Xmx2g" in command
    properties = home / "spark.properties"
    assert properties.stat().st_mode & 0o077 == 0
    assert "spark.hadoop.fs.s3a.secret.key=hush\\:hush\\ \\=\\ 1\n" in properties.read_text()


def test_the_heap_is_a_quarter_of_memory_within_bounds():
    assert 1024 <= default_heap_megabytes() <= 4096


def test_an_archive_belongs_to_one_java_and_one_set_of_jars(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "spark-core.jar").touch()
    homes = []
    for version in ("17.0.1", "17.0.2"):
        home = tmp_path / version
        (home / "bin").mkdir(parents=True)
        (home / "release").write_text(f'JAVA_VERSION="{version}"')
        homes.append(class_archive(Java(path=home / "bin" / "java", version=17, origin="a test"), jars=jars))
    (jars / "another.jar").touch()
    homes.append(class_archive(homes[0].java, jars=jars))
    assert len({archive.classes for archive in homes}) == 3
    assert all(archive.classes.is_relative_to(cache_directory()) for archive in homes)
    assert not any(archive.exists for archive in homes)
    assert cache_directory() == tmp_path / "cache" / "velostream"


def test_a_java_without_an_archive_of_its_own_gets_one(tmp_path):
    (tmp_path / "jars").mkdir()
    home = tmp_path / "java"
    (home / "lib" / "server").mkdir(parents=True)
    java = Java(path=home / "bin" / "java", version=25, origin="a test")
    bare = class_archive(java, jars=tmp_path / "jars")
    assert bare.base is not None
    assert bare.reading_options()[-1] == f"-XX:SharedArchiveFile={bare.base}{os.pathsep}{bare.classes}"
    assert f"-XX:SharedArchiveFile={bare.base}" in bare.writing_options()
    (home / "lib" / "server" / "classes.jsa").touch()
    assert class_archive(java, jars=tmp_path / "jars").base is None
