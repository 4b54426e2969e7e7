"""When a statement that goes on takes in what has come: as fast as it can, at most every so often, or once."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from velostream.errors import OptionError, UnsupportedError, ValidationError
from velostream.model.duration import parse_duration, render_duration

if TYPE_CHECKING:
    from velostream.model.options import Options

TOOK_WHAT_WAS_THERE = "trigger once: it took in what was there, RESUME QUERY takes in what is new"
"""The reason that a statement shows which is through."""
_REALTIME, _ONCE = "realtime", "once"


@dataclass(frozen=True)
class Trigger:
    """What the option `trigger` of a statement says. Without it a statement goes on as fast as it can."""

    every: timedelta = timedelta(0)
    """At least so long it is from the beginning of one beat to that of the next."""
    once: bool = False
    realtime: bool = False

    @classmethod
    def of(cls, options: Options) -> Trigger:
        """The trigger of a statement; `OptionError` for a text that is none."""
        text = options.text("trigger")
        word = "" if text is None else text.strip().lower()
        if text is None or word in (_REALTIME, _ONCE):
            return cls(once=word == _ONCE, realtime=word == _REALTIME)
        try:
            return cls(every=parse_duration(text))
        except ValidationError as error:
            expected = "a length of time such as 500ms or 30s, once, or realtime"
            raise OptionError.value("trigger", text, expected=expected) from error

    @property
    def shown(self) -> str | None:
        """For EXPLAIN; None where nothing was said."""
        if self.once:
            return "once: what is there when it starts, then it rests until RESUME QUERY or RESTART QUERY"
        if self.every:
            return f"at most every {render_duration(self.every)}: what comes in between is taken in together"
        return None

    def refuse_unless_it_goes_on(self) -> None:
        """Raise `unsupported-trigger`, of a statement that runs once anyhow, for a trigger that asks for more."""
        if self.every:
            raise UnsupportedError(
                f"what is read once can't be triggered every {render_duration(self.every)}",
                detail="a trigger is for statements that go on: over streams, tables, and sources that are followed",
                hint="leave trigger out; or have the source followed, by 'watch' = 'true' or 'poll.interval'",
                code="unsupported-trigger",
            )

    def refuse_realtime(self) -> None:
        """Raise `unsupported-trigger` for Real-Time Mode, of a statement that can't have it."""
        if self.realtime:
            raise UnsupportedError(
                "only what goes from topic to topic can be triggered in real time",
                detail="Spark's Real-Time Mode writes into topics of Kafka alone",
                hint="INSERT INTO kafka://… SELECT … FROM kafka://… WITH ('trigger' = 'realtime')",
                code="unsupported-trigger",
            )


class Pace:
    """When one statement may begin its next beat: to take in what is there at that moment, in however many batches.

    `hurry` may be called by any thread, the rest by the one that runs the statement.
    """

    def __init__(self, trigger: Trigger | None = None) -> None:
        trigger = trigger or Trigger()
        self._seconds = trigger.every.total_seconds()
        self._due_at = float("-inf")
        self._hurried = False
        self.once = trigger.once
        """Whether there is one beat only."""

    @property
    def is_measured(self) -> bool:
        """Whether there is a rest between two beats."""
        return self._seconds > 0

    @property
    def seconds_left(self) -> float:
        """How long the rest still is; 0: a beat may begin."""
        return 0.0 if self._hurried or not self._seconds else max(0.0, self._due_at - time.monotonic())

    @property
    def rests(self) -> bool:
        return self.seconds_left > 0

    def looked(self, *, found: bool) -> None:
        """It has looked for what is there; where something was found a beat begins."""
        self._hurried = False
        if found:
            self._due_at = time.monotonic() + self._seconds

    def hurry(self) -> None:
        """Somebody waits for what is there now: the rest is over, or the next one is left out."""
        self._hurried = True
