"""Events of MySQL's log put together: what whole transactions did to one table."""

from __future__ import annotations

from typing import Any

from velostream.sources.capture import ChangedRows
from velostream.sources.mysql_rows import RowReader, is_told
from velostream.sources.mysql_statements import Effect, LoggedTable

_QUERY, _ROTATE, _XID, _XA_PREPARE, _MARIADB_GTID, _PARTIAL_UPDATE = 2, 4, 16, 38, 162, 39
_WRITE_ROWS, _UPDATE_ROWS, _DELETE_ROWS = frozenset({23, 30}), frozenset({24, 31}), frozenset({25, 32})
_STANDALONE = 1
"""Of a transaction of MariaDB: the event that follows is all of it."""
_UNREADABLE_EVENTS = {
    _PARTIAL_UPDATE: "only parts of documents are logged; SET GLOBAL binlog_row_value_options = ''",
    26: "the server has lost a part of its log itself",
    40: "transactions are compressed; SET GLOBAL binlog_transaction_compression = OFF",
    **dict.fromkeys(range(165, 172), "events are compressed; SET GLOBAL log_bin_compress = OFF"),
}


class UntoldError(Exception):
    """The log doesn't tell, or no longer tells, what became of the table's rows; says why."""


class TransactionDecoder:
    """Takes events one by one, and keeps what whole transactions did. Raises `UntoldError`."""

    def __init__(self, table: LoggedTable, *, key: tuple[str, ...], columns: tuple[str, ...]) -> None:
        """`columns` are those whose values must be told; `key` is empty for a table whose rows are known by all their
        values.
        """
        self._table = table
        self._key = key
        self._columns = columns
        self._in_transaction = False
        self._described: Any = None
        self._reader = RowReader(())
        """For the table as it is `described`."""
        self._pieces = [ChangedRows(truncated=False)]
        self._committed = (1, 0)
        """How many pieces there were at the end of the last transaction, and how many changes in the last of them."""
        self.count = 0

    @property
    def pieces(self) -> list[ChangedRows]:
        return [piece for piece in self._pieces if piece.signs or piece.truncated]

    def take(self, event: Any) -> bool:
        """Take an event in; true when a transaction ends with it."""
        code = event.event_type
        if code in _WRITE_ROWS | _UPDATE_ROWS | _DELETE_ROWS:
            self._take_rows(event)
            return False
        if code == _QUERY:
            return self._take_statement(event)
        if code == _MARIADB_GTID:
            self._in_transaction = not event.flags & _STANDALONE
            return False
        if code not in (_XID, _XA_PREPARE, _ROTATE):
            if code in _UNREADABLE_EVENTS:
                raise UntoldError(_UNREADABLE_EVENTS[code])
            return False
        if code == _XA_PREPARE and self._has_changes and not event.one_phase:
            raise UntoldError("a transaction of several servers (XA) is prepared; whether it commits isn't known")
        if code == _ROTATE:
            # What was begun in a file that ended belongs to a server that died.
            self.drop()
        self._in_transaction = False
        return True

    def commit(self) -> None:
        """What the last transaction did is taken over."""
        self._committed = self._taken
        self.count = sum(len(piece.signs) + piece.truncated for piece in self._pieces)

    def drop(self) -> None:
        """What was taken in since the last transaction is taken back."""
        pieces, rows = self._committed
        del self._pieces[pieces:]
        self._pieces[-1].cut(rows)

    @property
    def _taken(self) -> tuple[int, int]:
        return len(self._pieces), len(self._pieces[-1].signs)

    @property
    def _has_changes(self) -> bool:
        """Whether the transaction at hand is about the table."""
        return self._taken != self._committed

    def _take_statement(self, event: Any) -> bool:
        statement = event.query.strip()
        first, _, rest = statement.upper().partition(" ")
        if first == "BEGIN" or statement.upper().startswith("XA START"):
            self._in_transaction = True
            return False
        if first in ("COMMIT", "ROLLBACK") and not rest.strip():
            if first == "ROLLBACK":
                self.drop()
            self._in_transaction = False
            return True
        if first == "ROLLBACK" and self._has_changes:
            raise UntoldError("a part of a transaction was taken back, and which one isn't told")
        match self._table.effect_of(statement, schema=event.schema.decode()):
            case Effect.EMPTIED:
                self._pieces.append(ChangedRows(truncated=True))
            case Effect.UNTOLD:
                # No more of it, as values may stand in it.
                raise UntoldError(f"what this did to its rows isn't told: {' '.join(statement.split()[:4])} …")
        return not self._in_transaction

    def _take_rows(self, event: Any) -> None:
        described = event.table_map[event.table_id]
        if not described.column_name_flag:
            raise UntoldError("events don't name their columns; SET GLOBAL binlog_row_metadata = FULL")
        bitmaps = [event.columns_present_bitmap]
        if event.event_type in _UPDATE_ROWS:
            bitmaps.append(event.columns_present_bitmap2)
        for at, column in enumerate(described.columns):
            if column.name in self._columns and not all(is_told(bitmap, at) for bitmap in bitmaps):
                raise UntoldError("events don't tell whole rows; SET GLOBAL binlog_row_image = FULL")
        if self._described is not described:
            self._described, self._reader = described, RowReader(described.columns)
        piece, images = self._pieces[-1], self._reader.images(event, bitmaps)
        if event.event_type in _UPDATE_ROWS:
            for before, after in zip(images, images, strict=True):
                if not self._key or any(before[name] != after[name] for name in self._key):
                    piece.add(self._old(before), -1)
                piece.add(after, 1)
            return
        is_new = event.event_type in _WRITE_ROWS
        for values in images:
            piece.add(values if is_new else self._old(values), 1 if is_new else -1)

    def _old(self, values: dict[str, Any]) -> dict[str, Any]:
        """What says which row is gone."""
        return {name: values[name] for name in self._key} if self._key else values


def place_after(event: Any, file: str) -> tuple[str, int]:
    """The place after an event that ends a transaction."""
    if event.event_type == _ROTATE:
        return event.next_binlog, event.position
    return file, event.packet.log_pos
