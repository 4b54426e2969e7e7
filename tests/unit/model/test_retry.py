import time
from datetime import timedelta

import pytest

from velostream.errors import OptionError
from velostream.model.options import Option, Options
from velostream.model.retry import Attempts, RetryPolicy, RetryStrategy


def seconds(policy, attempts):
    return [policy.delay(attempt).total_seconds() for attempt in attempts]


def test_fixed_stays():  # B3
    policy = RetryPolicy(strategy=RetryStrategy.FIXED, interval=timedelta(seconds=5))
    assert seconds(policy, (1, 2, 3)) == [5, 5, 5]


def test_exponential_doubles_up_to_the_limit():  # B3
    policy = RetryPolicy(interval=timedelta(seconds=1), multiplier=2, max_delay=timedelta(seconds=60))
    assert seconds(policy, range(1, 9)) == [1, 2, 4, 8, 16, 32, 60, 60]


def test_exponential_keeps_fractions():  # B3
    policy = RetryPolicy(interval=timedelta(seconds=2), multiplier=1.5)
    assert seconds(policy, (1, 2, 3, 4)) == [2, 3, 4.5, 6.75]


def test_linear_adds_up_to_the_limit():  # B3
    policy = RetryPolicy(
        strategy=RetryStrategy.LINEAR,
        interval=timedelta(seconds=2),
        increment=timedelta(seconds=3),
        max_delay=timedelta(seconds=20),
    )
    assert seconds(policy, range(1, 9)) == [2, 5, 8, 11, 14, 17, 20, 20]


def test_linear_without_increment_is_constant():  # B3
    policy = RetryPolicy(strategy=RetryStrategy.LINEAR, interval=timedelta(seconds=2), increment=timedelta())
    assert seconds(policy, (1, 50)) == [2, 2]


@pytest.mark.parametrize("strategy", list(RetryStrategy))
def test_attempt_one_thousand_does_not_overflow(strategy):  # B3
    policy = RetryPolicy(strategy=strategy, multiplier=1e9, max_delay=timedelta(hours=1))
    assert policy.delay(1_000) <= timedelta(hours=1)
    assert policy.delay(1_000_000) <= timedelta(hours=1)


def test_delays_below_a_second_are_honoured():  # B3
    policy = RetryPolicy(interval=timedelta(milliseconds=50), multiplier=2)
    assert seconds(policy, (1, 2)) == [0.05, 0.1]


def test_attempts_are_counted_from_one():
    with pytest.raises(ValueError, match="from 1"):
        RetryPolicy().delay(0)


def test_the_environment_gives_the_defaults():
    policy = RetryPolicy.default(
        {
            "VELOSTREAM_RETRY_STRATEGY": "Linear",
            "VELOSTREAM_RETRY_INTERVAL_SECS": "0.5",
            "VELOSTREAM_RETRY_MULTIPLIER": "3",
            "VELOSTREAM_RETRY_MAX_DELAY_SECS": "7",
        }
    )
    assert policy == RetryPolicy(
        strategy=RetryStrategy.LINEAR,
        interval=timedelta(milliseconds=500),
        multiplier=3,
        max_delay=timedelta(seconds=7),
        increment=timedelta(milliseconds=500),
    )
    assert RetryPolicy.default({}) == RetryPolicy()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STRATEGY", "sometimes"),
        ("INTERVAL_SECS", "soon"),
        ("MULTIPLIER", "0.5"),
        ("MULTIPLIER", "x"),
        ("MAX_DELAY_SECS", "-1"),
    ],
)
def test_nonsense_in_the_environment_names_the_variable(name, value):
    with pytest.raises(OptionError, match=f"VELOSTREAM_RETRY_{name}"):
        RetryPolicy.default({f"VELOSTREAM_RETRY_{name}": value})


def test_options_win_over_the_environment():
    known = [
        Option(f"topic.retry.{name}", "") for name in ("strategy", "interval", "multiplier", "max.delay", "increment")
    ]
    options = Options({"topic.retry.strategy": "fixed", "topic.retry.interval": "0s"}, known)
    policy = RetryPolicy.from_options(options, environment={"VELOSTREAM_RETRY_INTERVAL_SECS": "9"})
    assert policy.strategy is RetryStrategy.FIXED
    assert policy.delay(3) == timedelta()


def test_attempts_end_when_their_time_would_be_up():
    fast = RetryPolicy(RetryStrategy.FIXED, interval=timedelta(microseconds=1))
    attempts = Attempts(fast, within=timedelta(seconds=30))
    assert (attempts.pause(), attempts.pause(), attempts.failed) == (True, True, 2)
    began = time.monotonic()
    hopeless = Attempts(RetryPolicy(RetryStrategy.FIXED, interval=timedelta(hours=1)), within=timedelta(seconds=30))
    assert not hopeless.pause()
    assert time.monotonic() - began < 10
