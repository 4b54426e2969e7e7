"""Arrays cut into lines as a parser would cut them; what isn't a list of objects is left to a parser."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from velostream.formats import json_arrays
from velostream.formats.json_arrays import object_lines

TEXTS = st.text(st.sampled_from('a"\\[]{},\n\u00e4'), max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(TEXTS, VALUES, max_size=3), min_size=1, max_size=5)


@pytest.fixture(params=[1, 7, 1 << 20], ids="blocks of {}".format, autouse=True)
def block_bytes(request, monkeypatch):
    monkeypatch.setattr(json_arrays, "_BLOCK_BYTES", request.param)


@given(
    objects=OBJECTS, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans(), around=st.sampled_from(["", "\n "])
)
def test_each_object_has_a_line(objects, indent, ascii_only, around):
    text = around + json.dumps(objects, indent=indent, ensure_ascii=ascii_only) + around
    lines = object_lines(text.encode())
    assert lines.count == len(objects)
    assert [json.loads(line) for line in lines.data.split(b"\n")] == objects


@given(objects=OBJECTS, data=st.data())
def test_what_is_broken_is_never_taken_for_whole(objects, data):
    text = json.dumps(objects)
    place = data.draw(st.integers(0, len(text) - 1))
    broken = (
        text[:place]
        + data.draw(st.sampled_from(["", '"', "\\", ",", "{", "}", "[", "]", "\n", "1"]))
        + text[place + 1 :]
    )
    lines = object_lines(broken.encode())
    try:
        cut = None if lines is None else [json.loads(line) for line in lines.data.split(b"\n")]
    except ValueError:
        # Who reads the lines finds out.
        return
    if cut is not None:
        assert len(cut) == lines.count
        assert json.loads(broken) == cut


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"a": [{}]}',
        "[1]",
        "[[{}]]",
        "[{}, 1]",
        "[{},]",
        "[,{}]",
        "[{} {}]",
        "[{}{}, ]",
        "[{}] [{}]",
        "[{}",
        '[{"a]',
        "[{}}]",
        '[{"a": "b\nc"}]',
    ],
)
def test_what_is_no_list_of_objects_is_left_to_a_parser(text):
    assert object_lines(text.encode()) is None
