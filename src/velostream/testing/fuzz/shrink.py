"""Making a case that fails as small as it gets: steps are dropped as long as it fails for the same view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from velostream.testing.fuzz.case import Case, Commit, Step
from velostream.testing.fuzz.player import Failure, play


def shrink(failure: Failure, *, tries: int = 60, again: Callable[[Case], Failure | None] = play) -> Failure:
    """The smallest case found within so many plays that fails at the same view."""
    smallest = replace(failure, case=replace(failure.case, steps=failure.case.steps[: failure.step + 1]))
    position = len(smallest.case.steps) - 2
    while position >= 0 and tries:
        tries -= 1
        for fewer in _without(smallest.case, position):
            found = again(fewer)
            if found is not None and found.view == failure.view:
                smallest = found
                break
        position -= 1
    return smallest


def _without(case: Case, position: int) -> list[Case]:
    """The case without a step; a transaction also without one of its changes."""
    before, step, after = case.steps[:position], case.steps[position], case.steps[position + 1 :]
    kept: list[tuple[Step, ...]] = [()]
    if isinstance(step, Commit) and len(step.changes) > 1:
        kept += [(Commit((*step.changes[:one], *step.changes[one + 1 :])),) for one in range(len(step.changes))]
    return [replace(case, steps=(*before, *each, *after)) for each in kept]
