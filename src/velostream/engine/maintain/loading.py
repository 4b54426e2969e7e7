"""Loads that are committed in pieces, since what a source holds may be more than should be in memory at once.

Until the last piece is committed the position is one with a mark, from which nothing can be read on: what is begun
after a crash finds it, empties the table and loads anew. Nobody is to read the table before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from velostream.model.change import Epoch, Mode, Write
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.tables.base import Table
    from velostream.tables.memory.sequence import WriterState

ROWS_AT_ONCE = 100_000
"""About how many rows one commit takes in, unless `max.rows.per.trigger` says otherwise."""
_MARK = {"loading": True}
"""What the position of all pieces but the last has."""


class Attempt:
    """One attempt at a load. Its first piece empties the table where an earlier one has left some."""

    def __init__(self, table: Table, *, is_another: bool) -> None:
        """`is_another`: an earlier one has committed pieces, and not its last; see `is_loading`."""
        self._table = table
        self._must_empty = is_another

    def part(
        self,
        writes: Sequence[Write],
        position: Mapping[str, Any],
        *,
        epoch: Epoch,
        is_last: bool,
        beside: Sequence[tuple[Table, Write]] = (),
    ) -> Part:
        """The next piece, to be committed before another one is asked for; where that fails the attempt is over."""
        before = [_emptying(self._table)] if self._must_empty else []
        self._must_empty = False
        written = [(self._table, write) for write in (*before, *writes)]
        return Part(writes=[*written, *beside], epoch=epoch, position={**position, **({} if is_last else _MARK)})


def is_loading(known: WriterState | None) -> bool:
    """Whether a load was begun that is not complete, of which the table holds rows."""
    if known is None or not isinstance(known.position, Mapping):
        return False
    # Positions may be offsets by the addresses of sources; none of them is True.
    return known.position.get("loading") is True


def _emptying(table: Table) -> Write:
    return Write(Mode.REPLACE, table.schema.arrow.empty_table())
