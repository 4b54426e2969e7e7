"""How a `.view` script is played: as written, and again with the world falling over in between.

`plain` plays it on a connection without a path. `restarted` closes the connection and opens it again between any two
steps. `replayed` and `crashed` kill the process by SIGKILL at the script's last change: `replayed` when the work is
done and not yet committed, so the batch is run again; `crashed` when it is committed and nobody has been told. Both
strike twice: where the rows come in, and, when that is recovered, where the views built on them are kept.

Starting Spark takes seconds, so all scripts of a killed scenario live in one process, each with its own connection;
those that reach their instant are frozen there, and one kill ends them together.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

from velostream.engine.connection import Connection, connect
from velostream.engine.spark import SparkRuntime
from velostream.errors import VelostreamError
from velostream.testing import crash
from velostream.testing.script import DEFAULT_DEADLINE_SECONDS, Player, Script, ScriptFailure

_AT_ONCE = 4
"""Scripts that are played at the same time in one process."""
_GENERATION_TIMEOUT_SECONDS = 600.0


class Scenario(StrEnum):
    PLAIN = "plain"
    RESTARTED = "restarted"
    REPLAYED = "replayed"
    CRASHED = "crashed"


_KILLS = {
    Scenario.REPLAYED: (crash.BEFORE_COMMIT, crash.BEFORE_VIEW_COMMIT),
    Scenario.CRASHED: (crash.AFTER_COMMIT, crash.AFTER_VIEW_COMMIT),
}
"""At which points the successive processes of a scenario are killed. Rows come in before views are kept, so the first
kill of a script that has a source strikes there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a script fared in a scenario; `failure` is what went wrong, with the difference."""

    script: str
    scenario: Scenario
    failure: str | None
    seconds: float
    kills: int = 0
    """How often the process was killed while the script stood at one of its instants."""


def play(
    scripts: Sequence[Path],
    *,
    scenarios: Sequence[Scenario] = tuple(Scenario),
    deadline: float = DEFAULT_DEADLINE_SECONDS,
) -> Iterator[Outcome]:
    """Play every script in every scenario. `deadline` is how long a query may take to show the rows expected."""
    here = [scenario for scenario in scenarios if scenario not in _KILLS]
    with spark_kept_running() if here else contextlib.nullcontext():
        for scenario in here:
            for path in scripts:
                yield play_one(path, scenario, deadline=deadline)
    for scenario in scenarios:
        if scenario in _KILLS:
            yield from play_killed(scripts, scenario, deadline=deadline)


def play_one(path: Path, scenario: Scenario, *, deadline: float = DEFAULT_DEADLINE_SECONDS) -> Outcome:
    """Play one script in this process: `plain` or `restarted`."""
    began = time.monotonic()
    script = Script.read(path)
    failure = None
    with tempfile.TemporaryDirectory(prefix="velostream-view-") as folder:
        try:
            if scenario is Scenario.RESTARTED:
                _play_restarted(script, Path(folder), deadline)
            else:
                _play_plain(script, Path(folder), deadline)
        except ScriptFailure as error:
            failure = str(error)
    return Outcome(path.stem, scenario, failure, time.monotonic() - began)


def play_killed(
    scripts: Sequence[Path], scenario: Scenario, *, deadline: float = DEFAULT_DEADLINE_SECONDS
) -> list[Outcome]:
    """Play scripts together in processes that are killed: `replayed` or `crashed`."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="velostream-views-") as name:
        folder = Path(name)
        plays = [_Play(str(path.absolute())) for path in scripts]
        for points in (*_KILLS[scenario], frozenset[str]()):
            open_plays = [play for play in plays if not play.done]
            if open_plays:
                results = _run_generation(_Generation(str(folder), sorted(points), deadline, open_plays))
                plays = [results.get(play.path, play) for play in plays]
    seconds = time.monotonic() - began
    return [Outcome(Path(one.path).stem, scenario, one.failure, seconds / len(plays), one.kills) for one in plays]


@contextlib.contextmanager
def spark_kept_running() -> Iterator[None]:
    """Keep Spark's JVM for the connections made and closed inside, so that it is started once."""
    with tempfile.TemporaryDirectory(prefix="velostream-spark-kept-") as folder:
        keeper = SparkRuntime(Path(folder))
        keeper.session()
        try:
            yield
        finally:
            keeper.stop()


def _play_plain(script: Script, folder: Path, deadline: float) -> None:
    with connect() as connection:
        player = Player(connection, script, directory=folder, deadline=deadline)
        for step in script.steps:
            player.play(step)


def _play_restarted(script: Script, folder: Path, deadline: float) -> None:
    for step in script.steps:
        with connect(folder / "state") as connection:
            Player(connection, script, directory=folder, deadline=deadline).play(step)


