"""Amounts of memory as people write them: `512MB`, `1.5 GiB`, `4096`."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt]?)(?:i?b)?|bytes?)", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes; a K is 1,024 of them, with or without an i. No unit means bytes. `ValueError` for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'"{text}" is no amount of memory')
    return int(float(found[1]) * _UNITS[(found[2] or "").lower()])
