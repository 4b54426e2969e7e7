"""Messages of PostgreSQL's logical decoding plug-in `pgoutput`, protocol version 1, as changes of one table.

Values are texts, as the types' output functions write them. Of an update PostgreSQL leaves out large values that it
didn't touch, unless the table's replica identity is FULL; such columns are named, see `Change.unchanged`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from velostream.sources.capture import ChangedRows

_TEXT, _NULL, _UNCHANGED = b"tnu"
_BEGIN, _COMMIT, _RELATION, _INSERT, _UPDATE, _DELETE, _TRUNCATE = b"BCRIUDT"
_OLD_KEY, _OLD_ROW = b"KO"
_CHANGING = frozenset((_RELATION, _INSERT, _UPDATE, _DELETE, _TRUNCATE))

_YEAR_2000 = 946_684_800
"""PostgreSQL counts time from there."""
_begin = struct.Struct(">xQqI").unpack_from
_commit = struct.Struct(">xBQQq").unpack_from
_relation_id = struct.Struct(">xI").unpack_from
_count = struct.Struct(">H").unpack_from
_length = struct.Struct(">I").unpack_from
_truncate = struct.Struct(">xIB").unpack_from


@dataclass(frozen=True)
class Decoded:
    """What a piece of the log says about one table."""

    pieces: list[ChangedRows]
    end: int
    """The position after the last transaction in it; 0 when there was none."""
    committed_at: float = 0.0
    """When that one was committed by the server's clock, in seconds since 1970."""


class PgOutputDecoder:
    """Decodes messages of whole transactions. Remembers nothing between two calls: each piece names its tables anew."""

    def __init__(self, *, schema: str, table: str, key: tuple[str, ...]) -> None:
        """`key` is empty for a table whose rows are known by all their values."""
        self._name = (schema.encode(), table.encode())
        self._key = key

    def decode(
        self, messages: Iterable[bytes], *, after: int, until: int | None = None, is_known: Callable[[int], bool]
    ) -> Decoded:
        """Changes of transactions that end after a position and not after another, and are not `is_known` by their
        32-bit number.
        """
        relations: dict[int, list[str] | None] = {}
        pieces = [ChangedRows(truncated=False)]
        waiting: list[bytes] = []
        taken = True
        end, committed_at = 0, 0.0
        for message in messages:
            kind = message[0]
            if kind == _BEGIN:
                waiting = []
                taken = not is_known(_begin(message)[2])
            elif kind == _COMMIT:
                _, _, committed, microseconds = _commit(message)
                if until is not None and committed > until:
                    break
                end, committed_at = committed, microseconds / 1e6 + _YEAR_2000
                if not taken or end <= after:
                    # Tables are told once, possibly within a transaction that is passed over.
                    waiting = [one for one in waiting if one[0] == _RELATION]
                self._apply(waiting, relations, pieces)
                waiting = []
            elif kind in _CHANGING:
                waiting.append(message)
        return Decoded([piece for piece in pieces if piece.signs or piece.truncated], end, committed_at)

    def _apply(self, messages: list[bytes], relations: dict[int, list[str] | None], pieces: list[ChangedRows]) -> None:
        for message in messages:
            kind = message[0]
            if kind == _RELATION:
                number, columns = self._relation(message)
                relations[number] = columns
                continue
            if kind == _TRUNCATE:
                count = _truncate(message)[0]
                numbers = struct.unpack_from(f">{count}I", message, 6)
                if any(relations.get(number) is not None for number in numbers):
                    pieces.append(ChangedRows(truncated=True))
                continue
            names = relations.get(_relation_id(message)[0])
            if names is None:
                continue
            rows = pieces[-1]
            if kind == _INSERT:
                new, _, _ = _tuple(message, 6, names)
                rows.add(new, 1)
            elif kind == _DELETE:
                old, _, _ = _tuple(message, 6, names)
                rows.add(old, -1)
            else:
                self._update(message, names, rows)

    def _update(self, message: bytes, names: list[str], rows: ChangedRows) -> None:
        position = 5
        old: dict[str, bytes | None] | None = None
        whole = message[position] == _OLD_ROW
        if message[position] in (_OLD_KEY, _OLD_ROW):
            old, _, position = _tuple(message, position + 1, names)
        new, unchanged, _ = _tuple(message, position + 1, names)
        if old is not None:
            # A key is always told in full, even if it is large and wasn't touched.
            told = [name for name in unchanged if whole or name in self._key]
            new.update({name: old[name] for name in told})
            unchanged = [name for name in unchanged if name not in told]
        moved = old is not None and (not self._key or any(old[name] != new[name] for name in self._key))
        if moved and old is not None:
            if unchanged:
                rows.unchanged[len(rows.signs)] = []
            rows.add(old, -1)
        if unchanged:
            rows.unchanged[len(rows.signs)] = unchanged
        rows.add(new, 1)

    def _relation(self, message: bytes) -> tuple[int, list[str] | None]:
        """The number of a table and its columns; None for one that isn't ours."""
        number = _relation_id(message)[0]
        schema_end = message.index(0, 5)
        name_end = message.index(0, schema_end + 1)
        # The schema pg_catalog is sent as an empty name.
        if (message[5:schema_end] or b"pg_catalog", message[schema_end + 1 : name_end]) != self._name:
            return number, None
        count = _count(message, name_end + 2)[0]
        position = name_end + 4
        names = []
        for _ in range(count):
            end = message.index(0, position + 1)
            names.append(message[position + 1 : end].decode())
            position = end + 9
        return number, names


def _tuple(message: bytes, position: int, names: list[str]) -> tuple[dict[str, bytes | None], list[str], int]:
    """Values by name, the columns that keep theirs, and where the message goes on."""
    values: dict[str, bytes | None] = {}
    unchanged: list[str] = []
    position += 2
    for name in names:
        kind = message[position]
        position += 1
        if kind == _TEXT:
            start = position + 4
            position = start + _length(message, position)[0]
            values[name] = message[start:position]
        else:
            values[name] = None
            if kind == _UNCHANGED:
                unchanged.append(name)
    return values, unchanged, position
