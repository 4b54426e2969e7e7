"""The feed behind `memory://name`: rows given by the program itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from velostream.errors import ValidationError
from velostream.model.change import CHANGE
from velostream.model.rows import rows_to_arrow
from velostream.model.schema import Schema
from velostream.model.spool import Spool


class MemoryFeed:
    """Append rows; every statement on `memory://name` sees them. On a durable connection they survive a restart.

    May be used from many threads; rows of one call stay together and in order.
    """

    def __init__(self, name: str, spool: Spool, on_append: Callable[[], None]) -> None:
        self.name = name
        self._spool = spool
        self._on_append = on_append
        self._lock = threading.Lock()

    def append(self, rows: Iterable[Mapping[str, Any]] | Mapping[str, Any] | pa.Table) -> None:
        """Add rows: dictionaries, an Arrow table or record batch, or a pandas frame."""
        if isinstance(rows, Mapping):
            rows = [rows]
        with self._lock:
            table = rows_to_arrow(rows, self._schema(), further=True)
            if table.num_rows:
                self._spool.append(table)
        self._on_append()

    def delete(self, keys: Iterable[Any] | Mapping[str, Any]) -> None:
        """Say that keys are gone. Each is a mapping of the key columns; statements that keep the feed by key
        remove the row, others take no notice.
        """
        if isinstance(keys, Mapping):
            keys = [keys]
        rows = list(keys)
        if not all(isinstance(row, Mapping) for row in rows):
            raise ValidationError(
                f'keys deleted from feed "{self.name}" must name their columns', hint='feed.delete([{"id": 1}])'
            )
        with self._lock:
            table = rows_to_arrow(rows, self._schema())
            table = table.append_column(CHANGE, pa.repeat(pa.scalar(-1, pa.int8()), table.num_rows))
            self._spool.append(table)
        self._on_append()

    def close(self) -> None:
        """The end of the stream: nothing can be appended any more."""
        self._spool.close()
        self._on_append()

    def _schema(self) -> Schema | None:
        """Columns of what was appended before; later rows are read the same way."""
        found = self._spool.schema()
        return (
            None if found is None else Schema.from_arrow(pa.schema([field for field in found if field.name != CHANGE]))
        )
