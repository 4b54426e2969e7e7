"""Tables in relational databases: everything they have in common; a kind adds its dialect."""

from velostream.tables.relational.base import RELATIONAL_OPTIONS, RelationalTable
from velostream.tables.relational.dialect import Dialect

__all__ = ["RELATIONAL_OPTIONS", "Dialect", "RelationalTable"]
