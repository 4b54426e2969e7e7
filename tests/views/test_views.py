"""Every `.view` script in every scenario: as written, restarted between any two steps, replayed and crashed."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from velostream.testing.scenarios import Outcome, Scenario, play_killed, play_one

SCRIPTS = sorted(Path(__file__).parent.glob("*.view"))
NAMES = [script.stem for script in SCRIPTS]
AT_ONCE = 4
DEADLINE_SECONDS = 120.0
"""How long rows may take to show. Generous: a busy machine must not fail a script that is only slow."""


@pytest.fixture(scope="module", params=[Scenario.PLAIN, Scenario.RESTARTED], ids=str)
def played(request) -> dict[str, Outcome]:
    """All scripts played in this process, a few at a time: most of their time they wait. The outcome of each."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = pool.map(partial(play_one, scenario=request.param, deadline=DEADLINE_SECONDS), SCRIPTS)
        return {outcome.script: outcome for outcome in outcomes}


@pytest.fixture(scope="module", params=[Scenario.REPLAYED, Scenario.CRASHED], ids=str)
def killed(request) -> dict[str, Outcome]:
    """All scripts played in processes that are killed; the outcome of each."""
    return {outcome.script: outcome for outcome in play_killed(SCRIPTS, request.param, deadline=DEADLINE_SECONDS)}


@pytest.mark.parametrize("script", NAMES)
def test_as_written_and_restarted_between_any_two_steps(script, played):
    outcome = played[script]
    assert outcome.failure is None, outcome.failure


@pytest.mark.parametrize("script", NAMES)
def test_killed_at_its_last_change(script, killed):
    outcome = killed[script]
    assert outcome.failure is None, outcome.failure


def test_the_kills_struck(killed):
    """A scenario whose points nobody reaches would prove nothing. Only DML by itself commits before it returns."""
    assert [name for name, outcome in killed.items() if outcome.kills == 0] == ["declared_dml", "transactions"]
    assert sum(outcome.kills == 2 for outcome in killed.values()) >= 10
