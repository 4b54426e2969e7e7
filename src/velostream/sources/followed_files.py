"""What files of a disk and objects of a store share as sources: options, watching, a position for each path."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pyarrow as pa

from velostream.errors import SourceError
from velostream.formats.options import FILE_OPTIONS
from velostream.formats.registry import NAMES, NATIVE_NAMES, format_by_extension
from velostream.model.change import CHANGE
from velostream.model.options import Option, OptionType
from velostream.model.schema import Schema
from velostream.sources.base import (
    Emits,
    Offset,
    OnBad,
    Partition,
    Replay,
    Source,
    SourceCapabilities,
    SourceSpec,
)
from velostream.sources.common import (
    COMMON_OPTIONS,
    OFFSET_RESET,
    begins_at_latest,
    declared_columns,
    names_of,
    with_parameters,
)
from velostream.sources.file_progress import WatchMode

PART_BYTES = 16 << 20
"""About how much one worker reads in one go, of much."""
_LEAST_PART_BYTES = 2 << 20
"""Less than that isn't worth another part: each one opens its file and looks whether it is still the same."""
_PARTS = 32
"""Into so many, which keep all workers busy, is cut what is not much."""
FOLLOWED_OPTIONS = (
    *COMMON_OPTIONS,
    OFFSET_RESET,
    Option("format", "how the files are written; default: by their names", OptionType.CHOICE, None, NAMES),
    *FILE_OPTIONS,
    Option("watch", "whether to keep following", OptionType.BOOLEAN, "false"),
    Option("watch.mode", "what a change means", OptionType.CHOICE, "auto", tuple(WatchMode)),
    Option("file.wait.timeout", "how long to wait for files that aren't there yet", OptionType.DURATION, "0s"),
    Option("file.retry.interval", "how often to look for them", OptionType.DURATION, "2s"),
    Option("changelog", "what a record means", OptionType.CHOICE, "append", ("append", "upsert")),
)

Piece = dict[str, Any]
"""A part of one file: its `path`, its `weight` in bytes, and what else its reader needs. JSON-safe."""


class PathState(Protocol):
    """How far one path was read."""

    @property
    def path(self) -> str: ...
    @property
    def generation(self) -> int:
        """Counts how often the content was replaced."""

    @property
    def gone(self) -> bool: ...
    @property
    def order(self) -> tuple[int, int]:
        """Grows with every step."""


State = TypeVar("State", bound=PathState)


