"""The process of one query in Real-Time Mode: a Spark of its own, told what to do through a pipe.

A batch of Real-Time Mode holds a task of each partition for as long as it lasts, and would leave none for other queries
of the connection; and PySpark knows one context per process. So such a query has a process. It reads lines of JSON
from its standard input, first an `Order`, and writes lines of JSON about what happens to the pipe whose descriptor is
its argument: what is printed, by whatever library, is no word of ours. It ends with the connection's process, by
whatever means that one ends: the pipe closes, and so does the one to the JVM.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from velostream.engine.java import find_java
from velostream.engine.jvm import SparkJvm, new_home
from velostream.engine.realtime.failures import failure, form_of
from velostream.engine.realtime.job import MESSAGES, RealtimeJob
from velostream.engine.relations import run_sql
from velostream.engine.spark import connect_session, default_settings, disconnect_session
from velostream.errors import VelostreamError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

BATCH = "5 seconds"
"""How long a batch of Real-Time Mode lasts, which is when positions are kept. Spark takes no less."""
_LOOK_SECONDS = 0.1


class Word(StrEnum):
    """What the process is told after its order, and what it tells."""

    START = "start"
    """Start the query again; it has failed."""
    STOP = "stop"
    SPARK = "spark"
    """It has started; with the identity of the JVM."""
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
    out = os.fdopen(int(sys.argv[1]), "w", encoding="utf-8")
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
        _tell(out, Word.FAILED, **form_of(error))
        return
    session = None
    try:
        session = connect_session(jvm)
        serving.set()
        _tell(out, Word.SPARK, jvm=asdict(jvm.identity))
        _serve(session, RealtimeJob.from_json(order.job), order.checkpoint, words, out)
    except VelostreamError as error:
        _tell(out, Word.FAILED, **form_of(error))
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


def _tell(out: TextIO, word: Word, **more: object) -> None:
    out.write(json.dumps({"word": word, **more}) + "\n")
    out.flush()


def _serve(session: SparkSession, job: RealtimeJob, checkpoint: str, words: queue.Queue[str], out: TextIO) -> None:
    """Run the query until it is to stop; what ends it otherwise is told, and it is started again when that is said."""
    word = Word.START.value
    while word != Word.STOP:
        running = None
        try:
            running = start(session, job, checkpoint)
            _tell(out, Word.STARTED)
            word = _watch(running, words, out)
        except Exception as error:  # noqa: BLE001 - whatever it is must be told to who runs the query
            _tell(out, Word.FAILED, **form_of(failure(error, job)))
            word = words.get()
        finally:
            if running is not None and running.isActive:
                running.stop()


def _watch(running: StreamingQuery, words: queue.Queue[str], out: TextIO) -> str:
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
            _tell(out, Word.PROGRESS, batch=told, rows=progress["numInputRows"], end=_end_of(sources[0]["endOffset"]))
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


if __name__ == "__main__":
    main()
