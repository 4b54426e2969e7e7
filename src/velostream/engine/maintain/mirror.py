"""A mirror: the rows of a table in a store, kept in our own log for the views that read it.

Views need versions that stay readable and waves that see one state of all their inputs, which stores don't give. So a
table in a store that a view reads is followed into a hidden table: what our own commits changed at once, what other
programs changed within `poll.interval`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from velostream.engine.query import Runner
from velostream.engine.spark_failures import query_error
from velostream.engine.status import State
from velostream.errors import StoreError, TableError, UnsupportedError, VelostreamError
from velostream.model.change import Epoch, JsonValue, Mode, Write
from velostream.model.retry import RetryPolicy
from velostream.tables.memory.sequence import Part

if TYPE_CHECKING:
    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.stores import StoreTable

_HASTY_READINGS = 3
"""How often a reading may be overtaken by a commit of ours before commits have to wait for it."""


class MirrorRunner(Runner):
    """Follows one table of a store on a thread of its own, and commits what changed there into the mirror."""

    def __init__(self, context: EngineContext, entry: Entry, *, store: StoreTable, poll_interval: timedelta) -> None:
        super().__init__(context, entry)
        self._store = store
        self._poll_seconds = poll_interval.total_seconds()
        self._lock = threading.Lock()
        """Held while the mirror is compared with the table."""
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._unsubscribe: Callable[[], None] | None = None
        known = context.sequence.writer(entry.id)
        self._number = -1 if known is None else known.epoch
        self._version: int | None = None if known is None else known.position["version"]
        """Of the table, whose rows the mirror has; None before it has any."""
        self._stamp: str | None = None if known is None else known.position["stamp"]
        self._follows: bool | None = None
        """Whether the table keeps its changes for us; None before it was asked to."""
        self._retry = RetryPolicy.while_running()
        self._compared_at = float("-inf")
        """When the mirror last was known to hold what anyone may have written."""

    def start(self) -> None:
        self._stopping = False
        self.board.become(State.LOADING)
        self._unsubscribe = self._store.listen(self._wake.set)
        self._thread = threading.Thread(target=self._run, name=f"mirror {self.entry.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)

    def drain(self, deadline: float) -> None:
        """Look now; what other programs have written is seen, too."""
        while True:
            try:
                self._look(everyone=True)
            except StoreError as error:
                if not error.category.retriable or time.monotonic() > deadline:
                    raise
                self.board.wait_for_news(0.2)
            else:
                return

    def catch_up(self) -> None:
        """See what our own commits have changed. While the store is away the mirror stays as it is."""
        if self._store.is_away:
            return
        try:
            self._look(everyone=False)
        except VelostreamError as error:
            self._trouble(error, attempts=1)

    def _run(self) -> None:
        attempts = 0
        while not self._stopping and not self.context.closing.is_set():
            self._wake.clear()
            try:
                self._look(everyone=time.monotonic() >= self._compared_at + self._poll_seconds)
                attempts = 0
                pause = max(0.0, self._compared_at + self._poll_seconds - time.monotonic())
            except Exception as trouble:  # noqa: BLE001 - whatever it is must show on the board
                attempts += 1
                error = query_error(trouble, f'table "{self.entry.name}" could not be followed')
                self._trouble(error, attempts=attempts)
                pause = self._retry.delay(attempts).total_seconds()
            self._wake.wait(pause)

    def _trouble(self, error: VelostreamError, *, attempts: int) -> None:
        if self._stopping or self.context.closing.is_set():
            return
        self.board.retrying(error, attempts=attempts, delay=self._retry.delay(attempts))

    def _look(self, *, everyone: bool) -> None:
        """Bring the mirror to the table's present rows; `everyone`: what other programs wrote included."""
        with self._lock:
            if self._stopping:
                return
            now = time.monotonic()
            if self._follows is None:
                self._follows = self._follow()
            stamp = self._store.stamp()
            if self._version is None or not self._follows:
                if self._version is None or stamp is None or stamp != self._stamp:
                    self._read_again(stamp)
            else:
                self._take_changes(self._version, stamp, everyone=everyone)
            if everyone or self._compared_at == float("-inf"):
                self._compared_at = now
        if self.board.state is not State.READY:
            self.board.become(State.READY)
        self.board.notify()

    def _follow(self) -> bool:
        if not self._store.capabilities.changes:
            return False
        try:
            self._store.follow()
        except UnsupportedError:
            return False
        return True

    def _take_changes(self, since: int, stamp: str | None, *, everyone: bool) -> None:
        """What our commits changed comes as changes; other programs' writes are known by the stamp alone."""
        version = self._store.version
        if version != since:
            try:
                batch = self._store.changes(since)
                told = stamp == str(batch.version)
                self._commit(Write(Mode.CHANGES, batch.arrow), batch.version, stamp if told else self._stamp)
            except TableError:
                # Either they are not kept that long, or another program's writes stand between them and the mirror.
                self._read_again(stamp)
                return
            if told:
                return
        if everyone and (stamp is None or stamp != self._stamp):
            self._read_again(stamp)

    def _read_again(self, stamp: str | None) -> None:
        """The whole table; the difference is committed. The stamp was taken before, so that nothing is overlooked."""
        for _ in range(_HASTY_READINGS):
            snapshot = self._store.snapshot()
            rows = snapshot.scan()
            if self._store.version == snapshot.version:
                break
        else:
            with self._store.exclusive():
                snapshot = self._store.snapshot()
                rows = snapshot.scan()
        self._commit(Write(Mode.REPLACE, rows), snapshot.version, stamp)

    def _commit(self, write: Write, version: int, stamp: str | None) -> None:
        epoch = Epoch(self.entry.id, self._number + 1)
        position: JsonValue = {"version": version, "stamp": stamp}
        self.context.crash_point("mirror.before-commit")
        table = self.context.memory_table(self.entry.id)
        self.context.sequence.commit(Part(writes=[(table, write)], epoch=epoch, position=position))
        self.context.crash_point("mirror.after-commit")
        self._number, self._version, self._stamp = epoch.number, version, stamp
        self.board.count(write.rows.num_rows)
