"""The public connection: what `connect()` gives, over the engine's parts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from velostream.engine.catalog import HIDDEN, Catalog, Entry, EntryKind, Wish
from velostream.engine.context import EngineContext
from velostream.engine.definitions import Definitions
from velostream.engine.directory import StateDirectory
from velostream.engine.execute import Executor, Parameters
from velostream.engine.feed import MemoryFeed
from velostream.engine.growing import Growing
from velostream.engine.handle import TableHandle
from velostream.engine.launch import Launcher
from velostream.engine.registering import register
from velostream.engine.relations import SnapshotRelations
from velostream.engine.replica import ReplicaPublisher
from velostream.engine.result import Result
from velostream.engine.scripts import ScriptRunner
from velostream.engine.session import Session, TransactionHandle
from velostream.engine.show import Shower
from velostream.engine.sourcing import SourceBook
from velostream.engine.spark import SparkRuntime
from velostream.engine.status import State
from velostream.engine.subscribe import subscribe
from velostream.engine.supervisor import Supervisor
from velostream.errors import ClosedError, NotFoundError, QueryError
from velostream.model.change import ChangeBatch
from velostream.model.spool import Spool
from velostream.sql.statements import Transaction as TransactionStatement
from velostream.sql.statements import TransactionAction
from velostream.tables.memory.sequence import CommitSequence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.transactions import Transaction

_FOREVER = float("inf")
_FIRST_READING_SECONDS = 60.0
"""How long a subscriber waits for a store that doesn't answer."""


def connect(
    path: str | os.PathLike[str] | None = None,
    *,
    spark: SparkSession | None = None,
    config: Mapping[str, Any] | None = None,
) -> Connection:
    """Open the engine. Without a path nothing is kept; with one, everything in that folder resumes by itself."""
    return Connection(path, spark=spark, config=config)


