"""`velostream doctor`: what is installed, what is missing, and the command that fixes it."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import velostream
from velostream.engine.archive import build_archive, class_archive
from velostream.engine.java import find_java
from velostream.engine.realtime.connector import connector_folder, connector_jars
from velostream.errors import VelostreamError

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)[^;]*(?:;.*extra\s*==\s*['\"]([^'\"]+)['\"])?")


class Verdict(StrEnum):
    OK = "ok"
    OPTIONAL = "--"
    """Not there, and nothing needs it."""
    MISSING = "!!"
    """Not there, and nothing works without it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report; `fix` is something to type."""

    subject: str
    verdict: Verdict
    text: str
    fix: str | None = None


def examine(*, spark: bool, fix: bool) -> int:
    """Print the findings; gives the exit code, 1 when something essential is missing."""
    worst = 0
    for finding in findings(spark=spark, fix=fix):
        print(f"{finding.verdict}  {finding.subject:<14} {finding.text}", flush=True)
        if finding.fix is not None:
            print(f"    {'':<14} fix: {finding.fix}", flush=True)
        worst = max(worst, int(finding.verdict is Verdict.MISSING))
    return worst


def findings(*, spark: bool, fix: bool) -> Iterator[Finding]:
    """Look at one thing after another; the slow ones come last."""
    yield Finding("python", Verdict.OK, f"{platform.python_version()} ({sys.executable})")
    yield Finding("velostream", Verdict.OK, f"{velostream.__version__} ({Path(velostream.__file__).parent})")
    try:
        yield from _dependencies()
        yield from _extras()
    except metadata.PackageNotFoundError:
        yield Finding(
            "packages", Verdict.OPTIONAL, "velostream runs from a folder, not installed", fix="pip install -e ."
        )
    java = _java()
    yield java
    if java.verdict is Verdict.OK:
        yield _archive(fix=fix)
        yield _connector(fix=fix)
        if spark:
            yield _spark()


def _dependencies() -> Iterator[Finding]:
    for name in _required(extra=None):
        version = _version(name)
        if version is None:
            yield Finding(name, Verdict.MISSING, "not installed", fix="pip install velostream")
        else:
            yield Finding(name, Verdict.OK, version)


def _java() -> Finding:
    try:
        return Finding("java", Verdict.OK, str(find_java()))
    except VelostreamError as error:
        text = error.message + (f" ({error.detail})" if error.detail else "")
        return Finding("java", Verdict.MISSING, text, fix=error.hint)


def _extras() -> Iterator[Finding]:
    for extra in sorted(metadata.metadata("velostream").get_all("Provides-Extra") or []):
        missing = [name for name in _required(extra=extra) if _version(name) is None]
        if missing:
            fix = f"pip install 'velostream[{extra}]'"
            yield Finding(f"extra {extra}", Verdict.OPTIONAL, "not installed: " + ", ".join(missing), fix=fix)
        else:
            yield Finding(f"extra {extra}", Verdict.OK, "installed")


def _archive(*, fix: bool) -> Finding:
    from velostream.engine.jvm import spark_home

    subject = "class archive"
    archive = class_archive(find_java(), jars=spark_home() / "jars")
    if archive.exists:
        return Finding(subject, Verdict.OK, f"Spark starts fast ({archive.classes.parent})")
    if not fix:
        return Finding(
            subject, Verdict.OPTIONAL, "not built; Spark takes twice as long to start", fix="velostream doctor --fix"
        )
    started = time.monotonic()
    try:
        built = build_archive()
    except VelostreamError as error:
        return Finding(subject, Verdict.OPTIONAL, f"could not be built: {error.message}", fix=error.hint)
    except OSError as error:
        return Finding(subject, Verdict.OPTIONAL, f"could not be built: {error}", fix="set XDG_CACHE_HOME")
    if built is None:
        return Finding(subject, Verdict.OPTIONAL, "this Java can't build one; Spark works without")
    return Finding(subject, Verdict.OK, f"built in {time.monotonic() - started:.0f} s ({built.classes.parent})")


def _connector(*, fix: bool) -> Finding:
    """The jars of Spark's own connector, which only `'trigger' = 'realtime'` needs."""
    subject = "kafka jars"
    folder = connector_folder()
    if folder.is_dir():
        return Finding(subject, Verdict.OK, f"queries from topic to topic can run in real time ({folder})")
    if not fix:
        text = "not fetched; the first query with 'trigger' = 'realtime' does so"
        return Finding(subject, Verdict.OPTIONAL, text, fix="velostream doctor --fix")
    try:
        connector_jars(lambda line: print(f"    {'':<14} {line}", flush=True))
    except VelostreamError as error:
        return Finding(subject, Verdict.OPTIONAL, f"{error.message}: {error.detail}", fix=error.hint)
    except OSError as error:
        return Finding(subject, Verdict.OPTIONAL, f"could not be kept: {error}", fix="set XDG_CACHE_HOME")
    return Finding(subject, Verdict.OK, f"fetched ({folder})")


def _spark() -> Finding:
    from velostream.engine.spark import SparkRuntime

    with tempfile.TemporaryDirectory(prefix="velostream-doctor-") as folder:
        runtime = SparkRuntime(Path(folder))
        started = time.monotonic()
        try:
            answer = runtime.session().range(10).selectExpr("sum(id) AS total").toArrow()["total"][0].as_py()
        except VelostreamError as error:
            text = error.message + (f": {error.detail}" if error.detail else "")
            return Finding("spark", Verdict.MISSING, text, fix=error.hint)
        finally:
            runtime.stop()
    return Finding("spark", Verdict.OK, f"answered {answer} after {time.monotonic() - started:.1f} s")


def _required(*, extra: str | None) -> list[str]:
    """Names of the packages that velostream, or one of its extras, needs."""
    found = []
    for requirement in metadata.requires("velostream") or []:
        match = _REQUIREMENT.match(requirement)
        if match is not None and match.group(2) == extra:
            found.append(match.group(1))
    return found


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
