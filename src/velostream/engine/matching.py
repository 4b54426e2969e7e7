"""Hashes and equality of rows, as the memory table has them."""

from velostream.tables.memory.matching import (
    Hashes,
    Integers,
    as_array,
    hash_rows,
    rows_match,
    rows_without_null,
)

__all__ = ["Hashes", "Integers", "as_array", "hash_rows", "rows_match", "rows_without_null"]
