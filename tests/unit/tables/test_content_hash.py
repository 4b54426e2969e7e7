"""Hashes and digests of rows: equal for equal rows, whatever process computes them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from velostream.model.schema import Schema
from velostream.model.types import parse_type
from velostream.tables.change_log import Changes, net_changes
from velostream.tables.content_hash import content_digests, content_hashes
from velostream.tables.memory.compare import hashable_rows

_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("number", pa.float64()),
        ("price", pa.decimal128(10, 2)),
        ("nested", parse_type("MAP<STRING, ARRAY<DOUBLE>>")),
    ]
)
_ROW = st.fixed_dictionaries(
    {
        "text": st.sampled_from([None, "", "a", "1"]),
        "number": st.sampled_from([None, 0.0, -0.0, 1.0, math.nan]),
        "price": st.sampled_from([None, Decimal("0.00"), Decimal("1.50")]),
        "nested": st.sampled_from([None, [], [("a", [0.0]), ("b", None)], [("b", None), ("a", [-0.0])]]),
    }
)
_ROWS = st.lists(_ROW, max_size=6)


@settings(deadline=None)
@given(_ROWS)
def test_equal_rows_have_equal_hashes_and_only_they_equal_digests(given_rows):
    rows = pa.Table.from_pylist(given_rows, _SCHEMA)
    values, hashes, digests = hashable_rows(rows), content_hashes(rows).tolist(), content_digests(rows)
    for one in range(rows.num_rows):
        for other in range(rows.num_rows):
            assert (digests[one] == digests[other]) == (values[one] == values[other])
            assert values[one] != values[other] or hashes[one] == hashes[other]


def test_another_process_computes_the_same(environment):
    program = (
        "import json, pyarrow as pa; from velostream.tables.content_hash import *;"
        "rows = pa.table({'a': ['x', 'é', None], 'b': pa.array([[('k', 1)], [], None], pa.map_('string', 'int64'))});"
        "print(json.dumps([content_hashes(rows).tolist(), [d.hex() for d in content_digests(rows)]]))"
    )
    told = [
        json.loads(
            subprocess.run(
                [sys.executable, "-c", program],
                env=environment | {"PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]


@settings(deadline=None)
@given(st.lists(st.tuples(_ROWS, _ROWS), max_size=3))
def test_changes_one_after_another_amount_to_their_net(steps):
    schema = Schema.from_arrow(_SCHEMA)
    changes = [Changes(*(pa.Table.from_pylist(rows, _SCHEMA) for rows in step)) for step in steps]
    net = net_changes(schema, [Changes.decode(change.encode()) for change in changes])
    removed, added = hashable_rows(net.removed), hashable_rows(net.added)
    assert not set(removed) & set(added)
    for value in {*removed, *added}:
        came = sum(hashable_rows(change.added).count(value) for change in changes)
        went = sum(hashable_rows(change.removed).count(value) for change in changes)
        assert added.count(value) - removed.count(value) == came - went
