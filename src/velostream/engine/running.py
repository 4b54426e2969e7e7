"""What runs: the runner of each query, and the readings that they share."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from velostream.engine.gate import Gate, GatePolicy
from velostream.engine.ingest import Ingest
from velostream.engine.maintain.fold import FoldRunner
from velostream.engine.maintain.views import MaintenanceLoop, ViewRunner
from velostream.engine.status import State

if TYPE_CHECKING:
    from velostream.engine.binding import BoundInput
    from velostream.engine.catalog import Entry
    from velostream.engine.consumer import Consumer
    from velostream.engine.context import EngineContext
    from velostream.engine.maintain.base import Maintenance
    from velostream.engine.query import Runner
    from velostream.engine.sourcing import SourceBook
    from velostream.model.options import Options


class Running:
    """One runner per query, one ingest per source, one maintenance loop for all views. For any thread."""

    def __init__(self, context: EngineContext, book: SourceBook) -> None:
        self._context = context
        self._book = book
        self.loop = MaintenanceLoop(context)
        self.runners: dict[str, Runner] = {}
        """By the ids of their entries."""
        self.ingests: list[Ingest] = []
        self.lock = threading.RLock()
        """Held by who looks whether something runs and starts it if not."""

    def start(self, runner: Runner) -> None:
        self.runners[runner.entry.id] = runner
        runner.start()

    def is_idle(self, entry: Entry) -> bool:
        """Whether nothing fills a hidden table; what has failed to is ended."""
        running = self.runners.get(entry.id)
        if running is not None and running.board.state is not State.FAILED:
            return False
        if running is not None:
            running.stop()
        return True

    def stop(self, entry: Entry) -> None:
        with self.lock:
            runner = self.runners.pop(entry.id, None)
        if runner is not None:
            runner.stop()

    def suspend(self, entry: Entry) -> None:
        """Stop what is started again at once."""
        with self.lock:
            runner = self.runners.pop(entry.id, None)
        if runner is not None:
            runner.suspend()

    def discard(self, entry: Entry) -> None:
        """Stop what will never run again."""
        with self.lock:
            runner = self.runners.pop(entry.id, None)
        if runner is not None:
            runner.discard()

    def view_runner(
        self, entry: Entry, maintenance: Maintenance, inputs: Mapping[str, Entry], options: Options
    ) -> ViewRunner:
        """What keeps a view up to date together with all others; not started yet."""
        gate = Gate([self._context.board(one) for one in inputs.values()], GatePolicy.of(options))
        return ViewRunner(self._context, entry, inputs=inputs, maintenance=maintenance, loop=self.loop, gate=gate)

    def ingest(self, bound: BoundInput) -> Ingest:
        """The reading of a stream, begun when it is the first to ask."""
        with self.lock:
            specs = bound.readings
            found = next((one for one in self.ingests if one.reads(specs, bound.schema)), None)
            if found is None:
                found = Ingest(self._context, bound.reading, bound.schema, open_source=self._book.open)
                self.ingests.append(found)
            return found

    def release(self, ingest: Ingest, consumer: Consumer) -> None:
        if ingest.detach(consumer):
            with self.lock:
                self.ingests = [one for one in self.ingests if one is not ingest]

    def wake(self) -> None:
        """A feed of ours has grown: look now instead of at the next poll."""
        for ingest in list(self.ingests):
            ingest.wake()
        for runner in list(self.runners.values()):
            if isinstance(runner, FoldRunner):
                runner.wake()

    def close(self) -> None:
        for runner in list(self.runners.values()):
            runner.stop()
        self.loop.close()
