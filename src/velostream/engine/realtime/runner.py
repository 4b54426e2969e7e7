"""A query in Real-Time Mode as the connection sees it: its process is started, watched, started again and ended."""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velostream.engine.jvm import Identity, end_orphan
from velostream.engine.query import Runner
from velostream.engine.realtime import process
from velostream.engine.realtime.connector import connector_jars
from velostream.engine.realtime.failures import error_of
from velostream.engine.realtime.process import Order, Word
from velostream.engine.spark_failures import query_error
from velostream.engine.status import State
from velostream.errors import (
    Category,
    ClosedError,
    QueryError,
    SourceError,
    StateError,
    StoreError,
    VelostreamError,
    present,
)
from velostream.model.change import Epoch
from velostream.model.retry import RetryPolicy
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.realtime.job import RealtimeJob
    from velostream.sinks.base import Sink
    from velostream.sources.base import Offset, Source

_LOG = logging.getLogger(__name__)
_LOOK_AT_BROKERS_SECONDS = 1.0
_NEWS_SECONDS = 0.2
_STOP_SECONDS = 20.0
_FEWEST_SLOTS = 16
_MADE, _RUN = 0, 1
"""Epochs of a query, which are two in all: its positions are in Spark's checkpoint."""
_SPARK_SETTINGS = ("spark.driver.memory", "spark.driver.extraJavaOptions", "spark.sql.")
"""How settings of the connection begin that go for the Spark of such a query, too."""


