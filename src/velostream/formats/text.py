"""Text in other encodings than UTF-8, and data that is no text at all."""

from __future__ import annotations

import codecs
from collections.abc import Callable

from velostream.errors import OptionError
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


def as_utf_8(data: bytes, encoding: str, reject: Reject) -> tuple[bytes, Reject]:
    """The data in UTF-8, and a way to reject with places in the data as it was.

    Bytes that mean nothing in `encoding` are replaced, line by line only where there are some.
    """
    text = data.decode(encoding, "replace")
    converted = text.encode()
    if len(converted) == len(data):
        return converted, reject
    return converted, _in_original(converted, encoding, reject)


def _in_original(converted: bytes, encoding: str, reject: Reject) -> Callable[[Rejected], None]:
    def rejecting(rejected: Rejected) -> None:
        before = converted[: rejected.place].decode().encode(encoding, "replace")
        reject(Rejected(len(before), rejected.raw, rejected.reason))

    return rejecting
