"""Tables in memory, their commit sequence and its durable log."""

from velostream.tables.memory.evaluate import CannotCompile, evaluate_expression
from velostream.tables.memory.generation import Changed
from velostream.tables.memory.sequence import Commit, CommitSequence, Part, Pin, WriterState
from velostream.tables.memory.table import MemoryTable

__all__ = [
    "CannotCompile",
    "Changed",
    "Commit",
    "CommitSequence",
    "MemoryTable",
    "Part",
    "Pin",
    "WriterState",
    "evaluate_expression",
]
