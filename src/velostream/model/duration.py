"""Durations as people write them: `500ms`, `2.5s`, `5 minutes`, `INTERVAL '5' MINUTE`; a bare number is seconds."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from velostream.errors import ValidationError

_MICROSECONDS: dict[str, int] = {
    **dict.fromkeys(("ms", "millis", "milliseconds", "millisecond"), 1_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000_000),
}
_UNITS = "ms/millis/milliseconds, s/sec/secs/second(s), m/min/mins/minute(s), h/hr/hrs/hour(s), d/day(s)"
_RENDERED = (("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000))

_PLAIN = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*(?P<unit>[a-z]*)", re.IGNORECASE)
_INTERVAL = re.compile(
    r"interval\s+(?P<quote>['\"]?)(?P<number>[^'\"]+?)(?P=quote)(?:\s+(?P<unit>[a-z]+))?", re.IGNORECASE
)


def parse_duration(text: str) -> timedelta:
    """The length of time a text stands for, exact to the microsecond; `ValidationError` with the units otherwise."""
    written = text.strip()
    interval = _INTERVAL.fullmatch(written)
    plain = f"{interval['number'].strip()} {interval['unit'] or ''}".strip() if interval else written
    match = _PLAIN.fullmatch(plain)
    if match is None or (match["unit"] and match["unit"].lower() not in _MICROSECONDS):
        raise _not_understood(text)
    microseconds = Fraction(match["number"]) * _MICROSECONDS[match["unit"].lower() or "s"]
    try:
        return timedelta(microseconds=round(microseconds))
    except OverflowError as error:
        raise _not_understood(text) from error


def render_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` reads back as the same duration."""
    microseconds = duration // timedelta(microseconds=1)
    if microseconds == 0:
        return "0s"
    for unit, length in _RENDERED:
        if microseconds % length == 0:
            return f"{microseconds // length}{unit}"
    whole, rest = divmod(microseconds, 1_000)
    return f"{whole}.{rest:03d}".rstrip("0") + "ms"


def _not_understood(text: str) -> ValidationError:
    return ValidationError(
        f'duration "{text}" is not understood',
        detail=f"units: {_UNITS}; no unit means seconds",
        hint="write a number and a unit, such as 500ms, 30s, 2.5s, 5m, 1h, 7d",
        code="invalid-duration",
    )
