"""Options by name: which are known, and which of two wins."""

from __future__ import annotations

from collections.abc import Sequence

from velostream.sql.statements import OptionValue


def merge_options(nearer: Sequence[OptionValue], farther: Sequence[OptionValue]) -> tuple[OptionValue, ...]:
    """Options of a source and of its statement as one; the nearer wins. Sorted, so that equal ones compare equal."""
    merged = {option.name.lower(): option for option in farther} | {option.name.lower(): option for option in nearer}
    return tuple(merged[name] for name in sorted(merged))


def covers(known: Sequence[str], name: str) -> bool:
    """Whether a list of option names, `prefix.*` among them, knows a name."""
    return any(
        name == candidate.lower() or (candidate.endswith(".*") and name.startswith(candidate[:-1].lower()))
        for candidate in known
    )
