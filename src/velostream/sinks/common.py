"""What several kinds of sinks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from velostream.errors import UnsupportedError
from velostream.formats.compression import SUFFIXES
from velostream.model.address import split_parameters
from velostream.model.schema import Schema
from velostream.sinks.base import SinkSpec

_FILE_SUFFIX = {"json": "jsonl", "ndjson": "jsonl", "json_lines": "jsonl", "json_array": "json", "text": "log"}


def with_parameters(spec: SinkSpec) -> SinkSpec:
    """The spec with the URI's parameters among its options, where WITH hasn't set them, and the bare URI."""
    address, parameters = split_parameters(spec.uri)
    given = {name.lower(): value for name, value in spec.options.items()}
    return replace(spec, uri=address, options=parameters | given) if parameters else spec


def check_change_keys(schema: Schema, names: Sequence[str], *, target: str) -> None:
    """Refuses changes of rows that the target can't tell apart: no two of them may have all of `names` in common."""
    if schema.key and set(schema.key) <= set(names):
        return
    known = f"it knows them by {', '.join(names)}, and they have the key {', '.join(schema.key)}"
    raise UnsupportedError(
        f"{target} can't be told which rows change or leave",
        detail=known if schema.key else "the query gives rows without a key",
        hint="give it one: SELECT id PRIMARY KEY, …; the option key names all of its columns, or is left out",
        code="unsupported-capability",
    )


def file_suffix(format_name: str, compression: str | None) -> str:
    """What the name of a file ends with that is written in this format, such that it is read in it again."""
    suffix = _FILE_SUFFIX.get(format_name, format_name)
    if compression is None:
        return suffix
    return suffix + next(ending for ending, name in SUFFIXES.items() if name == compression)
