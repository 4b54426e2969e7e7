"""Answers of HTTP servers as rows: JSON documents and the records within them, JSON lines, CSV."""

from __future__ import annotations

import codecs
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, TypeVar

import pyarrow as pa

from velostream.errors import Category, SourceError
from velostream.formats.base import FormatSettings, LineFormat, Preamble, Rejected, Sample, further_field
from velostream.formats.json import JsonLinesFormat, infer_records, parse_json
from velostream.formats.json_arrays import ObjectLines, object_lines
from velostream.formats.lines import cut_records, find_records
from velostream.formats.registry import format_by_extension, make_format
from velostream.model.http import Answer, without_parameters
from velostream.model.path import AnyDepth, AnyField, Element, Field, Filter, Path, Slice, Step, parse_path
from velostream.model.rows import json_text, records_to_arrow
from velostream.model.schema import Schema
from velostream.sources.base import BadRecord, OnBad

FORMATS = ("json", "jsonl", "ndjson", "json_lines", "json_array", "csv", "tsv", "text")
_BY_CONTENT_TYPE = (
    (re.compile(r"ndjson|jsonl|json-seq|stream\+json|jsonlines", re.IGNORECASE), "jsonl"),
    (re.compile(r"json", re.IGNORECASE), "json"),
    (re.compile(r"tab-separated", re.IGNORECASE), "tsv"),
    (re.compile(r"text/csv|comma-separated", re.IGNORECASE), "csv"),
)
_SAMPLE_RECORDS = 10_000
_SAMPLE_BYTES = 4 << 20
_ROWS_PER_TABLE = 50_000
_BLOCK_BYTES = 1 << 22
"""Lines are read so many bytes at a time."""

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class BodyRules:
    """How the bodies of one source are to be read."""

    settings: FormatSettings
    format: str | None = None
    """None is by the content type, else by the address."""
    records: Path | None = None
    """Where in a JSON document the records are; None: it is a list of them, or one."""
    retriable: bool = False
    """Whether an answer that can't be read may be followed by one that can: the source is polled."""


class Body:
    """The body of one answer, a page of the whole. Parsed when first asked for."""

    def __init__(self, answer: Answer, rules: BodyRules, *, page: int) -> None:
        self.answer = answer
        self._rules = rules
        self._page = page
        self._place = f"{answer.shown} page {page}"

    @cached_property
    def lines(self) -> LineFormat | None:
        """The format of a body whose records are lines; None of a JSON document."""
        if self._rules.records is not None:
            return None
        name = self._rules.format or self._told_format()
        found = make_format(name, self._rules.settings, head=self.answer.body)
        return found if isinstance(found, LineFormat) else None

    @cached_property
    def document(self) -> Any:
        """A JSON body, numbers exact. `SourceError` with the place when it isn't JSON."""
        try:
            text = self.answer.body.decode("utf-8-sig")
            return parse_json(text) if text.strip() else []
        except (ValueError, RecursionError) as error:
            raise SourceError(
                f'http answer of "{self.answer.shown}" is not JSON',
                detail=f"page {self._page}: {error}",
                hint="WITH ('format' = 'jsonl') or 'csv' if it is that",
                code="unreadable-answer",
                category=Category.UNKNOWN if self._rules.retriable else Category.DATA,
            ) from error

    @cached_property
    def records(self) -> list[Any]:
        """The records of a JSON document."""
        path = self._rules.records
        if path is None:
            return self.document if isinstance(self.document, list) else [self.document]
        found = values_at(self.document, path)
        # `data.items` says the same as `data.items[*]`.
        return list(chain.from_iterable(one if isinstance(one, list) else [one] for one in found))

    @cached_property
    def elements(self) -> ObjectLines | None:
        """The records of a JSON document that is a list of objects, by lines."""
        if self.lines is not None or self._rules.records is not None:
            return None
        return object_lines(self.answer.body.removeprefix(codecs.BOM_UTF8))

    @property
    def count(self) -> int:
        """How many records there are; of a malformed body, which `decode` tells of, it may be any number."""
        if self.elements is not None:
            return self.elements.count
        if self.lines is None:
            return len(self.records)
        preamble = self._preamble(self.lines)
        return len(find_records(self.answer.body[preamble.length :].rstrip(), self.lines.quote, final=True).ends)

    def decode(self, schema: Schema, on_bad: OnBad) -> Iterator[pa.Table]:
        """The records as rows of exactly the schema."""
        if self.lines is not None:
            yield from self._decode_lines(self.lines, schema, on_bad)
            return
        if self.elements is not None:
            rows = JsonLinesFormat(self._rules.settings).read_typed(self.elements.data, schema)
            if rows is not None and rows.num_rows == self.elements.count:
                yield rows
                return
        for first in range(0, len(self.records), _ROWS_PER_TABLE):
            yield self._decode_records(first, self.records[first : first + _ROWS_PER_TABLE], schema, on_bad)

    def sample(self) -> Sample | None:
        """Complete lines from the beginning."""
        if self.lines is None:
            return None
        preamble = self._preamble(self.lines)
        data = self.answer.body[preamble.length :]
        if len(data) > _SAMPLE_BYTES:
            data = data[: data.rfind(b"\n", 0, _SAMPLE_BYTES) + 1]
        return Sample(preamble, data) if data.strip() else None

    def first_records(self, most: int) -> list[Any]:
        """The first records of a JSON document, which is not parsed for more than these if that can be."""
        if self.elements is not None:
            lines = self.elements.data.split(b"\n", most)[:most]
            # What isn't JSON is told with its place in the document.
            with suppress(ValueError, RecursionError):
                return [parse_json(line) for line in lines]
        return self.records[:most]

    def _told_format(self) -> str:
        content_type = self.answer.headers.get("content-type", "")
        for pattern, name in _BY_CONTENT_TYPE:
            if pattern.search(content_type):
                return name
        by_name = format_by_extension(without_parameters(self.answer.url))
        return by_name if by_name in FORMATS else "json"

    def _preamble(self, lines: LineFormat) -> Preamble:
        return lines.preamble(self.answer.body, final=True) or Preamble()

    def _decode_lines(self, lines: LineFormat, schema: Schema, on_bad: OnBad) -> Iterator[pa.Table]:
        preamble = self._preamble(lines)

        def decoded(piece: tuple[int, bytes]) -> tuple[pa.Table, int, list[Rejected]]:
            refused: list[Rejected] = []
            return lines.decode(piece[1], preamble, schema, refused.append), piece[0], refused

        pieces = cut_records(self.answer.body[preamble.length :], lines.quote, size=_BLOCK_BYTES)
        for rows, position, refused in _side_by_side(decoded, pieces):
            for rejected in refused:
                line = self.answer.body.count(b"\n", 0, preamble.length + position + rejected.place) + 1
                on_bad(BadRecord(rejected.raw, f"{self._place} line {line}", rejected.reason))
            yield rows

    def _decode_records(self, first: int, records: Sequence[Any], schema: Schema, on_bad: OnBad) -> pa.Table:
        objects: list[tuple[int, Mapping[str, Any]]] = []
        for number, record in enumerate(records, first + 1):
            reason = self._problem(record, schema)
            if reason is None:
                objects.append((number, record))
            else:
                on_bad(BadRecord(json_text(record), f"{self._place} record {number}", reason))

        def misfit(index: int, reason: str) -> None:
            number, record = objects[index]
            on_bad(BadRecord(json_text(record), f"{self._place} record {number}", reason))

        times = self._rules.settings.text_rules
        return records_to_arrow([record for _, record in objects], schema, misfit, times=times)

    def _problem(self, record: Any, schema: Schema) -> str | None:
        if not isinstance(record, dict):
            return "not a JSON object"
        return further_field(record, schema) if self._rules.settings.refuse_further_fields else None


