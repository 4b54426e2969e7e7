"""Tables: `base` is the seam; one module or package per kind."""

from velostream.tables.base import KeyValue, Row, Snapshot, Table, TableCapabilities, TableSpec

__all__ = ["KeyValue", "Row", "Snapshot", "Table", "TableCapabilities", "TableSpec"]
