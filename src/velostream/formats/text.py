"""Text in other encodings than UTF-8, and data that is no text at all."""

from __future__ import annotations

import codecs
import re
import sys
from dataclasses import replace

from velostream.errors import Category, OptionError, VelostreamError
from velostream.formats.base import Reject, Rejected

_UTF_8 = ("utf-8", "ascii")
_WIDE = ("utf-16", "utf-32")


def check_encoding(name: str) -> str:
    """The canonical name of an encoding; `OptionError` when there is none of that name."""
    try:
        return codecs.lookup(name.strip()).name
    except LookupError as error:
        raise OptionError.value(
            "encoding", name, expected="an encoding such as utf-8, latin-1, cp1252, utf-16"
        ) from error


def is_wide(encoding: str) -> bool:
    """Whether a newline is more than one byte, so that bytes can't be cut into lines."""
    return encoding.startswith(_WIDE)


def is_utf_8(encoding: str) -> bool:
    return encoding in _UTF_8 or encoding == "utf-8-sig"


def valid_utf_8(data: bytes | memoryview) -> bool:
    try:
        codecs.utf_8_decode(data, "strict", True)
    except UnicodeDecodeError:
        return False
    return True


def encoded(data: bytes, encoding: str, *, first: bool = True) -> bytes:
    """UTF-8 in another encoding; `VelostreamError` when a character has no place in it.

    Where the encoding begins a text with its byte order, only the `first` piece says it, and the others follow it.
    """
    if is_utf_8(encoding):
        return data
    if not first and encoding in _WIDE:
        encoding = f"{encoding}-{'le' if sys.byteorder == 'little' else 'be'}"
    try:
        return data.decode().encode(encoding)
    except UnicodeEncodeError as error:
        raise VelostreamError(
            f'character "{error.object[error.start]}" can\'t be written in the encoding "{encoding}"',
            hint="WITH ('encoding' = 'utf-8')",
            code="unencodable-text",
            category=Category.DATA,
        ) from error


def as_utf_8(data: bytes, encoding: str, reject: Reject) -> tuple[bytes, Reject]:
    """The data in UTF-8, and a way to reject with places in the data as it was.

    Lines with bytes that mean nothing in `encoding` are rejected and left blank.
    """
    try:
        converted = data.decode(encoding).encode()
    except UnicodeDecodeError:
        converted = _convert_lines(data, encoding, reject)

    def rejecting(rejected: Rejected) -> None:
        # Records begin with lines, and lines stay where they are.
        line = converted.count(b"\n", 0, rejected.place)
        reject(replace(rejected, place=_line_start(data, line)))

    return converted, rejecting


def _convert_lines(data: bytes, encoding: str, reject: Reject) -> bytes:
    converted: list[bytes] = []
    place = 0
    for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
        try:
            converted.append(line.decode(encoding).encode())
        except UnicodeDecodeError as error:
            reject(Rejected(place, line.rstrip(b"\r\n"), f"not valid {encoding}: {error.reason}"))
            converted.append(b"\n")
        place += len(line)
    return b"".join(converted)


def _line_start(data: bytes, line: int) -> int:
    start = 0
    for _ in range(line):
        start = data.find(b"\n", start) + 1
    return start