class FollowedFiles(Source, Generic[State]):
    """A source whose offset holds a state for each path.

    Rows belong to their path: where they make a table, a path that was replaced brings all its rows anew, and one that
    is gone takes them along.
    """

    offset_name: ClassVar[str]
    """Under which the states stand in an offset."""
    implies_watch: ClassVar[tuple[str, ...]] = ("poll.interval", "watch.mode")
    """Options that ask for watching without saying so."""

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(with_parameters(spec))
        self._declared = declared_columns(self.spec, self.settings.text("record.schema"))
        self._mode = self._watch_mode()
        latest, self.warnings = begins_at_latest(self.settings.text("auto.offset.reset"))
        self._from_latest = latest and self._mode is WatchMode.APPEND
        self._upserts = self.settings.text("changelog") == "upsert"
        self._discovered: Schema | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Workers need the spec; what the driver remembers, and its connections, stay with it."""
        return type(self), (self.spec,)

    @property
    def begins_at_latest(self) -> bool:
        return self._from_latest

    @property
    def adds_columns(self) -> bool:
        return True

    @property
    def capabilities(self) -> SourceCapabilities:
        watched = self._mode is not None
        emits = Emits.APPENDS if self._mode in (None, WatchMode.APPEND) else Emits.CHANGES
        if self._upserts and emits is Emits.APPENDS:
            emits = Emits.UPSERTS
        written = self.settings.text("format") or format_by_extension(self.spec.uri)
        native = written is not None and written.lower() in NATIVE_NAMES
        return SourceCapabilities(
            emits=emits, replay=Replay.FOREVER, incremental=watched, follows=watched, native=native
        )

    def initial_offset(self) -> Offset:
        return self._offset(self._moved({}, None) if self._from_latest else {})

    def latest_offset(self, start: Offset, *, max_rows: int | None = None) -> Offset:
        states = self._states(start)
        found = self._moved(states, max_rows)
        return start if found is states or found == states else self._offset(found)

    def partitions(self, start: Offset, end: Offset) -> Sequence[Partition]:
        before = self._states(start)
        pieces: list[Piece] = []
        parts: list[Partition] = []
        for path, state in self._states(end).items():
            old = before.get(path)
            if old == state:
                continue
            if self.capabilities.emits is not Emits.CHANGES:
                pieces += self._pieces(old, state)
            elif old is not None and not old.gone and old.generation != state.generation:
                whole = [] if state.gone else [self._whole(state)]
                parts.append(Partition({"pieces": whole}, origin=self._shown(path), replaces=True))
            elif not state.gone:
                cut = self._pieces(old, state)
                parts += [Partition({"pieces": [piece]}, origin=self._shown(path)) for piece in cut]
        return parts + [Partition({"pieces": group}) for group in _packed(pieces)]

    def read(self, partition: Partition, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        signed = self.capabilities.emits is not Emits.APPENDS and not partition.replaces
        for piece in partition.payload["pieces"]:
            for batch in self._read_piece(piece, schema, on_bad):
                if signed:
                    present = pa.repeat(pa.scalar(1, pa.int8()), batch.num_rows)
                    yield batch.append_column(pa.field(CHANGE, pa.int8()), present)
                else:
                    yield batch

    def reached(self, position: Offset, target: Offset) -> bool:
        at = self._states(position)
        return all(path in at and at[path].order >= state.order for path, state in self._states(target).items())

    def earlier(self, end: Offset, stop: Offset) -> Offset:
        here, there = self._states(end), self._states(stop)
        both = [path for path in here if path in there]
        return self._offset({path: min(here[path], there[path], key=lambda state: state.order) for path in both})

    @abstractmethod
    def _moved(self, states: Mapping[str, State], max_rows: int | None) -> Mapping[str, State]:
        """The states after the next step; the same ones when there is none."""

    @abstractmethod
    def _state(self, form: dict[str, Any]) -> State:
        """A state out of the fields it was written with; `TypeError` when they are those of something else."""

    @abstractmethod
    def _pieces(self, old: State | None, state: State) -> list[Piece]:
        """What was added to one path between two states, cut so that several workers can read it."""

    @abstractmethod
    def _whole(self, state: State) -> Piece:
        """All that the path holds."""

    @abstractmethod
    def _read_piece(self, piece: Piece, schema: Schema, on_bad: OnBad) -> Iterator[pa.RecordBatch]:
        """The rows of a piece."""

    @abstractmethod
    def _shown(self, path: str) -> str:
        """The path as people know it."""

    def _keyed(self, columns: Schema | None) -> Schema | None:
        """The columns with the key that the option of that name says."""
        key = names_of(self.settings.text("key"))
        return columns.with_key(key) if columns is not None and key else columns

    def _watch_mode(self) -> WatchMode | None:
        """The mode of a watched source; None for one that is read once."""
        implied = any(name in self.settings for name in self.implies_watch)
        asked = self.settings.boolean("watch") if "watch" in self.settings else implied
        return WatchMode((self.settings.text("watch.mode") or "auto").lower()) if asked else None

    def _offset(self, states: Mapping[str, State]) -> Offset:
        return {self.offset_name: [asdict(state) for state in states.values()]}  # type: ignore[call-overload]

    def _states(self, offset: Offset) -> dict[str, State]:
        try:
            states = [self._state(form) for form in offset[self.offset_name]]
        except (TypeError, KeyError) as error:
            raise SourceError(f"{offset!r} is not an offset of the kind {self.kind}", code="invalid-offset") from error
        return {state.path: state for state in states}


def part_bytes(total: int) -> int:
    """About how large the parts are into which so many bytes are cut."""
    return min(PART_BYTES, max(_LEAST_PART_BYTES, total // _PARTS))


def _packed(pieces: list[Piece]) -> Iterator[list[Piece]]:
    """Pieces together that are too small to be worth a task of their own."""
    most = part_bytes(sum(piece["weight"] for piece in pieces))
    group: list[Piece] = []
    weight = 0
    for piece in pieces:
        if group and weight + piece["weight"] > most:
            yield group
            group, weight = [], 0
        group.append(piece)
        weight += piece["weight"]
    if group:
        yield group
