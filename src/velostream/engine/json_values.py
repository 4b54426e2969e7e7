"""Values along the paths of JSON documents for Spark: one function over Arrow arrays, behind `sql/path_values.py`."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from velostream.engine.wildcard import document_values
from velostream.model.path import parse_path
from velostream.model.rows import json_text
from velostream.sql.path_values import JSON_VALUES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_json_values(session: SparkSession) -> None:
    """Make the function known to a session."""
    from pyspark.sql.functions import arrow_udf

    made = arrow_udf(json_values, "ARRAY<STRING>")  # type: ignore[call-overload]
    session.udf.register(JSON_VALUES, made)


def json_values(texts: pa.Array, path: pa.Array, wanted: pa.Array, *more: pa.Array) -> pa.Array:
    """The values along one or more paths in each text that is a JSON document, as text; none in any other text.

    `wanted` is `any`, or `number` or `text` for values of that kind alone. Paths and kind are the same for all texts.
    """
    found: list[list[str]] = [[] for _ in range(len(texts))]
    if len(texts):
        paths = [parse_path(one[0].as_py()).steps[1:] for one in (path, *more)]
        kind = wanted[0].as_py()
        for row, value in document_values(texts, *paths):
            if kind == "any" or _kind(value) == kind:
                found[row].append(_text(value))
    try:
        return pa.array(found, pa.list_(pa.string()))
    except UnicodeEncodeError:
        # JSON can say halves of characters, which no text holds.
        whole = [[text.encode(errors="replace").decode() for text in texts] for texts in found]
        return pa.array(whole, pa.list_(pa.string()))


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return "number" if is_number else "other"


def _text(value: Any) -> str:
    """Text as it is, everything else as JSON writes it: a number has all its digits."""
    return value if isinstance(value, str) else json_text(value).decode()
