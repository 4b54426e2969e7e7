"""Amounts of memory as people write them."""

from __future__ import annotations

import pytest

from velostream.model.size import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1b", 1), (" 1.5 KB ", 1536), ("2MiB", 2 << 20), ("3g", 3 << 30), ("1TB", 1 << 40), ("7 bytes", 7)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "1.5.2MB", "5 XB", "MB"])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="is no amount of memory"):
        parse_size(text)
