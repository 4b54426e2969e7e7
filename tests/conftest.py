"""What tests of several folders share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src"

# A shell that runs the tests in its background has them ignore SIGINT, and processes they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def spark_kept() -> Iterator[None]:
    """Spark's JVM stays for all connections of the test run, so that it is started once."""
    from velostream.testing.scenarios import spark_kept_running

    with spark_kept_running():
        yield


@pytest.fixture(scope="module", autouse=True)
def _spark_kept_between_modules(request: pytest.FixtureRequest) -> None:
    """Modules that work with Spark in this process find it running."""
    if request.path.parent in (TESTS / "engine", TESTS / "views"):
        request.getfixturevalue("spark_kept")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """For a process of our own: this source tree, and no files outside the test's folder but Spark's archive."""
    return os.environ | {"PYTHONPATH": str(SOURCES), "XDG_STATE_HOME": str(tmp_path / "xdg-state")}


@pytest.fixture
def velostream(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in a process of its own, away from any terminal."""

    def call(*arguments: str | Path, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "velostream", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            env=environment | variables,
            timeout=180,
            check=False,
        )

    return call


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait for a condition, with a deadline."""

    def wait(condition: Callable[[], object], *, seconds: float = 60.0, what: str = "the condition") -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true within {seconds} s"
            time.sleep(0.05)

    return wait
