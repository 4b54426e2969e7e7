"""What Spark raises, as our errors: with a message of one line, the place in the SQL text, and what to do about it.

Errors of ours come out of Spark's workers as the text of an exception, and are found in it again.
"""

from __future__ import annotations

import base64
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from velostream import errors
from velostream.errors import Category, QueryError, ResolveError, SqlError, VelostreamError


def spark_errors() -> tuple[type[Exception], ...]:
    """What PySpark raises; a function, so that nothing imports PySpark before Spark is used."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError


@contextmanager
def spark_errors_translated(*, sql: str | None = None, skip: int = 0) -> Iterator[None]:
    """Turn what Spark raises inside into our errors.

    `sql` is the query as its author knows it, `skip` how many characters stand before it in what Spark sees.
    """
    try:
        yield
    except spark_errors() as error:
        raise _translated(error, sql=sql, skip=skip) from error


WORKER_TOKEN = secrets.token_hex(16)
"""What an error of ours coming from a worker is known by; goes to the workers within their closures."""
_CONDITION = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*")
_NOISE = re.compile(r"\s*SQLSTATE: \w{5}\b.*|\s*== SQL.*|\s*\n\tat .*|\s*JVM stacktrace:.*", re.DOTALL)
_ADVICE = re.compile(r"\.\s+(?=(?:Use|Correct|If necessary|Check|Please|To|Did you mean)\b)")
_BYPASS = re.compile(r'If necessary set "?spark\.\S+ to .*?bypass this error(?:,? and return NULL instead)?', re.DOTALL)
_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)")
_DATA_STATES = ("21", "22", "23")
"""Classes of SQLSTATE that speak of values: cardinality, data exceptions, constraints."""


class WorkerError(Exception):
    """Carries one of our errors out of a Spark worker, where only the text of an exception survives.

    `token` is the driver's own: text that came with the data can't pass for an error of ours.
    """

    def __init__(self, error: VelostreamError, *, token: str) -> None:
        form = {"class": type(error).__name__, **errors.render_json(error)}
        text = base64.b64encode(json.dumps(form).encode()).decode()
        super().__init__(f"velostream.error:{token}:{text}: {error.message}")


def _carried(text: str) -> VelostreamError | None:
    """The error a worker's exception carries, if it is one of those."""
    found = re.search(rf"velostream\.error:{WORKER_TOKEN}:([A-Za-z0-9+/=]+):", text)
    if found is None:
        return None
    form = json.loads(base64.b64decode(found[1]))
    kind = getattr(errors, form["class"], QueryError)
    if not (isinstance(kind, type) and issubclass(kind, VelostreamError)):
        kind = QueryError
    return kind(
        form["message"],
        detail=form["detail"],
        hint=form["hint"],
        code=form["code"],
        category=Category(form["category"]),
    )


def query_error(error: BaseException, message: str) -> VelostreamError:
    """What to raise for an exception of any kind: our own errors, from a worker too, as they are, else a `QueryError`
    with this message and the reason as its detail.
    """
    if isinstance(error, VelostreamError):
        return error
    found = _translated(error)
    if not isinstance(found, QueryError | SqlError):
        return found
    detail = "; ".join(part for part in (found.message, found.detail) if part)
    return QueryError(message, detail=detail, hint=found.hint, code=found.code, category=found.category)


@dataclass(frozen=True)
class _Failure:
    """What Spark says of an error."""

    text: str
    condition: str = ""
    state: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    starts: tuple[int, ...] = ()
    """Where in the SQL text the guilty expressions begin."""


def _translated(error: BaseException, *, sql: str | None = None, skip: int = 0) -> VelostreamError:
    """One of our errors for one of Spark's."""
    from pyspark.errors import AnalysisException

    failures = _failures(error)
    for failure in failures:
        carried = _carried(failure.text)
        if carried is not None:
            return carried
    told = [failure for failure in failures if failure.condition]
    failure = told[-1] if told else failures[-1]
    if isinstance(error, AnalysisException):
        return _sql_error(failure, sql=sql, skip=skip)
    message, hint = _message(failure.text)
    data = failure.state[:2] in _DATA_STATES
    return QueryError(
        message,
        detail=_spark_says(failure),
        hint=hint,
        code="expression-failed" if data else "query-failed",
        category=Category.DATA if data else Category.UNKNOWN,
    )


