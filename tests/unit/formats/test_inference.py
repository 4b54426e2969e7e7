import pyarrow as pa
import pytest

from velostream.formats.inference import json_text_kinds, observe_texts
from velostream.model.conform import TimeRules
from velostream.model.inference import Kind, ObservedType
from velostream.model.types import render_type


def inferred(*texts):
    observed = ObservedType()
    observe_texts(observed, pa.array(texts, pa.string()))
    return render_type(observed.type())


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("true", "False", "TRUE"), "BOOLEAN"),
        (("1", "-2", "0", None, ""), "BIGINT"),
        ((" 1 ", "2"), "BIGINT"),
        (("9223372036854775807",), "BIGINT"),
        (("9223372036854775808",), "DECIMAL(38,0)"),
        (("1" * 39,), "STRING"),
        (("1.5",), "DECIMAL(18,2)"),
        (("1.5", "2", "-0.125"), "DECIMAL(18,3)"),
        ((".5",), "DECIMAL(18,2)"),
        (("1234567890123456.78",), "DECIMAL(18,2)"),
        (("12345678901234567.89",), "DECIMAL(38,2)"),
        (("0.000000000000000001",), "DECIMAL(18,18)"),
        (("0." + "1" * 39,), "STRING"),
        (("1e5", "2.5"), "DOUBLE"),
        (("NaN", "1"), "DOUBLE"),
        (("Infinity", "-Infinity", "1.5"), "DOUBLE"),
        (("2024-01-31",), "DATE"),
        (("2024-02-30",), "STRING"),
        (("2024-13-01",), "STRING"),
        (("2024-01-31", "2024-01-31 10:00:00"), "TIMESTAMP"),
        (("2024-01-31T10:00Z", "2024-01-31T10:00:00.123456789+02:00"), "TIMESTAMP"),
        (("2024-01-31T25:00Z",), "STRING"),
        (("007",), "STRING"),
        (("00.5",), "STRING"),
        (("+5",), "STRING"),
        (("1,234.50",), "STRING"),
        (("1", "x"), "STRING"),
        (("true", "1"), "STRING"),
        (("1", "2024-01-31"), "STRING"),
        (("", None), "STRING"),
        ((), "STRING"),
    ],
)
def test_the_narrowest_type_that_holds_all(texts, expected):
    assert inferred(*texts) == expected


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("2024-01-31", Kind.DATE),
        ("2024-01-31T10:00:00Z", Kind.TIMESTAMP),
        ("2024-01-31 10:00", Kind.TIMESTAMP),
        ("123.45", Kind.TEXT),
        ("2024-1-31", Kind.TEXT),
        ("abcd-01-31", Kind.TEXT),
        ("", Kind.TEXT),
    ],
)
def test_dates_in_json_strings(text, kind):
    assert json_text_kinds(TimeRules())(text) is kind


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("31.12.2025", "01.01.2026", ""), "TIMESTAMP"),
        (("31.12.2025", "soon"), "STRING"),
        (("1", "2"), "BIGINT"),
    ],
)
def test_timestamps_written_another_way_are_known_by_their_format(texts, expected):
    times = TimeRules(pattern="%d.%m.%Y")
    observed = ObservedType()
    observe_texts(observed, pa.array(texts, pa.string()), times=times)
    assert render_type(observed.type()) == expected
    in_json = ObservedType(json_text_kinds(times))
    for text in filter(None, texts):
        in_json.observe(text)
    assert render_type(in_json.type()) == ("TIMESTAMP" if expected == "TIMESTAMP" else "STRING")
