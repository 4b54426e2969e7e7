"""A JSON array of objects as one object per line, found without parsing what is in them: Arrow reads lines fast."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_BLOCK_BYTES = 1 << 20
"""What fits into the caches of a processor, several arrays of it."""
_SPACES = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = b'"\\,{]'
_ENDS_OF_LINES = np.frombuffer(b"\r\n", np.uint8)
_STEPS = np.zeros(256, np.int8)
"""By how much a byte outside of texts changes the depth."""
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1
_TELLING = np.zeros(256, np.bool_)
_TELLING[list(b'"[]{},\r\n')] = True

_Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class ObjectLines:
    """The objects of an array, each in a line. Whether they are objects of JSON is for who reads them to find out."""

    data: bytes
    count: int


def object_lines(data: bytes) -> ObjectLines | None:
    """The elements of an array in UTF-8; None of what isn't a list of objects, to be parsed by somebody thorough."""
    text = data.strip(_SPACES)
    if not text.startswith(b"[") or not text.endswith(b"]"):
        return None
    lines = bytearray(text)
    found = _Cutter(np.frombuffer(lines, np.uint8)).cut()
    if found is None:
        return None
    return ObjectLines(bytes(lines), found)


class _Cutter:
    """Goes through an array block by block and puts each element into a line of its own, in place."""

    def __init__(self, text: _Bytes) -> None:
        self._text = text
        self._depth = 0
        self._is_inside = False
        """Whether the block that comes next begins within a text."""

    def cut(self) -> int | None:
        """The number of elements; None if they can't be told apart, and then the text is half changed."""
        marks: list[_Bytes] = []
        start, length = 0, len(self._text)
        while start < length:
            end = min(start + _BLOCK_BYTES, length)
            while end < length and self._text[end - 1] == _BACKSLASH:
                # What follows it belongs to it.
                end += 1
            of_block = self._cut_block(self._text[start:end], is_last=end == length)
            if of_block is None:
                return None
            marks.append(of_block)
            start = end
        if self._is_inside or self._depth:
            return None
        # An element begins, a comma follows, and so on to the last element: nothing is missing, and nothing too much.
        order = np.concatenate(marks)
        if len(order) % 2 == 0 or (order[::2] != _OPEN).any() or (order[1::2] != _COMMA).any():
            return None
        self._text[0] = self._text[-1] = ord(" ")
        return len(order) // 2 + 1

    def _cut_block(self, block: _Bytes, *, is_last: bool) -> _Bytes | None:
        """What begins elements, and the commas between them, in their order."""
        places = np.flatnonzero(_TELLING[block])
        kinds = block[places]
        quotes = kinds == _QUOTE
        quotes &= ~_escaped(block)[places]
        inside = np.bitwise_xor.accumulate(quotes) ^ self._is_inside
        if len(inside):
            self._is_inside = bool(inside[-1])
        ends = np.isin(kinds, _ENDS_OF_LINES)
        if (ends & inside).any():
            return None
        block[places[ends]] = ord(" ")
        outside = ~(inside | quotes)
        places, kinds = places[outside], kinds[outside]
        depths = np.cumsum(_STEPS[kinds], dtype=np.int64) + self._depth
        if not len(depths):
            return np.empty(0, np.uint8)
        self._depth = int(depths[-1])
        # Only the last byte closes the array.
        if (depths[:-1] < 1).any() or (depths[-1] < 1 and not (is_last and kinds[-1] == _CLOSE)):
            return None
        separators = (kinds == _COMMA) & (depths == 1)
        block[places[separators]] = ord("\n")
        marks: _Bytes = kinds[separators | ((_STEPS[kinds] > 0) & (depths == 2))]
        return marks


def _escaped(block: _Bytes) -> npt.NDArray[np.bool_]:
    """Which bytes a backslash takes away their meaning; of several backslashes in a row every second one does so."""
    escaped = np.zeros(len(block) + 1, np.bool_)
    backslashes = np.flatnonzero(block == _BACKSLASH)
    if not len(backslashes):
        return escaped
    begins = np.flatnonzero(np.diff(backslashes, prepend=-2) != 1)
    lengths = np.diff(begins, append=len(backslashes))
    in_run = np.arange(len(backslashes)) - np.repeat(begins, lengths)
    escaped[backslashes[in_run % 2 == 0] + 1] = True
    return escaped
