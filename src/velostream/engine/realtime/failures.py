"""What ends a query in Real-Time Mode as an error of ours, which its process tells to that of the connection."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from velostream.engine.realtime.job import BAD_RECORD
from velostream.engine.spark_failures import query_error
from velostream.errors import Category, QueryError, SourceError, UnsupportedError, VelostreamError

if TYPE_CHECKING:
    from velostream.engine.realtime.job import RealtimeJob

_BAD_RECORD = re.compile(rf"{BAD_RECORD} (\{{.*?\}}) {BAD_RECORD}", re.DOTALL)
_KAFKA_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:errors\.)?(\w+)(?:Exception|Error)\b")
_REFUSED = re.compile("Authentication|Authorization|Security|Ssl")
_AWAY = re.compile(
    "Timeout|Disconnect|Network|NotLeader|Leader|Broker|Coordinator|Replica|NotEnough|Storage|Retriable|UnknownTopic"
)


def failure(error: BaseException, job: RealtimeJob) -> VelostreamError:
    """What ends the query, as one of our errors; its category says whether to try again."""
    text = f"{error}\n{getattr(error, '_stackTrace', '') or ''}"
    bad = _BAD_RECORD.search(text)
    if bad is not None:
        found = json.loads(bad[1])
        kind, reason = found["reason"][:1], found["reason"][1:]
        told = SourceError.bad_record(f"kafka://{job.reads['subscribe']}", position=found["position"], reason=reason)
        told.hint = "WITH ('bad.records' = 'skip') leaves such records out"
        if kind == "?":
            told.detail = f"{reason}: a spelling that Spark reads otherwise"
            told.hint = "leave trigger out: it is read without Real-Time Mode"
        return told
    if "KAFKA_DATA_LOSS" in text:
        return SourceError(
            f'kafka topic "{job.reads["subscribe"]}" no longer has records that were to be read',
            detail=str(error).splitlines()[0],
            hint="a longer retention.ms of the topic keeps more",
            code="records-expired",
            category=Category.DATA,
        )
    found_error = query_error(error, f'query "{job.name}" failed')
    if "STREAMING_REAL_TIME_MODE" in text:
        return UnsupportedError(
            f'query "{job.name}" can\'t run in real time',
            detail=found_error.detail or found_error.message,
            hint="leave trigger out, and the query runs as fast as it can",
            code="unsupported-trigger",
        )
    kafka = _KAFKA_ERROR.findall(text)
    refused = next((name for name in kafka if _REFUSED.search(name)), None)
    away = next((name for name in kafka if _AWAY.search(name)), None)
    if refused is not None or away is not None:
        return SourceError.unreachable(
            "kafka",
            where=job.reads["kafka.bootstrap.servers"],
            reason=found_error.detail or found_error.message,
            category=Category.AUTHENTICATION if refused is not None else Category.NETWORK,
        )
    return found_error


def form_of(error: VelostreamError) -> dict[str, Any]:
    """An error as the process tells it."""
    return {
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "code": error.code,
        "category": error.category.value,
    }


def error_of(form: Mapping[str, Any]) -> VelostreamError:
    """The error that a process has told of."""
    return QueryError(
        form["message"],
        detail=form["detail"],
        hint=form["hint"],
        code=form["code"],
        category=Category(form["category"]),
    )
