"""Tables in memory, their commit sequence and its durable log."""

from velostream.tables.memory.sequence import Changed, Commit, CommitSequence, Part, Pin, WriterState
from velostream.tables.memory.table import MemoryTable

__all__ = ["Changed", "Commit", "CommitSequence", "MemoryTable", "Part", "Pin", "WriterState"]
