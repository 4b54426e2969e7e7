"""The process of one query in Real-Time Mode: a Spark of its own, told what to do through a pipe.

A batch of Real-Time Mode holds a task of each partition for as long as it lasts, and would leave none for other queries
of the connection; and PySpark knows one context per process. So such a query has a process. It reads lines of JSON
from its standard input, first an `Order`, and writes lines of JSON about what happens to its standard output. It ends
with the connection's process, by whatever means that one ends: the pipe closes, and so does the one to the JVM.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velostream.engine.java import find_java
from velostream.engine.jvm import SparkJvm, new_home
from velostream.engine.realtime.job import BAD_RECORD, MESSAGES, RealtimeJob
from velostream.engine.relations import query_error, run_sql
from velostream.engine.spark import connect_session, default_settings, disconnect_session
from velostream.errors import Category, QueryError, SourceError, UnsupportedError, VelostreamError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

BATCH = "5 seconds"
"""How long a batch of Real-Time Mode lasts, which is when positions are kept. Spark takes no less."""
_LOOK_SECONDS = 0.1
_BAD_RECORD = re.compile(rf"{BAD_RECORD} (\{{.*?\}}) {BAD_RECORD}", re.DOTALL)
_KAFKA_ERROR = re.compile(r"org\.apache\.kafka\.common\.(?:errors\.)?(\w+)(?:Exception|Error)\b")
_REFUSED = re.compile("Authentication|Authorization|Security|Ssl")
_AWAY = re.compile(
    "Timeout|Disconnect|Network|NotLeader|Leader|Broker|Coordinator|Replica|NotEnough|Storage|Retriable|UnknownTopic"
)


class Word(StrEnum):
    """What the process is told after its order, and what it tells."""

    START = "start"
    """Start the query again; it has failed."""
    STOP = "stop"
    SPARK = "spark"
    """It has started; with the process id of the JVM."""
    STARTED = "started"
    """The query runs."""
    PROGRESS = "progress"
    """A batch is over."""
    FAILED = "failed"


@dataclass(frozen=True)
class Order:
    """What the process is given first."""

    job: Mapping[str, Any]
    jars: Sequence[str]
    slots: int
    """How many tasks there may be at once: those of a batch hold theirs."""
    checkpoint: str
    logs: str
    inherit: Sequence[int]
    settings: Mapping[str, str]


def main() -> None:
    # Ctrl-C in a terminal reaches the whole foreground group; what it means is the connection's say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    order = Order(**json.loads(sys.stdin.readline()))
    words: queue.Queue[str] = queue.Queue()
    home, serving = new_home(), threading.Event()
    threading.Thread(target=_listen, args=(words, home, serving), daemon=True).start()
    try:
        jvm = SparkJvm(
            find_java(),
            home=home,
            settings=default_settings(home)
            | _SETTINGS
            | dict(order.settings)
            | {"spark.master": f"local[{order.slots}]"},
            log_directory=Path(order.logs),
            inherit=order.inherit,
            jars=[Path(jar) for jar in order.jars],
        )
    except VelostreamError as error:
        shutil.rmtree(home, ignore_errors=True)
        _tell(Word.FAILED, **_told(error))
        return
    session = None
    try:
        session = connect_session(jvm)
        serving.set()
        _tell(Word.SPARK, jvm=jvm.identity.pid)
        _serve(session, RealtimeJob.from_json(order.job), order.checkpoint, words)
    except VelostreamError as error:
        _tell(Word.FAILED, **_told(error))
    finally:
        disconnect_session(jvm, session=session)


_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.streaming.realTimeMode.minBatchDuration": "5000",
    # Of a field that is there twice in an object the last counts.
    "spark.sql.variant.allowDuplicateKeys": "true",
}


def _listen(words: queue.Queue[str], home: Path, serving: threading.Event) -> None:
    for line in sys.stdin:
        words.put(line.strip())
        if line.strip() == Word.STOP and not serving.is_set():
            # Nothing is lost, and Spark would take seconds to start.
            shutil.rmtree(home, ignore_errors=True)
            os._exit(0)
    # The connection's process is gone; without us the JVM ends by itself.
    os._exit(1)


def _tell(word: Word, **more: object) -> None:
    sys.stdout.write(json.dumps({"word": word, **more}) + "\n")
    sys.stdout.flush()


def _serve(session: SparkSession, job: RealtimeJob, checkpoint: str, words: queue.Queue[str]) -> None:
    """Run the query until it is to stop; what ends it otherwise is told, and it is started again when that is said."""
    word = Word.START.value
    while word != Word.STOP:
        running = None
        try:
            running = start(session, job, checkpoint)
            _tell(Word.STARTED)
            word = _watch(running, words)
        except Exception as error:  # noqa: BLE001 - whatever it is must be told to who runs the query
            _tell(Word.FAILED, **_told(failure(error, job)))
            word = words.get()
        finally:
            if running is not None and running.isActive:
                running.stop()


def _watch(running: StreamingQuery, words: queue.Queue[str]) -> str:
    """Tell each batch; gives what is said meanwhile. Raises what ends the query."""
    told = -1
    while True:
        ended = running.exception()
        if ended is not None:
            raise ended
        progress = running.lastProgress
        if progress is not None and progress["batchId"] != told:
            told = progress["batchId"]
            sources = progress["sources"]
            _tell(Word.PROGRESS, batch=told, rows=progress["numInputRows"], end=_end_of(sources[0]["endOffset"]))
        try:
            return words.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue


def _end_of(offset: Any) -> dict[str, int]:
    """Positions by partition."""
    by_topic = json.loads(offset) if isinstance(offset, str) else (offset or {})
    return {str(partition): int(position) for one in by_topic.values() for partition, position in one.items()}


def start(session: SparkSession, job: RealtimeJob, checkpoint: str) -> StreamingQuery:
    """Start the query of a job; Spark refuses at once what Real-Time Mode doesn't take."""
    messages = session.readStream.format("kafka").options(**job.reads).load()
    stream = run_sql(session, job.decoded, {MESSAGES: messages})
    started: StreamingQuery = (
        encoded(session, job, stream)
        .writeStream.format("kafka")
        .options(**job.writes)
        .option("checkpointLocation", checkpoint)
        .queryName(f"{job.name}-{os.getpid()}")
        .outputMode("update")
        .trigger(realTime=BATCH)  # type: ignore[call-overload]
        .start()
    )
    return started


def encoded(session: SparkSession, job: RealtimeJob, stream: DataFrame) -> DataFrame:
    """The messages that a job makes of the rows of its stream."""
    rows = run_sql(session, job.sql, {job.relation: stream}).toDF(*(f"c{number}" for number in range(job.width)))
    return rows.selectExpr(*job.encoded)


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


def _told(error: VelostreamError) -> dict[str, Any]:
    return {
        "message": error.message,
        "detail": error.detail,
        "hint": error.hint,
        "code": error.code,
        "category": error.category.value,
    }


def error_told(form: Mapping[str, Any]) -> VelostreamError:
    """The error that a process has told of."""
    return QueryError(
        form["message"],
        detail=form["detail"],
        hint=form["hint"],
        code=form["code"],
        category=Category(form["category"]),
    )


if __name__ == "__main__":
    main()
