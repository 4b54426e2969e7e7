"""Files that are compressed as a whole, by the option `compression` or by their names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from velostream.errors import Category, SourceError

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
    try:
        with pa.OSFile(str(path), "rb") as file:
            stream = file if compression is None else pa.CompressedInputStream(file, compression)
            with stream:
                while block := stream.read(size):
                    yield block
    except FileNotFoundError as error:
        raise SourceError.missing_file(str(path), pattern=False) from error
    except PermissionError as error:
        raise SourceError.no_permission(str(path)) from error
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f'file "{path}" can\'t be read' + ("" if compression is None else f" as {compression}"),
            detail=str(error),
            hint="WITH ('compression' = 'none') if it is not compressed, whatever its name",
            code="unreadable-file",
            category=Category.DATA,
        ) from error


def compressed(data: bytes, compression: str | None) -> bytes:
    """Data as a stream of its own; several after one another are a stream too."""
    if compression in (None, NONE):
        return data
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, compression) as stream:
        stream.write(data)
    packed: bytes = out.getvalue().to_pybytes()
    return packed