class Connection:
    """An embedded engine: tables, queries and everything that runs for them. May be used from many threads."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        spark: SparkSession | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        settings = {name: str(value) for name, value in (config or {}).items()}
        self._directory = StateDirectory(path)
        runtime = SparkRuntime(
            directory=self._directory.folder("spark"),
            session=spark,
            config=settings,
            inherit=[self._directory.lock_descriptor],
        )
        try:
            self._open(settings, runtime)
        except BaseException:
            runtime.stop()
            self._directory.close()
            raise

    def _open(self, settings: dict[str, str], runtime: SparkRuntime) -> None:
        directory = self._directory
        catalog = Catalog(directory.path / "catalog.json")
        if any(entry.is_query and entry.kind not in HIDDEN for entry in catalog):
            # Queries will be resumed and need Spark, which takes about as long to start as a long log to read.
            runtime.warm_up()
        sequence = CommitSequence.open(directory.folder("log") if directory.durable else None)
        self._context = EngineContext(
            directory=directory,
            catalog=catalog,
            sequence=sequence,
            spark=runtime,
            replicas=ReplicaPublisher(directory.folder("replicas")),
            relations=SnapshotRelations(directory.folder("snapshots")),
            config=settings,
        )
        self._book = SourceBook(directory, sequence, catalog)
        self._launcher = Launcher(self._context, self._book)
        self._supervisor = Supervisor(self._context, self._launcher)
        self._growing = Growing(self._context, self._launcher, self._supervisor)
        self._context.further_columns = self._growing.begin
        definitions = Definitions(self._context, self._launcher, self._supervisor)
        self._executor = Executor(self._context, self._launcher, definitions, self._supervisor)
        self._shower = Shower(self._context)
        self._feeds: dict[str, MemoryFeed] = {}
        self._spoken = threading.local()
        self._lock = threading.Lock()
        self._closed = False
        self._supervisor.resume()
        self._executor.recover()
        self._resuming: threading.Thread | None = None
        if any(entry.is_query and entry.kind not in HIDDEN for entry in self._context.catalog):
            self._resuming = threading.Thread(target=self._supervisor.resume_queries, name="resume", daemon=True)
            self._resuming.start()

    def execute(self, sql: str, params: Parameters = None) -> Result:
        """Execute one statement. A BEGIN holds for the statements of the same thread until its COMMIT or ROLLBACK."""
        self._check_open()
        return self._session().execute_text(sql, params)

    def interrupt(self) -> None:
        """Cancel the statements that other threads are executing just now; what runs continuously goes on."""
        self._context.spark.interrupt()

    def execute_script(self, text: str) -> list[Result]:
        """Execute statements one after another; the first error ends it, and rolls back the transaction it is in."""
        self._check_open()
        return self._session().execute_script(text)

    def run_script(self, text: str) -> list[Result]:
        """Execute a script that may have run before on this state directory.

        Statements equal to the catalog's are continued, not repeated, and so is what it inserted, changed and removed;
        one that has changed is an error.
        """
        self._check_open()
        return ScriptRunner(self._context, self._executor).run(text)

    def table(self, name: str) -> TableHandle:
        """The table or view of that name."""
        return self._table(name, None)

    def _table(self, name: str, transaction: Transaction | None) -> TableHandle:
        """A table as everybody sees it, or as a transaction does."""
        self._check_open()
        entry = self._entry(name)
        table = self._context.table_of(entry) if transaction is None else transaction.table(entry)

        def frame() -> DataFrame:
            session = self._context.spark.session()
            return self._context.frame(session, entry) if transaction is None else transaction.frame(session, entry)

        return TableHandle(
            table,
            writable=entry.kind is EntryKind.TABLE,
            spark=frame,
            evaluate=self._executor.evaluate_over(entry, transaction=transaction),
            last_updated=lambda: self._context.sequence.changed_at(entry.id),
        )

    def register(self, name: str, data: Any, *, key: Sequence[str] = ()) -> TableHandle:
        """Make data a table to query and join: dicts, Arrow, pandas, Polars or a Spark DataFrame.

        Registered again under its name, the data is the table's new content, and what reads the table follows.
        """
        self._check_open()
        register(self._context, name, data, key=key, execute=self._executor.execute)
        return self.table(name)

    def create_function(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        returns: str,
        kind: str = "scalar",
        vectorised: bool | None = None,
    ) -> None:
        """Make a Python function callable from any SQL, views and streams included.

        It is called with the values of each row, None for NULL; one that is `vectorised`, or annotated to take or give
        `pyarrow.Array`, with arrays of many rows. Of the kind `aggregate` it is called once for each group, with a list
        of the group's values per argument (or an array, if vectorised), and gives one value; the rows come in the order
        of their values, NULLs first, and a group without rows gives empty lists. Equal arguments must give equal
        results. What it gives is of the type `returns`. Registered again it replaces the function of that name, and
        queries that use it are restarted: views over tables are computed anew, what a stream brings is computed by the
        new one from then on.
        """
        self._check_open()
        replaced = self._context.functions.create(name, function, returns=returns, kind=kind, vectorised=vectorised)
        if replaced is not None:
            self._supervisor.restart_users(name)

    def memory(self, name: str) -> MemoryFeed:
        """The feed behind `memory://name`."""
        self._check_open()
        with self._lock:
            feed = self._feeds.get(name)
            if feed is None:
                spool = Spool(self._book.memory_folder(name), durable=self._directory.durable)
                feed = self._feeds[name] = MemoryFeed(name, spool, self._launcher.running.wake)
            return feed

    def tables(self) -> list[str]:
        """Names of all tables and views."""
        return [entry.name for entry in self._context.catalog.visible() if entry.is_table]

    def queries(self) -> list[str]:
        """Names of all queries: views, derived streams, continuous inserts."""
        return [entry.name for entry in self._context.catalog.visible() if entry.is_query]

    def wait(self, name: str, timeout: float | None = 30) -> None:
        """Return when the table or query is ready; raise its failure, or `WaitTimeoutError`."""
        self._check_open()
        self._context.wait_ready(self._any_entry(name), _deadline(timeout))

    def raise_failure(self, name: str) -> None:
        """Raise what made a table or query fail, if it did."""
        entry = self._any_entry(name)
        for board in (self._context.board(entry), *(board for _, board in self._context.hidden_inputs(entry))):
            board.raise_if_dead()

    def drain(self, name: str, timeout: float | None = 30) -> None:
        """Return when everything its sources held at the moment of the call is visible in it."""
        self._check_open()
        deadline = _deadline(timeout)
        entry = self._any_entry(name)
        if entry.wish is not Wish.RUNNING:
            raise QueryError(f'query "{entry.name}" is {entry.wish}', hint=f'RESUME QUERY "{entry.name}" lets it go on')
        for one in self._context.catalog.upstream(entry):
            self._drain(one, deadline)

    def drain_all(self, timeout: float | None = None) -> None:
        """Drain every query that isn't paused or stopped, inputs before readers."""
        deadline = _deadline(timeout)
        drained: set[str] = set()
        for entry in self._context.catalog.visible():
            for one in self._context.catalog.upstream(entry):
                if one.id not in drained:
                    drained.add(one.id)
                    if not self._has_nothing_to_read(one):
                        self._drain(one, deadline)

    def _has_nothing_to_read(self, entry: Entry) -> bool:
        """Whether it waits for the first rows of its source: what is there now is nothing."""
        status = self._context.board(entry).status
        return entry.is_query and entry.schema is None and status.state is State.WAITING and bool(status.reason)

    def _drain(self, entry: Entry, deadline: float) -> None:
        board = self._context.board(entry)
        while True:
            while entry.is_query and entry.id not in self._launcher.running.runners:
                if self._is_at_rest(entry):
                    return
                board.raise_if_dead()
                if time.monotonic() > deadline:
                    raise board.timed_out("did not start in time")
                board.wait_for_news(0.1)
            runner = self._launcher.running.runners.get(entry.id)
            if runner is not None:
                runner.raise_if_dead()
                runner.drain(deadline)
            if self._launcher.running.runners.get(entry.id) is runner:
                return
            # Another one has taken its place meanwhile.

    def _is_at_rest(self, entry: Entry) -> bool:
        """Whether nothing runs for it by wish: its own, or for an entry of the engine's that of all who read it."""
        if entry.kind not in HIDDEN:
            known = self._context.catalog.by_id(entry.id)
            return known is None or known.wish is not Wish.RUNNING
        readers = self._context.catalog.readers_of(entry.id)
        for reader in readers:
            self._context.board(reader).raise_if_dead()
        return all(self._is_at_rest(reader) for reader in readers)

    def status(self, name: str | None = None) -> Any:
        """The status of one table or query; without a name a list of all."""
        if name is not None:
            return self._shower.status(self._any_entry(name))
        return [self._shower.status(entry) for entry in self._context.catalog.visible()]

    def metrics(self) -> dict[str, Any]:
        """Figures of every table, and where the commit sequence stands."""
        tables = {
            entry.name: self._shower.metrics(entry)
            for entry in self._context.catalog.visible()
            if entry.is_table and entry.schema is not None
        }
        return {"sequence": self._context.sequence.sequence, "tables": tables}

    def subscribe(self, name: str, since: int | None = None) -> Iterator[ChangeBatch]:
        """Signed change batches: first what turns version `since` (None: nothing) into now, then every commit.

        A table in a store is followed through a mirror of ours, whose versions these are: our own commits at once,
        what other programs write within the table's `poll.interval`.
        """
        self._check_open()
        entry = self._launcher.hidden.follow(self._entry(name), time.monotonic() + _FIRST_READING_SECONDS)

        def alive() -> bool:
            return not self._closed and self._context.catalog.by_id(entry.id) is not None

        return subscribe(self._context, self._context.memory_table(entry.id), since=since, alive=alive)

    def begin(self) -> TransactionHandle:
        """Begin a transaction: `with con.begin() as tx`, and what is done through `tx` is done as one.

        Several may be open at once, in any threads; the connection's own `execute` stays outside of them.
        """
        self._check_open()
        handle = TransactionHandle(Session(self._executor), self._table)
        self._spoken.begun = handle
        return handle

    def commit(self) -> None:
        """Commit what this thread has begun, by BEGIN or by `begin`."""
        self._ending(TransactionAction.COMMIT)

    def rollback(self) -> None:
        """Roll back what this thread has begun, by BEGIN or by `begin`."""
        self._ending(TransactionAction.ROLLBACK)

    def session(self) -> Session:
        """A speaker of its own, whose BEGIN holds for what is said there, by whichever thread."""
        self._check_open()
        return Session(self._executor)

    def _session(self) -> Session:
        """What this thread says."""
        session: Session | None = getattr(self._spoken, "session", None)
        if session is None:
            session = self._spoken.session = Session(self._executor)
        return session

    def _ending(self, action: TransactionAction) -> None:
        self._check_open()
        begun: TransactionHandle | None = getattr(self._spoken, "begun", None)
        if self._session().transaction is None and begun is not None and begun.is_open:
            begun.commit() if action is TransactionAction.COMMIT else begun.rollback()
        else:
            self._session().execute(TransactionStatement(action))

    def close(self) -> None:
        """Stop everything and let go of the state directory. May be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._context.closing.set()
        if self._resuming is not None:
            self._resuming.join(timeout=60)
        self._growing.close()
        self._launcher.running.close()
        self._context.relations.close()
        self._context.replicas.close()
        self._context.spark.stop()
        self._context.stores.close()
        self._context.sequence.close()
        self._directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("connection is closed", hint="velostream.connect() opens a new one")

    def _entry(self, name: str) -> Entry:
        entry = self._context.catalog.find(name)
        if entry is None or not entry.is_table:
            raise NotFoundError.of("table", name, known=self.tables())
        return entry

    def _any_entry(self, name: str) -> Entry:
        entry = self._context.catalog.find(name)
        if entry is None:
            raise NotFoundError.of("table", name, known=[e.name for e in self._context.catalog.visible()])
        return entry

    get_table = table
    list_tables = tables
    begin_transaction = begin

    def has_table(self, name: str) -> bool:
        entry = self._context.catalog.find(name)
        return entry is not None and entry.is_table


def _deadline(timeout: float | None) -> float:
    return _FOREVER if timeout is None else time.monotonic() + timeout
