"""The index by hash that the memory table has too."""

from velostream.tables.memory.hash_index import HashIndex, Pairs, TooManyPairsError

__all__ = ["HashIndex", "Pairs", "TooManyPairsError"]
