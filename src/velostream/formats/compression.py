"""Files that are compressed as a whole, by the option `compression` or by their names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.formats.opening import open_file

NONE = "none"
SUFFIXES = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2", ".lz4": "lz4"}


def compression_of(path: str, option: str | None) -> str | None:
    """How a file is compressed; None when it isn't."""
    if option is not None:
        return None if option.lower() == NONE else option.lower()
    return SUFFIXES.get(Path(path).suffix.lower())


def bare_name(path: str) -> str:
    """The name without the suffix that says how the file is compressed."""
    return path[: -len(Path(path).suffix)] if Path(path).suffix.lower() in SUFFIXES else path


def read_blocks(path: Path, compression: str | None, *, size: int) -> Iterator[bytes]:
    """The content in blocks of about `size` bytes; `SourceError` where it is missing, cut off or damaged."""
    with open_file(str(path)) as file:
        raw = pa.PythonFile(file, "r")
        stream = raw if compression is None else pa.CompressedInputStream(raw, compression)
        while block := _read(stream, size, path, compression):
            yield block


def _read(stream: pa.NativeFile, size: int, path: Path, compression: str | None) -> bytes:
    try:
        block: bytes = stream.read(size)
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f'file "{path}" can\'t be read' + ("" if compression is None else f" as {compression}"),
            detail=str(error),
            hint="WITH ('compression' = 'none') if it is not compressed, whatever its name",
            code="unreadable-file",
            category=Category.DATA,
        ) from error
    return block


def compressed(data: bytes, compression: str | None) -> bytes:
    """Data as a stream of its own; several after one another are a stream too."""
    if compression in (None, NONE):
        return data
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, compression) as stream:
        stream.write(data)
    packed: bytes = out.getvalue().to_pybytes()
    return packed
