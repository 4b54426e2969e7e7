import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from velostream.formats import lines
from velostream.formats.lines import cut_records, find_records


def split(data, quote=b'"', *, final=True):
    records = find_records(data, quote, final=final)
    pieces = [data[start:end] for start, end in zip(records.starts.tolist(), records.ends.tolist(), strict=True)]
    return pieces, records.unbalanced.tolist()


@pytest.mark.parametrize(
    ("data", "pieces", "unbalanced"),
    [
        (b"", [], []),
        (b"a\nb\n", [b"a\n", b"b\n"], []),
        (b"a\nb", [b"a\n", b"b"], []),
        (b'a,"x\ny"\nb\n', [b'a,"x\ny"\n', b"b\n"], []),
        (b'"a""\n""b"\n', [b'"a""\n""b"\n'], []),
        (b'a,"x\nb\n', [b'a,"x\n', b"b\n"], [0]),
        (b'ok\na,"x\nb\nc"\nd\n"', [b"ok\n", b'a,"x\nb\nc"\n', b"d\n", b'"'], [3]),
    ],
)
def test_records_end_where_quotes_are_closed(data, pieces, unbalanced):
    assert split(data) == (pieces, unbalanced)


def test_without_quotes_every_line_is_a_record():
    assert split(b'a,"x\ny"\n', None) == ([b'a,"x\n', b'y"\n'], [])


def test_what_is_not_complete_is_left_for_later():
    assert split(b'a\nb,"x\nc\n', final=False) == ([b"a\n"], [])
    assert split(b"a\nb", final=False) == ([b"a\n"], [])


def test_a_quote_left_open_for_long_is_a_mistake(monkeypatch):
    monkeypatch.setattr(lines, "MAX_QUOTED", 20)
    data = b'a,"x\n' + b"line\n" * 10 + b'b,"y\nz"\n'
    pieces, unbalanced = split(data, final=False)
    assert unbalanced == [0]
    assert pieces[0] == b'a,"x\n'
    assert pieces[-1] == b'b,"y\nz"\n'
    assert len(pieces) == 12


@given(st.text(alphabet='ab,"\n', max_size=60).map(str.encode), st.data())
def test_cutting_at_any_record_changes_nothing(data, draw):
    whole = find_records(data, b'"', final=True)
    if not len(whole.ends):
        return
    cut = int(draw.draw(st.sampled_from(whole.ends.tolist())))
    first = find_records(data[:cut], b'"', final=True).ends
    second = find_records(data[cut:], b'"', final=True).ends + cut
    assert np.concatenate((first, second)).tolist() == whole.ends.tolist()


@given(st.text(alphabet='ab,"\n', max_size=60).map(str.encode), st.integers(0, 60))
def test_what_was_complete_stays_so_when_more_comes(data, length):
    early = find_records(data[:length], b'"', final=False).ends.tolist()
    late = find_records(data, b'"', final=False).ends.tolist()
    assert late[: len(early)] == early


@given(st.text(alphabet='ab,"\n', max_size=60).map(str.encode), st.sampled_from([None, b'"']), st.integers(1, 70))
def test_pieces_end_where_records_do(data, quote, size):
    pieces = list(cut_records(data, quote, size=size))
    assert b"".join(piece for _, piece in pieces) == data
    assert [position for position, _ in pieces] == [sum(len(one) for _, one in pieces[:n]) for n in range(len(pieces))]
    ends = {0, *find_records(data, quote, final=True).ends.tolist()}
    assert {position for position, _ in pieces} <= ends
    assert all(pieces)
    if quote is None:
        longest = max(map(len, data.splitlines(keepends=True)), default=0)
        assert all(len(piece) <= max(size, 2 * longest) for _, piece in pieces)
