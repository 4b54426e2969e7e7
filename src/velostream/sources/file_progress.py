"""How a file source moves on: from the positions of its files to the next ones.

Both ways only look; nothing is remembered but what saves looking again, so a step computed twice is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path

from velostream.errors import SourceError
from velostream.formats.base import WholeFormat
from velostream.formats.opening import open_file
from velostream.sources.file_formats import FileFormats
from velostream.sources.file_listing import Listing
from velostream.sources.file_state import FileIdentity, FileState, covers_all, fingerprint

States = Mapping[str, FileState]
_REMEMBERED_POSITIONS = 16


class WatchMode(StrEnum):
    """What a change of a watched file means."""

    AUTO = "auto"
    """Growth adds rows, a rewrite replaces them; as `directory` where many files are watched."""
    APPEND = "append"
    """Lines are events; nothing is ever taken back."""
    REPLACE = "replace"
    """Every change replaces the rows of the file."""
    DIRECTORY = "directory"
    """As auto, and a deleted file takes its rows along."""


class Change(StrEnum):
    """What became of the content that was read."""

    SAME = "same"
    GROWN = "grown"
    REWRITTEN = "rewritten"


@dataclass(frozen=True, slots=True)
class _Step:
    state: FileState
    rows: int


class BoundedProgress:
    """Reads what is there at the first step, once, to the last byte."""

    def __init__(self, listing: Listing, formats: FileFormats) -> None:
        self._listing = listing
        self._formats = formats

    def latest(self, states: States, *, max_rows: int | None) -> States:
        found = dict(states) or self._listed()
        budget = max_rows
        moved = False
        for path, state in found.items():
            if budget is not None and budget <= 0:
                break
            if state.size and state.read >= state.size:
                continue
            reach = self._reach(state, budget)
            if reach is not None:
                found[path], rows = reach.state, reach.rows
                budget = None if budget is None else budget - rows
                moved = True
        return found if moved else states

    def _listed(self) -> dict[str, FileState]:
        paths = self._listing.paths()
        if not paths:
            raise SourceError.missing_file(self._listing.pattern, pattern=self._listing.names_many)
        identities = {path: FileIdentity.of(path) for path in paths}
        return {path: FileState(path, 0, found.size) for path, found in identities.items() if found is not None}

    def _reach(self, state: FileState, budget: int | None) -> _Step | None:
        if state.read and FileIdentity.of(state.path) is None:
            return None
        reach = self._formats.reach(state.path, state.read, max_rows=budget, final=True, size=state.size)
        if reach.read <= state.read:
            return None
        return _Step(replace(state, read=reach.read), reach.rows)


class WatchedProgress:
    """Follows files as they grow, are rewritten, come and go."""

    def __init__(self, listing: Listing, formats: FileFormats, mode: WatchMode, *, debounce: timedelta) -> None:
        self._listing = listing
        self._formats = formats
        self._mode = mode
        self._debounce = debounce
        self._settled: dict[str, dict[tuple[int, int] | None, FileIdentity]] = {}
        self._generations: dict[str, FileState] = {}

    def latest(self, states: States, *, max_rows: int | None) -> States:
        paths = self._paths(states)
        found: dict[str, FileState] = {}
        renamed: dict[str, FileState] = {}
        budget = max_rows
        for path in paths:
            if budget is not None and budget <= 0:
                break
            before = states.get(path)
            if self._mode is WatchMode.APPEND and not self._is_settled(path, before):
                former = self._under_former_name(path, before, states)
                if former is not None:
                    before = renamed[path] = former
            step = self._step(path, before, budget)
            if step is not None:
                found[path] = step.state
                budget = None if budget is None else budget - step.rows
        found |= self._deleted(states, paths)
        if not found:
            return states
        self._generations |= found
        return dict(sorted((dict(states) | renamed | found).items()))

    def _paths(self, states: States) -> list[str]:
        paths = self._listing.paths()
        if paths or not states:
            return paths
        # A folder that is away is no folder to the listing any more; the files that were read from it tell.
        was_there = not self._listing.is_pattern and not any(Path(path).parent.is_dir() for path in states)
        folder_is_gone = was_there or not self._listing.base.is_dir()
        single_is_gone = not self._listing.names_many and self._mode in (WatchMode.AUTO, WatchMode.REPLACE)
        if folder_is_gone or single_is_gone:
            raise SourceError.missing_file(self._listing.pattern, pattern=self._listing.is_pattern)
        return paths

    def _deleted(self, states: States, paths: Iterable[str]) -> dict[str, FileState]:
        if self._mode is WatchMode.APPEND:
            return {}
        present = set(paths)
        return {
            path: FileState(path, 0, 0, generation=state.generation + 1, gone=True)
            for path, state in states.items()
            if not state.gone and path not in present and FileIdentity.of(path) is None
        }

    def _step(self, path: str, state: FileState | None, budget: int | None) -> _Step | None:
        identity = FileIdentity.of(path)
        if identity is None or self._is_settled(path, state):
            return None
        whole = isinstance(self._formats.of(path), WholeFormat)
        quiet = identity.quiet_for(self._debounce)
        if state is None or state.gone:
            # Only a whole that nobody writes to any more can be read; lines are complete one by one.
            if whole and not quiet:
                return None
            generation = self._known_generation(path) if state is None else state.generation + 1
            step = self._taken(path, 0, budget, identity, generation=generation)
        else:
            change = self._compare(state, identity, whole=whole)
            if change is Change.REWRITTEN and self._mode is not WatchMode.APPEND:
                return self._rewritten(state, identity) if quiet else None
            if change is Change.REWRITTEN and whole and not quiet:
                return None
            if change is Change.REWRITTEN:
                self._formats.forget(path)
                step = self._taken(path, 0, budget, identity, generation=state.generation + 1)
            elif change is Change.GROWN and self._mode is WatchMode.REPLACE:
                grown = self._formats.reach(path, state.read, max_rows=None, final=False).read > state.read
                if grown:
                    return self._rewritten(state, identity) if quiet else None
                step = None
            elif change is Change.GROWN:
                step = self._taken(path, state.read, budget, identity, generation=state.generation, begin=state.begin)
            else:
                step = None
        if step is None:
            self._settle(path, state, identity)
        return step

    def _taken(
        self, path: str, start: int, budget: int | None, identity: FileIdentity, *, generation: int, begin: int = 0
    ) -> _Step | None:
        """The step to what can be read after `start`; None when there is nothing."""
        limit = None if self._mode is WatchMode.REPLACE else budget
        reach = self._formats.reach(path, start, max_rows=limit, final=False)
        if reach.read <= start:
            return None
        return _Step(self._state(path, reach.read, reach.size, identity, generation, begin), reach.rows)

    def _rewritten(self, state: FileState, identity: FileIdentity) -> _Step:
        """The step to the whole new content, empty if it is that."""
        self._formats.forget(state.path)
        reach = self._formats.reach(state.path, 0, max_rows=None, final=False)
        return _Step(self._state(state.path, reach.read, reach.size, identity, state.generation + 1), reach.rows)

    def _state(
        self, path: str, read: int, size: int, identity: FileIdentity, generation: int, begin: int = 0
    ) -> FileState:
        with open_file(path) as file:
            digest = fingerprint(file, size)
        modified = 0 if self._mode is WatchMode.APPEND else identity.modified
        return FileState(path, read, size, digest, generation, modified, begin)

    def _compare(self, state: FileState, identity: FileIdentity, *, whole: bool) -> Change:
        if identity.size < state.size or not _begins_with(state.path, state):
            return Change.REWRITTEN
        if identity.size > state.size:
            return Change.REWRITTEN if whole else Change.GROWN
        if whole and state.read < len(self._formats.units(state.path)):
            return Change.GROWN
        unseen = state.modified not in (0, identity.modified) and not covers_all(state.size)
        return Change.REWRITTEN if unseen else Change.SAME

    def _known_generation(self, path: str) -> int:
        """The generation other readers of this source know the file by, so that their positions can meet."""
        known = self._generations.get(path)
        return known.generation if known is not None and not known.gone and _begins_with(path, known) else 0

    def _under_former_name(self, path: str, state: FileState | None, states: States) -> FileState | None:
        """The position in a file that was read as another path before a rotation renamed it to this one."""
        if state is not None and _begins_with(path, state):
            return None
        for former in states.values():
            if not former.size or former.path == path or not _begins_with(path, former):
                continue
            if not _begins_with(former.path, former):
                generation = 0 if state is None else state.generation + 1
                return replace(former, path=path, generation=generation, begin=former.read)
        return None

    def _is_settled(self, path: str, state: FileState | None) -> bool:
        """Whether it is known that this file, as it is, has nothing beyond this position."""
        known = self._settled.get(path, {}).get(None if state is None else state.order)
        return known is not None and known == FileIdentity.of(path)

    def _settle(self, path: str, state: FileState | None, identity: FileIdentity) -> None:
        positions = self._settled.setdefault(path, {})
        if len(positions) >= _REMEMBERED_POSITIONS:
            positions.clear()
        positions[None if state is None else state.order] = identity


def _begins_with(path: str, state: FileState) -> bool:
    """Whether a file begins with the content of which a state tells."""
    identity = FileIdentity.of(path)
    if identity is None or identity.size < state.size:
        return False
    with open_file(path) as file:
        return fingerprint(file, state.size) == state.fingerprint