def _side_by_side(work: Callable[[_Given], _Found], given: Iterable[_Given]) -> Iterator[_Found]:
    """What work makes of each, in their order. As many are worked on at a time as there are cores: what decodes lets go
    of Python's lock.
    """
    threads = os.cpu_count() or 1
    waiting: deque[Future[_Found]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="decoding") as pool:
        for one in given:
            waiting.append(pool.submit(work, one))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def infer_columns(bodies: Iterator[Body], settings: FormatSettings) -> Schema | None:
    """The columns that the first records show; no more bodies are asked for than that needs. None without records."""
    first = next(bodies, None)
    if first is None:
        return None
    if first.lines is not None:
        sample = first.sample()
        return None if sample is None else first.lines.infer([sample])
    records = chain.from_iterable(body.first_records(_SAMPLE_RECORDS) for body in chain([first], bodies))
    objects = (record for record in islice(records, _SAMPLE_RECORDS) if isinstance(record, dict))
    return infer_records(objects, settings.times)


def path_of(written: str) -> Path:
    """The path of an option; JSONPath's `$.` at the beginning says nothing more."""
    return parse_path(written.removeprefix("$").removeprefix("."))


def values_at(document: Any, path: Path) -> list[Any]:
    """The values of a path in parsed JSON, in the document's order."""
    found = [document]
    for step in path.steps:
        found = [below for value in found for below in _step(value, step)]
    return found if path.comparison is None else [value for value in found if path.comparison.holds(value)]


def _step(value: Any, step: Step) -> Iterator[Any]:
    match step, value:
        case Field(name), dict() if name in value:
            yield value[name]
        case AnyField(), dict():
            yield from value.values()
        case AnyDepth(), _:
            yield from _at_any_depth(value)
        case Element(number), list() if -len(value) <= number < len(value):
            yield value[number]
        case Slice(start, stop), list():
            yield from value[start:stop]
        case Filter(comparisons), list():
            yield from (
                one for one in value if all(test.holds(_field_below(one, names)) for names, test in comparisons)
            )


def _at_any_depth(value: Any) -> Iterator[Any]:
    yield value
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in below:
        yield from _at_any_depth(one)


def _field_below(value: Any, names: Sequence[str]) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value
