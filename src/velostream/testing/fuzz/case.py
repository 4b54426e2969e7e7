"""A case: steps that make tables and views, change what they read, and say when to look. Plain data, to be replayed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from velostream.testing.fuzz.changes import Change, Row, TableSpec
from velostream.testing.fuzz.values import ColumnType

LOOKUP = "velostream.lookup"
"""The setting that says how tables are read for the rows of a stream."""


@dataclass(frozen=True)
class FeedSpec:
    """A memory feed. With `folded` that is the table which keeps its newest row per id."""

    name: str
    columns: Mapping[str, ColumnType]
    folded: str | None = None


@dataclass(frozen=True)
class ViewSpec:
    """A view: the query it is made of, and what Spark is asked instead."""

    name: str
    ours: str
    sparks: str
    """The same over all that its inputs hold."""
    feed: FeedSpec | None = None
    """The stream it reads."""
    per_batch: str | None = None
    """Over a stream: what each batch gives with the tables as they are then."""
    of_batches: str | None = None
    """Over a stream that is aggregated: what is made of that, which is named `batches`."""
    options: str = ""
    """What follows the query."""
    timed: bool = False
    """Over streams by event time: what it gives over all rows so far."""
    lookup: str | None = None
    """What `velostream.lookup` is set to for it; None: it is left as it is."""

    @property
    def ddl(self) -> str:
        return f"CREATE TABLE {self.name} AS {self.ours}{self.options}"


@dataclass(frozen=True)
class CreateTable:
    table: TableSpec


@dataclass(frozen=True)
class CreateFolded:
    feed: FeedSpec

    @property
    def ddl(self) -> str:
        options = "'changelog' = 'upsert', 'key' = 'id'"
        return f"CREATE TABLE {self.feed.folded} AS SELECT * FROM memory://{self.feed.name} WITH ({options})"


@dataclass(frozen=True)
class CreateView:
    view: ViewSpec


@dataclass(frozen=True)
class Commit:
    """Changes made as one; several are a transaction."""

    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Append:
    """Rows appended to a feed at once."""

    feed: FeedSpec
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Forget:
    """Keys that a folded feed says are gone."""

    feed: FeedSpec
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Restart:
    """Everything is closed and opened again."""


@dataclass(frozen=True)
class Look:
    """Every view is compared with its query."""


@dataclass(frozen=True)
class LookBack:
    """A view is compared at a version between the first look and now: it was what its query gave at some time."""

    view: str
    part: float
    """How far back, from 0 for now to 1."""


Step = CreateTable | CreateFolded | CreateView | Commit | Append | Forget | Restart | Look | LookBack


@dataclass(frozen=True)
class Case:
    """What one seed gives."""

    seed: int
    steps: tuple[Step, ...]
    settings: tuple[tuple[str, str], ...] = ()
    """Of the connection: the general ways instead of the fast ones, now and then."""

    @property
    def script(self) -> str:
        """The case in the language of `.view` scripts."""
        lines = [", ".join([f"# seed {self.seed}", *(f"{name} = {value}" for name, value in self.settings)])]
        for step in self.steps:
            lines += _lines(step)
        return "\n".join(lines)


def _lines(step: Step) -> Sequence[str]:
    match step:
        case CreateTable(table):
            return [f"> {table.ddl};"]
        case CreateFolded() as folded:
            return [f"> {folded.ddl};"]
        case CreateView(view):
            way = [] if view.lookup is None else [f"> SET {LOOKUP} = {view.lookup};"]
            return [*way, f"> {view.ddl};"]
        case Commit((change,)):
            return [f"> {change.sql};"]
        case Commit(changes):
            return ["> BEGIN;", *(f"> {change.sql};" for change in changes), "> COMMIT;"]
        case Append(feed, rows):
            return [f"$ append {feed.name}", *(_json(row) for row in rows)]
        case Forget(feed, ids):
            return [f"$ delete {feed.name}", *(_json({"id": one}) for one in ids)]
        case Restart():
            return ["# restart"]
        case Look():
            return ["# look"]
        case LookBack(view, part):
            return [f"# look back at {view}, {part:.0%} of the way"]


def _json(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal | date | datetime) else repr(value)
