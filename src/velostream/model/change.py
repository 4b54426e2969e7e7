"""What a commit carries: writes, epochs, and the signed changes readers get back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Container

    from velostream.model.schema import Schema

CHANGE = "_change"
"""Name of the sign column of a change batch: int8, +1 the row is now there, -1 it is gone."""

ORIGIN = "_origin"
"""Hidden column of a folded source, text: which part of it (a file) a row came from, or which record it is the newest
of."""

UNCHANGED = "_unchanged"
"""Name of the column of upserts that don't tell all values: a list of the columns that keep the values they have, NULL
where the record tells all. A tombstone with an empty list is the first half of a key's change: what the record after it
keeps is of that row."""

_OF_THE_ENGINE = (CHANGE, ORIGIN, UNCHANGED)

JsonValue = Any
"""What `json.dumps` takes: an offset or a position."""


class Mode(StrEnum):
    """How the rows of a write meet what the table holds."""

    APPEND = "append"
    """Add the rows; in a keyed table an existing key is a `duplicate-key` error."""
    UPSERT = "upsert"
    """The later row of a key wins, within the batch too; a table without a key appends."""
    DELETE = "delete"
    """Rows carry the key columns (keyed table) or all columns (bag: one row each is removed)."""
    CHANGES = "changes"
    """Rows carry the sign column; -1 removes one equal row (by key in a keyed table), +1 adds.
    Applied in order per key, so an update is -1 then +1."""
    REPLACE = "replace"
    """The rows are the whole new content (of `scope`); the table commits the minimal difference."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a table a REPLACE speaks for: rows whose `column` equals `value`."""

    column: str
    value: Any


@dataclass(frozen=True, slots=True)
class Write:
    """Rows for one table and how to apply them."""

    mode: Mode
    rows: pa.Table
    scope: Scope | None = None
    staged: tuple[str, ...] = ()
    """Further rows, which are in the table's store already: what its stager gave for them. Not with every mode."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Number of a commit by one writer; the same or an older number applied again changes nothing."""

    writer: str
    number: int


@dataclass(frozen=True, slots=True)
class ChangeBatch:
    """The net change of a table up to `version`: its columns plus `_change`."""

    version: int
    arrow: pa.Table


def may_be_added(name: str, schema: Schema, *, system: Container[str] = ()) -> bool:
    """Whether a field that comes later may become a column: it is none yet, and isn't called like a column of the
    engine's own or one of the source's `system` columns, which would then be there twice.
    """
    lower = name.lower()
    return schema.find(name) is None and lower not in _OF_THE_ENGINE and lower not in system


def signed(rows: pa.Table, sign: int) -> pa.Table:
    """The rows as changes of one sign."""
    return rows.append_column(CHANGE, pa.repeat(pa.scalar(sign, pa.int8()), rows.num_rows))
