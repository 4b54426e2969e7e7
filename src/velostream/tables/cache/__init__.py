"""Caches: a table that keeps the rows used last, and a layer that keeps those of a table in a slower store."""

from velostream.tables.cache.layer import LAYER_OPTIONS, CachedTable, commit_together, open_table
from velostream.tables.cache.table import CacheTable

__all__ = ["LAYER_OPTIONS", "CacheTable", "CachedTable", "commit_together", "open_table"]
