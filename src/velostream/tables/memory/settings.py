"""The options of a memory table and what they mean for it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from velostream.errors import OptionError
from velostream.model.options import Option, Options, OptionType
from velostream.model.schema import Schema
from velostream.model.size import parse_size
from velostream.tables.memory.chunks import ORDINARY, ChunkPolicy
from velostream.tables.memory.compressed import Compression
from velostream.tables.memory.generation import Form

OPTIONS = (
    Option(
        "table_model",
        "normal, or compact: less memory, slower single rows",
        OptionType.CHOICE,
        "normal",
        ("normal", "compact"),
    ),
    Option(
        "compression",
        "lz4 or zstd: chunks of a compact table are kept compressed, and decoded when somebody reads them",
        OptionType.CHOICE,
        "none",
        ("none", "lz4", "zstd"),
    ),
    Option("memory.limit", "how much memory the table may take, as 512MB; what is older goes to mapped files"),
    Option("spill.path", "folder for these files; the system's for temporary files by default"),
    Option("retention", "rows leave that long after the commit that wrote them", OptionType.DURATION),
    Option("ttl", "the same as retention; of both the shorter counts", OptionType.DURATION),
    Option("history", "how many versions before the newest stay readable", OptionType.INTEGER, default="0"),
    Option("history.max", "no more versions than that stay readable, whoever is still behind", OptionType.INTEGER),
    Option("index", "columns to index: a,b is one index of two columns, a;b are two indexes"),
)
_PACKED_ROWS = 32768
_PARTS_OF_LIMIT = 8


@dataclass(frozen=True)
class TableSettings:
    """Options, checked and read."""

    compact: bool
    compression: Compression | None
    memory_limit: int | None
    spill_path: Path
    retention: timedelta | None
    history: int
    history_max: int | None
    indexes: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, given: Mapping[str, str], schema: Schema) -> TableSettings:
        """Raises `OptionError` for a name or a value that isn't known, `NotFoundError` for an unknown column."""
        options = Options(given, OPTIONS)
        ages = [age for age in (options.duration("retention"), options.duration("ttl")) if age is not None]
        history = options.integer("history") or 0
        history_max = options.integer("history.max")
        if history_max is not None and history_max < history:
            raise OptionError.value("history.max", str(history_max), expected=f"at least history, which is {history}")
        compact = (options.text("table_model") or "").lower() == "compact"
        return cls(
            compact=compact,
            compression=_compression((options.text("compression") or "none").lower(), schema, compact=compact),
            memory_limit=_limit(options.text("memory.limit")),
            spill_path=Path(options.text("spill.path") or tempfile.gettempdir()),
            retention=min(ages, default=None),
            history=history,
            history_max=history_max,
            indexes=_index_columns(options.text("index") or "", schema),
        )

    def prepare_spill(self) -> None:
        """Make the folder for mapped files, if there may be any; `OptionError` when that can't be."""
        if self.memory_limit is None:
            return
        try:
            self.spill_path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            refused = OptionError.value("spill.path", str(self.spill_path), expected="a folder that can be written to")
            raise refused from error

    @property
    def form(self) -> Form:
        """How rows are kept. A dictionary of keys would be faster, and can't be put into files."""
        largest = ORDINARY.largest_bytes
        if self.memory_limit is not None:
            largest = min(largest, self.memory_limit // _PARTS_OF_LIMIT)
        return Form(
            chunks=ChunkPolicy(_PACKED_ROWS if self.compact else None, largest, self.compression),
            hashed_keys=self.compact or self.memory_limit is not None,
            timed=self.retention is not None,
        )


def _compression(codec: str, schema: Schema, *, compact: bool) -> Compression | None:
    if codec == "none":
        return None
    if not compact:
        raise OptionError.value("compression", codec, expected="none, unless table_model is compact")
    return Compression(codec, frozenset(schema.key))


def _limit(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return parse_size(text)
    except ValueError as error:
        raise OptionError.value("memory.limit", text, expected="an amount of memory such as 512MB or 2GB") from error


def _index_columns(text: str, schema: Schema) -> tuple[tuple[str, ...], ...]:
    """`a,b;c` is an index on a and b, and one on c."""
    indexes = [[name.strip() for name in part.split(",")] for part in text.split(";") if part.strip()]
    return tuple(tuple(schema.column(name).name for name in names) for names in indexes)
