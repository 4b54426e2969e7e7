"""A peer as the benchmark sees it: where it is installed, its process, and what it has written.

Versions are pinned here and nowhere else. A virtual environment is made when a peer is first asked for, in the user's
cache folder; what it takes is told on the way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from benchmarks.peers.protocol import BEGIN, DONE, READY
from benchmarks.trades import Answer
from velostream.engine.java import find_java
from velostream.testing.services.downloads import cached, fetch_environment

_ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 120
_RUN_SECONDS = 600


class PeerError(Exception):
    """A peer that can't be installed, started or run."""


@dataclass(frozen=True)
class Peer:
    """One of the other systems, and how its join is run."""

    name: str
    requirement: str
    module: str
    """Of this package; takes the trades, the users and the folder for the result."""
    columns: Sequence[str] | None
    """Of the files it writes; None: their first line has them."""
    environment: Callable[[], Mapping[str, str]]
    """What its process needs to be told."""

    def installed(self) -> Path:
        """Its Python, with it installed; raises `ServiceError` where that can't be done."""
        folder = cached(
            self.requirement.replace("==", "-"), fill=lambda path: fetch_environment(self.requirement, into=path)
        )
        return folder / "bin" / "python"

    def answer(self, folder: Path) -> Answer:
        """What the files of a result have; every value to the cent, where a peer has no decimals."""
        rows, cents = 0, 0
        reading = pacsv.ReadOptions(column_names=self.columns)
        converting = pacsv.ConvertOptions(include_columns=["weighted"], column_types={"weighted": pa.float64()})
        for path in folder.iterdir():
            if path.stat().st_size:
                weighted = pacsv.read_csv(path, reading, convert_options=converting)["weighted"]
                rows += len(weighted)
                cents += pc.sum(pc.round(pc.multiply(weighted, 100.0)).cast(pa.int64())).as_py() or 0
        return Answer(rows, Decimal(cents).scaleb(-2))


def _flink_environment() -> dict[str, str]:
    return {"JAVA_HOME": str(find_java().path.resolve().parent.parent)}


PEERS = (
    Peer(
        "Flink",
        "apache-flink==2.3.0",
        "benchmarks.peers.flink_join",
        ("trade_id", "name", "tier", "weighted"),
        _flink_environment,
    ),
    Peer("Pathway", "pathway==0.33.0", "benchmarks.peers.pathway_join", None, lambda: {"PATHWAY_THREADS": "2"}),
)


class PeerProcess:
    """A peer's process, started and ready; it runs when asked, as often as asked."""

    def __init__(self, peer: Peer, *, trades: Path, users: Path, folder: Path) -> None:
        self.peer = peer
        self.folder = folder
        self._log = folder.with_suffix(".log")
        command = [str(peer.installed()), "-m", peer.module, str(trades), str(users), str(folder)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **peer.environment(), "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        try:
            self._expect(READY, seconds=_START_SECONDS)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clear(self) -> None:
        """Before a run: what the last one has written goes."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self) -> None:
        self._stdin.write(f"{BEGIN}\n")
        self._expect(DONE, seconds=_RUN_SECONDS)

    def answer(self) -> Answer:
        return self.peer.answer(self.folder)

    def close(self) -> None:
        """The process ends with its input; one that doesn't is killed."""
        self._stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()

    def _expect(self, word: str, *, seconds: float) -> None:
        """Wait for what it says; a process that says nothing for so long is ended."""
        deadline = threading.Timer(seconds, self._process.kill)
        deadline.start()
        try:
            said = self._stdout.readline().strip()
        finally:
            deadline.cancel()
        if said != word:
            end = self._log.read_text(errors="replace").strip()[-500:]
            raise PeerError(f"{self.peer.name} said {said or 'nothing'!r} instead of {word!r}: {end}")
