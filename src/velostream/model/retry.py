"""How long to wait before trying again."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from velostream.errors import OptionError, ValidationError
from velostream.model.duration import parse_duration
from velostream.model.options import Options

DEFAULT_INTERVAL = timedelta(seconds=2)
DEFAULT_MULTIPLIER = 1.5
DEFAULT_MAX_DELAY = timedelta(seconds=120)
LONGEST_WHILE_RUNNING = timedelta(seconds=15)
SHORTLY = timedelta(milliseconds=10)
LONGEST_AT_ONCE = timedelta(milliseconds=500)


class RetryStrategy(StrEnum):
    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays between attempts. `max_delay` caps the growing strategies; a fixed interval is taken as it is."""

    strategy: RetryStrategy = RetryStrategy.EXPONENTIAL
    interval: timedelta = DEFAULT_INTERVAL
    multiplier: float = DEFAULT_MULTIPLIER
    max_delay: timedelta = DEFAULT_MAX_DELAY
    increment: timedelta = DEFAULT_INTERVAL
    """What `linear` adds per attempt; zero is a constant delay."""

    def delay(self, attempt: int) -> timedelta:
        """How long to wait after the `attempt`-th failure, counted from 1."""
        if attempt < 1:
            raise ValueError(f"attempts are counted from 1, not {attempt}")
        match self.strategy:
            case RetryStrategy.FIXED:
                return self.interval
            case RetryStrategy.LINEAR:
                seconds = self.interval.total_seconds() + self.increment.total_seconds() * (attempt - 1)
            case RetryStrategy.EXPONENTIAL:
                seconds = self.interval.total_seconds() * self._growth(attempt - 1)
        if seconds >= self.max_delay.total_seconds():
            return self.max_delay
        return timedelta(seconds=seconds)

    def _growth(self, steps: int) -> float:
        try:
            return float(self.multiplier**steps)
        except OverflowError:
            return float("inf")

    @classmethod
    def default(cls, environment: Mapping[str, str] | None = None) -> RetryPolicy:
        """The policy that `VELOSTREAM_RETRY_*` variables give, the built-in one where they are silent."""
        found = os.environ if environment is None else environment
        interval = _seconds(found, "VELOSTREAM_RETRY_INTERVAL_SECS", DEFAULT_INTERVAL)
        return cls(
            strategy=_strategy("VELOSTREAM_RETRY_STRATEGY", found.get("VELOSTREAM_RETRY_STRATEGY")),
            interval=interval,
            multiplier=_multiplier(found, "VELOSTREAM_RETRY_MULTIPLIER", DEFAULT_MULTIPLIER),
            max_delay=_seconds(found, "VELOSTREAM_RETRY_MAX_DELAY_SECS", DEFAULT_MAX_DELAY),
            increment=interval,
        )

    @classmethod
    def while_running(cls) -> RetryPolicy:
        """The default policy for what runs: it is running again soon after its trouble has passed."""
        policy = cls.default()
        return replace(policy, max_delay=min(policy.max_delay, LONGEST_WHILE_RUNNING))

    @classmethod
    def at_once(cls) -> RetryPolicy:
        """For what somebody waits for: a lock or a conflict is over in milliseconds, a server is back in seconds."""
        return cls(RetryStrategy.EXPONENTIAL, interval=SHORTLY, multiplier=2, max_delay=LONGEST_AT_ONCE)

    @classmethod
    def from_options(
        cls, options: Options, *, prefix: str = "topic", environment: Mapping[str, str] | None = None
    ) -> RetryPolicy:
        """The policy of `<prefix>.retry.*` options over the environment's defaults."""
        base = cls.default(environment)
        strategy = options.get(f"{prefix}.retry.strategy")
        interval = _duration(options, f"{prefix}.retry.interval", base.interval)
        return cls(
            strategy=base.strategy if strategy is None else _strategy(f"{prefix}.retry.strategy", strategy),
            interval=interval,
            multiplier=_multiplier(options, f"{prefix}.retry.multiplier", base.multiplier),
            max_delay=_duration(options, f"{prefix}.retry.max.delay", base.max_delay),
            increment=_duration(options, f"{prefix}.retry.increment", interval),
        )


class Attempts:
    """Tries at one thing, until the time for all of them is up. For one thread."""

    def __init__(self, policy: RetryPolicy, *, within: timedelta) -> None:
        self._policy = policy
        self._deadline = time.monotonic() + within.total_seconds()
        self.failed = 0
        """How many there were."""

    def pause(self) -> bool:
        """After a failure: wait for the next try; False, without a wait, when the time would be up by then."""
        self.failed += 1
        # Not all who failed together come back together.
        delay = self._policy.delay(self.failed).total_seconds() * random.uniform(0.5, 1)  # noqa: S311 - no secret
        if time.monotonic() + delay > self._deadline:
            return False
        time.sleep(delay)
        return True


def _strategy(name: str, value: str | None) -> RetryStrategy:
    if value is None:
        return RetryStrategy.EXPONENTIAL
    try:
        return RetryStrategy(value.strip().lower())
    except ValueError as error:
        raise OptionError.value(name, value, expected="one of " + ", ".join(RetryStrategy)) from error


def _multiplier(values: Mapping[str, str], name: str, default: float) -> float:
    value = values.get(name)
    if value is None:
        return default
    try:
        number = float(value)
    except ValueError as error:
        raise OptionError.value(name, value, expected="a number of at least 1") from error
    if not 1 <= number < float("inf"):
        raise OptionError.value(name, value, expected="a number of at least 1")
    return number


def _seconds(environment: Mapping[str, str], name: str, default: timedelta) -> timedelta:
    value = environment.get(name)
    if value is None:
        return default
    try:
        return parse_duration(value)
    except ValidationError as error:
        raise OptionError.value(name, value, expected="a number of seconds") from error


def _duration(options: Options, name: str, default: timedelta) -> timedelta:
    return (options.duration(name) or timedelta()) if name in options else default