def _sql_error(failure: _Failure, *, sql: str | None, skip: int) -> SqlError:
    place = {} if sql is None else _place(failure, sql, skip)
    parameters = failure.parameters
    if failure.condition.startswith("UNRESOLVED_COLUMN"):
        name, near = _plain(parameters["objectName"]), parameters.get("proposal", "")
        return ResolveError.unknown("column", name, known=map(_plain, near.split(", ") if near else ()), **place)
    if failure.condition == "TABLE_OR_VIEW_NOT_FOUND":
        return ResolveError.unknown("table", _plain(parameters["relationName"]), known=(), **place)
    if failure.condition == "UNRESOLVED_ROUTINE":
        name = _plain(parameters["routineName"]).lower()
        advice = f'SHOW FUNCTIONS lists those there are; con.create_function("{name}", fn, returns="…") makes one'
        return SqlError(f'function "{name}" does not exist', hint=advice, code="unknown-function", **place)
    message, hint = _message(failure.text)
    return SqlError(message, detail=_spark_says(failure), hint=hint, **place)


def _place(failure: _Failure, sql: str, skip: int) -> dict[str, Any]:
    for start in failure.starts:
        if 0 <= start - skip < len(sql):
            before = sql[: start - skip]
            return {"text": sql, "line": before.count("\n") + 1, "column": len(before) - before.rfind("\n")}
    found = _PLACE.search(failure.text)
    if found is None:
        return {"text": sql}
    # What stands before the query is one line of its own.
    return {"text": sql, "line": max(1, int(found[1]) - (1 if skip else 0)), "column": int(found[2]) + 1}


def _failures(error: BaseException) -> list[_Failure]:
    """The error and what caused it, outermost first."""
    found: list[_Failure] = []
    current: BaseException | None = error
    while current is not None:
        throwable = getattr(current, "java_exception", None) or getattr(current, "_origin", None)
        if throwable is not None:
            return found + _java_failures(throwable)
        found.append(_Failure(str(getattr(current, "_desc", None) or current)))
        current = getattr(current, "_cause", None)
    return found


def _java_failures(throwable: Any) -> list[_Failure]:
    from py4j.java_gateway import is_instance_of
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    found = []
    while throwable is not None:
        text = throwable.getMessage() or throwable.toString()
        if is_instance_of(gateway, throwable, "org.apache.spark.SparkThrowable"):
            ask = gateway.jvm.PythonErrorUtils  # type: ignore[union-attr]
            contexts = [context for context in ask.getQueryContext(throwable) if str(context.contextType()) == "SQL"]
            failure = _Failure(
                text,
                ask.getCondition(throwable) or "",
                ask.getSqlState(throwable) or "",
                dict(ask.getMessageParameters(throwable) or {}),
                tuple(context.startIndex() for context in contexts),
            )
        else:
            failure = _Failure(text)
        found.append(failure)
        throwable = throwable.getCause()
    return found


def _message(text: str) -> tuple[str, str | None]:
    """Spark's message in one line without its stack and state, and its advice."""
    if "Traceback (most recent call last)" in text:
        lines = [line.strip() for line in _NOISE.sub("", text).splitlines() if line.strip()]
        return f"a Python worker failed: {lines[-1]}", None
    plain = " ".join(_NOISE.sub("", _CONDITION.sub("", text)).split())
    sentence, *advice = _ADVICE.split(_BYPASS.sub("", plain))
    hint = ". ".join(part.strip(" .") for part in advice if part.strip(" ."))
    return _lower_first(sentence.strip(" .")) or "Spark failed", _lower_first(hint) or None


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _spark_says(failure: _Failure) -> str | None:
    return f"Spark's error class is {failure.condition}" if failure.condition else None


def _plain(identifier: str) -> str:
    return identifier.rsplit("`.`", maxsplit=1)[-1].strip("`")