class RealtimeRunner(Runner):
    """From one topic to another in Real-Time Mode.

    Guarantee: at-least-once. Spark writes down how far it has read at the end of each batch, in the checkpoint in the
    state directory, and writes messages before.
    """

    def __init__(
        self,
        context: EngineContext,
        entry: Entry,
        *,
        source: Source,
        sink: Sink,
        start: Offset,
        job: RealtimeJob,
    ) -> None:
        """The source is asked how things stand, from `start` on; messages never come here."""
        super().__init__(context, entry)
        self._source = source
        self._asking = threading.Lock()
        """The source is asked by one thread at a time."""
        self._sink = sink
        self._job = job
        self._position = start
        self._batches = -1
        """The number of the last batch that is over."""
        self._idle_batch = -1
        """Of the last one in which nothing came."""
        self._ready_at: Offset | None = None
        self._is_running = False
        """Whether Spark runs the query, as far as it has told."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._process: _Process | None = None
        self._retry = RetryPolicy.while_running()
        self._attempts = 0

    def start(self) -> None:
        self.board.become(State.LOADING)
        self._thread = threading.Thread(target=self._run, name=f"realtime {self.entry.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._thread = None

    def drain(self, deadline: float) -> None:
        with self._asking:
            self.board.raise_if_dead()
            if self._ending:
                return
            target = self._source.latest_offset(self._position)
        # What came in a batch that began after the call, and was idle, was all: a topic may end in a gap.
        idle_after = self._batches + 1
        while not self._source.reached(self._position, target) and self._idle_batch <= idle_after:
            if self._ending:
                return
            self.board.raise_if_dead()
            if self._ending:
                return
            if time.monotonic() > deadline:
                raise self.board.timed_out("did not catch up in time")
            self.board.wait_for_news(0.1)

    @property
    def processes(self) -> Sequence[int]:
        """The processes that run for the query: ours and its JVM."""
        running = self._process
        return () if running is None else running.ids

    def _run(self) -> None:
        try:
            while not self._ending:
                try:
                    self._run_once()
                except Exception as error:  # noqa: BLE001 - whatever it is must show on the board
                    if self._ending:
                        break
                    self._trouble(query_error(error, f'query "{self.entry.name}" failed'))
                    if self.board.state is State.FAILED:
                        break
        finally:
            self._end_process()
            with self._asking:
                self._source.close()
            self._sink.close()

    @property
    def _ending(self) -> bool:
        return self._stopping.is_set() or self.context.closing.is_set()

    def _trouble(self, error: VelostreamError) -> None:
        """What ends the query now: retried where that may help, else the end of it."""
        if isinstance(error, StateError) or not error.category.retriable:
            self.board.become(State.FAILED, error.message, error=error)
            return
        self._attempts += 1
        delay = self._retry.delay(self._attempts)
        self.board.retrying(error, attempts=self._attempts, delay=delay)
        self._stopping.wait(delay.total_seconds())

    def _run_once(self) -> None:
        """Run the query until it is to stop; raises what ends it otherwise."""
        topic = self._latest()
        self._ready_at = self._ready_at or topic
        checkpoint = self._checkpoint(topic)
        slots = _slots(topic)
        running = self._process
        if running is not None and (running.ended or running.slots < slots):
            self._end_process()
            running = None
        if running is None:
            running = self._start_process(checkpoint, slots)
        else:
            running.say(Word.START)
        self._watch(running)

    def _start_process(self, checkpoint: Path, slots: int) -> _Process:
        order = Order(
            job=self._job.to_json(),
            jars=[str(jar) for jar in connector_jars(self._tell)],
            slots=slots,
            checkpoint=str(checkpoint),
            logs=str(self.context.directory.folder("logs") / f"realtime-{self.entry.id}"),
            inherit=[self.context.directory.lock_descriptor],
            settings={name: value for name, value in self.context.config.items() if name.startswith(_SPARK_SETTINGS)},
        )
        self._tell("Spark is starting")
        self._process = started = _Process(order)
        return started

    def _watch(self, running: _Process) -> None:
        look_at = time.monotonic() + _LOOK_AT_BROKERS_SECONDS
        while not self._ending:
            news = running.news(_NEWS_SECONDS)
            if news is not None:
                self._hear(news)
            if time.monotonic() >= look_at:
                self._look_at_brokers(running)
                look_at = time.monotonic() + _LOOK_AT_BROKERS_SECONDS

    def _hear(self, news: Mapping[str, Any]) -> None:
        match news["word"]:
            case Word.STARTED:
                self._is_running = True
                self._tell("the first batch is running")
            case Word.PROGRESS:
                self._progress(news)
            case Word.FAILED:
                self._is_running = False
                error = error_of(news)
                if error.category is not Category.DATA:
                    # The brokers know best what is wrong with them, or that a topic is gone.
                    self._latest()
                raise error

    def _progress(self, news: Mapping[str, Any]) -> None:
        if self._batches < 0:
            self._note(self._position, _RUN)
        position = {**self._position, "partitions": {**self._position["partitions"], **news["end"]}}
        if news["rows"]:
            self.board.count(news["rows"])
        else:
            self._idle_batch = news["batch"]
        self._position, self._batches = position, news["batch"]
        self._attempts = 0
        if self.board.state is not State.READY and (
            not news["rows"] or self.board.was_ready or self._source.reached(position, present(self._ready_at))
        ):
            self.board.become(State.READY)
        self.board.notify()

    def _look_at_brokers(self, running: _Process) -> None:
        """A broker that is away is noticed here: Spark waits for it, and goes on when it is back."""
        try:
            topic = self._latest()
        except (SourceError, StoreError) as error:
            if not error.category.retriable:
                raise
            self._attempts += 1
            # Spark itself tries again all the time.
            self.board.retrying(error, attempts=self._attempts, delay=self._retry.delay(1))
            return
        if _slots(topic) > running.slots:
            self._end_process()
            raise QueryError(
                f'topic of query "{self.entry.name}" has got partitions',
                detail="Spark is started anew with a task for each",
                category=Category.CONCURRENCY,
            )
        if self._is_running and self.board.state in (State.DEGRADED, State.WAITING):
            self.board.become(State.READY if self.board.was_ready else State.LOADING)

    def _latest(self) -> Offset:
        with self._asking:
            return self._source.latest_offset(self._position)

    def _checkpoint(self, topic: Offset) -> Path:
        """Where Spark keeps its position; that it has one is in our log, so that a lost one is noticed."""
        path = self.context.directory.folder("checkpoints", self.entry.id) / "realtime"
        known = self.context.sequence.writer(self.entry.id)
        if known is None:
            self._note(topic, _MADE)
            return path
        if known.position["topic"] != topic["topic"]:
            raise SourceError.topic_replaced(self._source.spec.shown)
        if known.epoch >= _RUN and not path.exists():
            # Spark would begin anew without a word.
            raise StateError.checkpoint(self.entry.name, reason=f"there is none in {path}")
        return path

    def _note(self, topic: Offset, epoch: int) -> None:
        """How far the query has come, in our log: that it is made, or that its checkpoint holds a position."""
        self.context.sequence.commit(Part(epoch=Epoch(self.entry.id, epoch), position={"topic": topic["topic"]}))

    def _tell(self, line: str) -> None:
        """How far the start is: on the board, and in the program's log. Raises when the query is to stop instead."""
        if self._ending:
            raise ClosedError(f'query "{self.entry.name}" is stopped')
        _LOG.info("%s: %s", self.entry.name, line)
        if self.board.state in (State.LOADING, State.WAITING):
            self.board.become(State.LOADING, line)

    def _end_process(self) -> None:
        running, self._process = self._process, None
        self._is_running = False
        if running is not None:
            running.end()


