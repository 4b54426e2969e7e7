"""The options that say how much a cache keeps, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from velostream.errors import OptionError
from velostream.model.options import Options


@dataclass(frozen=True, slots=True)
class CacheLimits:
    max_size: int
    """In rows."""
    ttl: timedelta | None
    """How long after it was written a row is kept; None: until it is evicted."""

    @classmethod
    def of(cls, options: Options, *, prefix: str = "") -> CacheLimits:
        """From `max_size` and `ttl` under a prefix; `OptionError` for a size that keeps nothing."""
        name = f"{prefix}max_size"
        max_size = options.integer(name)
        if not max_size:
            raise OptionError.value(name, options.text(name) or "", expected="a whole number of rows, at least 1")
        return cls(max_size, options.duration(f"{prefix}ttl"))
