import pyarrow as pa

from velostream.model.conform import ISO_IN_UTC
from velostream.model.schema import Schema
from velostream.sources.postgres_types import columns_of_texts


def test_what_is_declared_boolean_is_a_truth_value_or_a_bad_record():
    def read(*texts):
        bad = []
        columns = {"b": pa.array(texts, pa.string())}
        rows = columns_of_texts(
            columns, Schema.of(("b", "BOOLEAN")), lambda index, reason: bad.append((index, reason)), times=ISO_IN_UTC
        )
        return rows["b"].to_pylist(), bad

    assert read("t", None, "f") == ([True, None, False], [])
    assert read("1", "TRUE", "f", "0", "false") == ([True, True, False, False, False], [])
    values, bad = read("t", "2", "f")
    assert values == [True, False]
    assert bad == [(1, 'column "b": not a truth value: 2')]
