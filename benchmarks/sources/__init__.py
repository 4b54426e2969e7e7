"""`sources`: from a source to a table, at what speed, how fresh, and in how much memory."""

from benchmarks.sources.parts import PARTS, run

__all__ = ["PARTS", "run"]
