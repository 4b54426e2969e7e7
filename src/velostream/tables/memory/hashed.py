"""Rows by the hash of their key, for whole batches of keys at once and without an object per key.

An index of most rows, and smaller ones of those that came since: a lookup asks all of them. Rows are found whether they
are still there or not; which of them a reader sees is the reader's to say.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from velostream.tables.memory.chunks import Chunks
from velostream.tables.memory.growable import Integers
from velostream.tables.memory.hash_index import HashIndex, Pairs
from velostream.tables.memory.matching import NULL_HASH, Hashes, hash_rows, mixed, rows_match, text_hash

_GROWTH = 4
"""An index that is not so many times as large as the rows to add is made anew with them."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The index of the rows from one position to another; in memory, or mapped from files."""

    index: HashIndex
    start: int
    end: int
    mapped: bool = False


class HashedKeys:
    """Grows at its end as rows are added. Asking it takes no lock; growing does, and any thread may have it grow."""

    def __init__(self, key: Sequence[str]) -> None:
        self._key = tuple(key)
        self._parts: tuple[_Part, ...] = ()
        self._growing = threading.Lock()

    @staticmethod
    def serves(schema: pa.Schema, key: Sequence[str]) -> bool:
        """Whether keys of these types can be told apart by Arrow."""
        types = [schema.field(name).type for name in key]
        return bool(types) and not any(pa.types.is_nested(type_) or pa.types.is_null(type_) for type_ in types)

    @property
    def end(self) -> int:
        """Rows from this position on are not in it yet."""
        parts = self._parts
        return parts[-1].end if parts else 0

    @property
    def nbytes(self) -> int:
        """Bytes held in memory."""
        return sum(part.index.nbytes for part in self._parts if not part.mapped)

    def spill(self, mapped: Callable[[HashIndex], HashIndex]) -> None:
        """Have files mapped for what is in memory."""
        with self._growing:
            self._parts = tuple(
                part if part.mapped else _Part(mapped(part.index), part.start, part.end, mapped=True)
                for part in self._parts
            )

    def grow(self, chunks: Chunks, length: int) -> None:
        """Take in the rows of the chunks up to a position."""
        if self.end < length:
            with self._growing:
                if self.end < length:
                    self._parts = self._with_rows(chunks, length)

    def _with_rows(self, chunks: Chunks, length: int) -> tuple[_Part, ...]:
        parts, start = list(self._parts), self.end
        hashes = hash_rows(chunks.slice(start, length, self._key).columns)
        numbers = np.int32 if length < np.iinfo(np.int32).max else np.int64
        while parts and parts[-1].end - parts[-1].start < _GROWTH * len(hashes):
            before = parts.pop()
            in_order = np.empty(before.end - before.start, dtype=np.uint64)
            in_order[before.index.positions - before.start] = before.index.hashes()
            hashes = np.concatenate([in_order, hashes])
            start = before.start
        index = HashIndex.of(hashes, np.arange(start, length, dtype=numbers))
        return (*parts, _Part(index, start, length))

    def find(self, keys: Sequence[pa.Array], chunks: Chunks, seen: Callable[[Integers], Any]) -> Pairs:
        """Rows that have one of the keys and are `seen` (a mask of positions), beside the numbers of the keys."""
        candidates = self.pairs(hash_rows(keys), seen)
        rows, positions = candidates.rows, candidates.positions
        if len(positions):
            given = [array.take(pa.array(rows)) for array in keys] if _in_other_order(rows, keys[0]) else keys
            equal = rows_match(chunks.take(positions, self._key).columns, given)
            if not equal.all():
                rows, positions = rows[equal], positions[equal]
        return Pairs(rows, positions)

    def pairs(self, hashes: Hashes, seen: Callable[[Integers], Any]) -> Pairs:
        """Rows that have one of the hashes and are `seen`; of each hash in ascending order. They are to be verified."""
        found = [part.index.find(hashes) for part in self._parts]
        rows = np.concatenate([np.empty(0, dtype=np.int64), *(pairs.rows for pairs in found)])
        positions = np.concatenate([np.empty(0, dtype=np.int64), *(pairs.positions for pairs in found)])
        visible = seen(positions)
        return Pairs(rows, positions) if visible.all() else Pairs(rows[visible], positions[visible])

    def candidates(self, hash_: int, below: int) -> Sequence[int]:
        """Positions with a hash, the newest first; those at or after `below` left out."""
        found: list[int] = []
        for part in reversed(self._parts):
            if part.start < below:
                found += (position for position in reversed(part.index.positions_of(hash_)) if position < below)
        return found


def _in_other_order(rows: Integers, keys: pa.Array) -> bool:
    return len(rows) != len(keys) or not bool((rows == np.arange(len(rows))).all())


def key_hasher(types: Sequence[pa.DataType]) -> Callable[[Hashable], int | None]:
    """From a key in the form of `keys.key_values` to what `hash_rows` gives for it; None for what can't be a key."""
    hashers = [_hasher(type_) for type_ in types]

    def hash_key(key: Any) -> int | None:
        values = (key,) if len(hashers) == 1 else key
        if not isinstance(values, tuple) or len(values) != len(hashers):
            return None
        total = 0
        for hasher, value in zip(hashers, values, strict=True):
            hashed = NULL_HASH if value is None else hasher(value)
            if hashed is None:
                return None
            total = mixed(total + hashed)
        return total

    return hash_key


def _hasher(type_: pa.DataType) -> Callable[[Any], int | None]:
    if pa.types.is_string(type_):
        return lambda value: text_hash(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else None
    if pa.types.is_binary(type_):
        return lambda value: text_hash(value) if isinstance(value, bytes) else None
    if pa.types.is_floating(type_):
        return _float_hash
    if pa.types.is_decimal(type_):
        return _decimal_hash
    return _integer_hash


def _integer_hash(value: Any) -> int | None:
    """Python's 1.0 and True are keys like 1, as in a dict."""
    if not isinstance(value, int):
        if not isinstance(value, float) or not value.is_integer():
            return None
        value = int(value)
    return mixed(value) if -(1 << 63) <= value < 1 << 63 else None


def _decimal_hash(value: Any) -> int | None:
    if not isinstance(value, int):
        return None
    return mixed(mixed(value & _WORD) + (value >> 64))


def _float_hash(value: Any) -> int | None:
    if not isinstance(value, int | float):
        return None
    number = float("nan") if value != value else float(value) + 0.0  # noqa: PLR0124 - only NaN differs from itself
    return mixed(struct.unpack("<Q", struct.pack("<d", number))[0])


_WORD = (1 << 64) - 1
