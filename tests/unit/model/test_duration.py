from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velostream.errors import ValidationError
from velostream.model.duration import parse_duration, render_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("1h", 3600),
        ("500ms", 0.5),
        ("2.5s", 2.5),
        ("1.5m", 90),
        ("1.5h", 5400),
        ("24h", 86_400),
        ("7d", 604_800),
        ("0", 0),
        ("0s", 0),
        (" 30s ", 30),
        ("30 s", 30),
        ("30 seconds", 30),
        ("5 minutes", 300),
        ("1 hour", 3600),
        ("2 days", 172_800),
        ("1.001s", 1.001),
        ("42", 42),
        ("10 SECS", 10),
        ("3Hrs", 10_800),
        ("250 millis", 0.25),
        ("250 Milliseconds", 0.25),
        ("5 mins", 300),
        ("1 sec", 1),
        ("1 min", 60),
        ("1 hr", 3600),
        ("1 day", 86_400),
        ("INTERVAL '5' MINUTE", 300),
        ("interval 90 seconds", 90),
        ("INTERVAL '2 hours'", 7200),
    ],
)
def test_durations_are_read_as_written(text, seconds):  # B1
    assert parse_duration(text) == timedelta(seconds=seconds)


def test_a_tenth_of_a_millisecond_is_a_hundred_microseconds():  # B1
    assert parse_duration("0.1ms") == timedelta(microseconds=100)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "-5s",
        "abc123",
        "1.2.3s",
        "s5",
        "5ss",
        "1 fortnight",
        "١s",
        "INTERVAL",
        "INTERVAL '' DAY",
        "9" * 30 + "d",
    ],
)
def test_anything_else_is_refused_with_the_units(text):  # B2
    with pytest.raises(ValidationError) as caught:
        parse_duration(text)
    assert "ms/millis" in caught.value.detail
    assert caught.value.code == "invalid-duration"


@given(st.timedeltas(min_value=timedelta(), max_value=timedelta(days=3650)))
def test_a_rendered_duration_is_read_back(duration):
    assert parse_duration(render_duration(duration)) == duration


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (0, "0s"),
        (300_000_000, "5m"),
        (90_000_000, "90s"),
        (2_500_000, "2500ms"),
        (100, "0.1ms"),
        (86_400_000_000, "1d"),
    ],
)
def test_the_largest_whole_unit_is_shown(microseconds, text):
    assert render_duration(timedelta(microseconds=microseconds)) == text
