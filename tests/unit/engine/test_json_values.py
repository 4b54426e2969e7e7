"""Values along paths of JSON texts, as Spark's workers find them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from velostream.engine.json_values import json_values


def values(texts, path, wanted="any"):
    same = [pa.array([one] * len(texts), pa.string()) for one in (path, wanted)]
    return json_values(pa.array(texts, pa.string()), *same).to_pylist()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("value.*.n", ["1", "2.50"]),
        ("value.**", ['{"n":1}', "1", '{"n":2.50,"t":"x"}', "2.50", "x"]),
        ("value.a.t", ["x"]),
        ("value.nothing[*]", []),
    ],
)
def test_values_are_texts_in_the_order_of_the_document(path, found):  # B26 B27
    document = '{"b": {"n": 1}, "a": {"n": 2.50, "t": "x"}}'
    assert values([document, None, "no document", "[1"], path) == [found, [], [], []]


def test_kinds_are_told_apart():
    texts = ['[1, "1", true, 2.5, null, {"a": 1}]']
    assert values(texts, "value[*]", "number") == [["1", "2.5"]]
    assert values(texts, "value[*]", "text") == [["1"]]
    assert values(texts, "value[*]") == [["1", "1", "true", "2.5", '{"a":1}']]
    assert values([], "value[*]") == []


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": [1, -Infinity]}', '{"a": 1e5000000}', '{"a": -1.5E-999999999}'])
def test_what_is_no_number_of_json_is_in_no_document(text):
    assert values([text, '{"a": 1e20}'], "value.a") == [[], ["100000000000000000000"]]


def test_halves_of_characters_are_replaced():
    assert values(['{"a": "x\\ud800"}', '{"a": "y"}'], "value.a") == [["x?"], ["y"]]
