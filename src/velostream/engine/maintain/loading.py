"""Loads that are committed in pieces, since what a source holds may be more than should be in memory at once.

Until the last piece is committed the position is one with a mark, from which nothing can be read on: what is begun
after a crash finds it, empties the table and loads anew. Nobody is to read the table before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from velostream.model.change import Mode, Write

if TYPE_CHECKING:
    from velostream.tables.base import Table
    from velostream.tables.memory.sequence import WriterState

ROWS_AT_ONCE = 100_000
"""About how many rows one commit takes in, unless `max.rows.per.trigger` says otherwise."""
MARK = {"loading": True}
"""What the position of all pieces but the last has."""


def is_loading(known: WriterState | None) -> bool:
    """Whether a load was begun that is not complete, of which the table holds rows."""
    if known is None or not isinstance(known.position, Mapping):
        return False
    # Positions may be offsets by the addresses of sources; none of them is True.
    return known.position.get("loading") is True


def emptying(table: Table) -> Write:
    """What comes before the first piece where an earlier load has left some."""
    return Write(Mode.REPLACE, table.schema.arrow.empty_table())
