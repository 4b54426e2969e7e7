"""What several kinds of sinks share."""

from __future__ import annotations

from dataclasses import replace

from velostream.formats.compression import SUFFIXES
from velostream.model.address import split_parameters
from velostream.sinks.base import SinkSpec

_FILE_SUFFIX = {"json": "jsonl", "ndjson": "jsonl", "json_lines": "jsonl", "json_array": "json", "text": "log"}


def with_parameters(spec: SinkSpec) -> SinkSpec:
    """The spec with the URI's parameters among its options, where WITH hasn't set them, and the bare URI."""
    address, parameters = split_parameters(spec.uri)
    given = {name.lower(): value for name, value in spec.options.items()}
    return replace(spec, uri=address, options=parameters | given) if parameters else spec


def file_suffix(format_name: str, compression: str | None) -> str:
    """What the name of a file ends with that is written in this format, such that it is read in it again."""
    suffix = _FILE_SUFFIX.get(format_name, format_name)
    if compression is None:
        return suffix
    return suffix + next(ending for ending, name in SUFFIXES.items() if name == compression)
