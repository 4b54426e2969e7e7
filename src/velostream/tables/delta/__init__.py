"""Tables in Delta Lake, read and written without Spark."""

from velostream.tables.delta.table import DeltaTable

__all__ = ["DeltaTable"]