@dataclass(frozen=True, slots=True)
class _Play:
    """A script on its way through the processes of a killed scenario."""

    path: str
    next: int = 0
    """The step to go on with."""
    kills: int = 0
    done: bool = False
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class _Generation:
    """What one process is to do: play each script to its end, or until it is frozen at one of the points."""

    folder: str
    points: list[str]
    deadline: float
    plays: list[_Play]

    @property
    def task_file(self) -> Path:
        return Path(self.folder) / "task.json"

    @property
    def result_file(self) -> Path:
        return Path(self.folder) / "result.json"

    def write(self) -> None:
        self.task_file.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> _Generation:
        form = json.loads(path.read_text())
        return cls(**form | {"plays": [_Play(**play) for play in form["plays"]]})


def _run_generation(generation: _Generation) -> dict[str, _Play]:
    """Run it in a process of its own, which kills itself when all scripts are settled."""
    generation.write()
    generation.result_file.unlink(missing_ok=True)
    log = Path(generation.folder) / "log"
    with crash.Child(["-m", __name__, generation.task_file], log=log) as child:
        code = child.wait(_GENERATION_TIMEOUT_SECONDS)
    if not generation.result_file.exists():
        raise ScriptFailure(f"the process that plays the scripts ended with {code}\n{log.read_text(errors='replace')}")
    return {form["path"]: _Play(**form) for form in json.loads(generation.result_file.read_text())}


class _Stage:
    """Inside the process: plays the scripts of a generation, a few at a time, until each is done or frozen."""

    def __init__(self, generation: _Generation) -> None:
        self._generation = generation
        self._freezer = crash.Freezer(self._frozen)
        self._results: dict[str, _Play] = {}
        self._settled: queue.Queue[str] = queue.Queue()
        self._lock = threading.Lock()

    def run(self) -> list[_Play]:
        self._freezer.install()
        waiting = deque(self._generation.plays)
        playing = 0
        while waiting or playing:
            while waiting and playing < _AT_ONCE:
                threading.Thread(target=self._play, args=(waiting.popleft(),), daemon=True).start()
                playing += 1
            self._settled.get()
            playing -= 1
        return list(self._results.values())

    def _play(self, play: _Play) -> None:
        script = Script.read(Path(play.path))
        folder = self._folder(play)
        state = folder / "state"
        folder.mkdir(exist_ok=True)
        if play.next:
            self._freezer.arm(state, self._generation.points)
        try:
            connection = connect(state)
            player = Player(
                connection,
                script,
                directory=folder,
                deadline=self._generation.deadline,
                cancelled=lambda: play.path in self._results,
            )
            if play.next:
                self._meet_the_points(connection)
            for number, step in enumerate(script.steps[play.next :], play.next):
                if number == script.last_change:
                    # What an earlier change has set going would be frozen before this one is made.
                    self._meet_the_points(connection)
                    self._freezer.arm(state, self._generation.points)
                player.play(step)
                if number == script.last_change:
                    self._meet_the_points(connection)
            self._settle(replace(play, done=True))
            self._freezer.disarm(state)
            if self._results[play.path].done:
                connection.close()
        except ScriptFailure as failure:
            self._settle(replace(play, done=True, failure=str(failure)))
        except Exception:  # noqa: BLE001 - whatever ends a script is how it ended
            self._settle(replace(play, done=True, failure=traceback.format_exc()))

    def _meet_the_points(self, connection: Connection) -> None:
        """Let everything under way come to its point, or to its end: a query might be answered just before."""
        if self._generation.points:
            # What fails here fails the queries that follow, which say more about it.
            with contextlib.suppress(VelostreamError):
                connection.drain_all(timeout=self._generation.deadline)

    def _frozen(self, state: Path) -> None:
        [play] = [one for one in self._generation.plays if self._folder(one) / "state" == state]
        last_change = Script.read(Path(play.path)).last_change
        self._settle(replace(play, next=last_change + 1, kills=play.kills + 1))

    def _settle(self, play: _Play) -> None:
        """The first to say how a script ended is right: frozen, or done."""
        with self._lock:
            if play.path in self._results:
                return
            self._results[play.path] = play
        self._settled.put(play.path)

    def _folder(self, play: _Play) -> Path:
        return Path(self._generation.folder) / Path(play.path).stem


def main(task_file: str) -> None:
    """The process of a generation: plays, writes down how it went, and dies."""
    generation = _Generation.read(Path(task_file))
    with spark_kept_running():
        results = _Stage(generation).run()
        generation.result_file.write_text(json.dumps([asdict(play) for play in results]))
        crash.kill_me()


if __name__ == "__main__":
    main(sys.argv[1])
