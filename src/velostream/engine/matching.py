"""Hashes and equality of rows, as the memory table has them."""

from velostream.tables.memory.matching import (
    Column,
    Hashes,
    Integers,
    Mask,
    as_array,
    hash_rows,
    rows_match,
    rows_without_null,
)

__all__ = ["Column", "Hashes", "Integers", "Mask", "as_array", "hash_rows", "rows_match", "rows_without_null"]