class _Process:
    """The process of a query, and what it says."""

    def __init__(self, order: Order) -> None:
        self.slots = order.slots
        self._jvm: Identity | None = None
        self._is_lost = False
        """Whether it says nothing any more."""
        logs = Path(order.logs)
        logs.mkdir(parents=True, exist_ok=True)
        self._errors = logs / "process.err"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        heard, told = os.pipe()
        try:
            with self._errors.open("wb") as errors:
                self._process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-m", process.__name__, str(told)],
                    stdin=subprocess.PIPE,
                    stdout=errors,
                    stderr=errors,
                    env=environment,
                    pass_fds=(told, *order.inherit),
                    start_new_session=True,
                    text=True,
                )
        except BaseException:
            os.close(heard)
            raise
        finally:
            # The process has the only one: the pipe ends when it does.
            os.close(told)
        self._news: queue.Queue[dict[str, Any]] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, args=(heard,), daemon=True)
        self._listener.start()
        self._write(json.dumps(asdict(order)))

    @property
    def ids(self) -> Sequence[int]:
        return [self._process.pid] if self._jvm is None else [self._process.pid, self._jvm.pid]

    @property
    def ended(self) -> bool:
        return self._is_lost or self._process.poll() is not None

    def say(self, word: Word) -> None:
        self._write(word.value)

    def news(self, seconds: float) -> dict[str, Any] | None:
        """What it says next, if it does so in time; raises a retriable error when it has ended instead."""
        try:
            found = self._news.get(timeout=seconds)
        except queue.Empty:
            return None
        if found["word"] == "":
            self._is_lost = True
            raise self._lost()
        return found

    def end(self) -> None:
        """Returns when it is gone, and its JVM with it."""
        self.say(Word.STOP)
        try:
            self._process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(_STOP_SECONDS)
        if self._jvm is not None:
            # It reads a pipe that the process held, and ends by itself; until then it may be busy with a batch.
            end_orphan(self._jvm)
        with suppress(BrokenPipeError):
            present(self._process.stdin).close()

    def _write(self, line: str) -> None:
        try:
            print(line, file=self._process.stdin, flush=True)
        except (BrokenPipeError, ValueError):
            # That it has ended is told by what it doesn't say.
            return

    def _listen(self, heard: int) -> None:
        try:
            with os.fdopen(heard, encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._heard(line)
        finally:
            self._news.put({"word": ""})

    def _heard(self, line: str) -> None:
        try:
            found = json.loads(line)
        except ValueError:
            # Such as the half of one, if it was killed meanwhile.
            _LOG.warning("the process of a query in real time said %r", line)
            return
        if found["word"] == Word.SPARK:
            self._jvm = Identity(**found["jvm"])
        self._news.put(found)

    def _lost(self) -> VelostreamError:
        lines = self._errors.read_text(errors="replace").strip().splitlines()
        return VelostreamError(
            "the Spark of a query in real time has ended",
            detail="\n".join(lines[-3:]) or f"its log is in {self._errors.parent}",
            hint="it is started again by itself",
            code="spark-lost",
            category=Category.STATE,
        )


def _slots(topic: Offset) -> int:
    """As many tasks as there may be: each partition holds one, and more partitions may come."""
    return max(_FEWEST_SLOTS, 2 * len(topic["partitions"]))
