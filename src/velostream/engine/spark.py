"""Spark, started when the first statement needs it.

PySpark allows one Spark context per process. Connections of one process therefore share one JVM and one context,
each with a session of its own (settings, temporary views, streaming queries); the last one to stop ends the JVM.
A session or a context that the user has made is used as it is and never stopped by us.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from velostream.engine.java import find_java
from velostream.engine.jvm import Identity, SparkJvm, await_orphan, new_home, record_user
from velostream.errors import Category, ClosedError, OptionError, VelostreamError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CORES = os.cpu_count() or 1

_SESSION_SETTINGS = {
    # A stateless plan with a shuffle would otherwise run tasks before foreachBatch has written the batch's pin.
    "spark.sql.adaptive.streaming.stateless.enabled": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": str(min(_CORES, 8)),
    "spark.sql.streaming.metricsEnabled": "false",
    # An idle aggregate looks for new files that often; the default of 10 ms keeps a core busy.
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stopTimeout": "10s",
}
"""What the engine relies on; set on every session it uses, a user's included."""

_RELIED_ON = (
    "spark.sql.adaptive.streaming.stateless.enabled",
    "spark.sql.ansi.",
    "spark.sql.caseSensitive",
    "spark.sql.decimalOperations.",
    "spark.sql.legacy.",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.session.timeZone",
    "spark.sql.timestampType",
)
"""How settings begin that answers depend on, so that no statement may change them."""

_CONTEXT_SETTINGS = {
    "spark.app.name": "velostream",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # The second number retries a task: one dead Python worker must not fail a batch.
    "spark.master": f"local[{_CORES},4]",
    "spark.python.worker.reuse": "true",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""For a context of our own only."""

_NOISY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark prints every failed query to stderr through these; we raise it as an error of ours instead."""

_SECONDS_TO_END = 2.0

_JOB_GROUP_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")


class SparkRuntime:
    """A connection's way to Spark. All methods may be called from any thread.

    `directory` is the connection's state directory: Spark's log goes to its `logs` folder, and a JVM left over
    from a killed process that used it is waited for. `config` keys that start with `spark.` override the defaults;
    those of the context and the JVM have no effect when another connection of the process has started it already.
    `inherit` are file descriptors (the directory's lock) that a JVM started here keeps open as long as it lives;
    to release such a lock while the JVM goes on for other connections, unlock it explicitly.
    """

    def __init__(
        self,
        directory: Path,
        *,
        session: SparkSession | None = None,
        config: Mapping[str, Any] | None = None,
        inherit: Sequence[int] = (),
    ) -> None:
        self._directory = directory
        self._given = session
        self._config = {key: _text(value) for key, value in (config or {}).items() if key.startswith("spark.")}
        self._inherit = tuple(inherit)
        self._session: SparkSession | None = None
        self._stopped = False
        self._warming: threading.Thread | None = None
        self._lock = threading.Lock()
        self._functions: dict[str, Callable[[SparkSession], None]] = {}
        self._functions_lock = threading.Lock()
        self._calling = _CallingThread()
        self._job_group = f"velostream-{uuid.uuid4()}"

    @property
    def started(self) -> bool:
        """Whether `session()` answers at once."""
        return self._session is not None

    def session(self) -> SparkSession:
        """The session of this connection; the first call starts Spark, which takes seconds.

        So does the first one after the JVM has crashed.
        """
        session = self._session
        if session is None or self._is_lost:
            with self._lock:
                if self._stopped:
                    raise ClosedError("the connection is closed")
                if self._session is None or self._is_lost:
                    session = self._start()
                    self._begin(session)
                else:
                    session = self._session
        if self._calling.interruptible and not self._calling.grouped:
            session.sparkContext.setJobGroup(self._job_group, "a statement", interruptOnCancel=True)
            self._calling.grouped = True
        return session

    def register(self, name: str, register: Callable[[SparkSession], None]) -> None:
        """Let the session know a function, instead of another one of that name; so will every session started later.

        Doesn't wait for a start that is under way.
        """
        with self._functions_lock:
            if self._session is not None:
                register(self._session)
            self._functions[name] = register

    def set(self, key: str, value: str) -> None:
        """Change a setting of the session, and of every one started later; `OptionError` for one that can't be."""
        if key.startswith(_RELIED_ON):
            raise OptionError(f'setting "{key}" is one that the engine relies on', code="invalid-option")
        session = self.session()
        if not session.conf.isModifiable(key):
            raise OptionError(
                f'setting "{key}" is unknown to Spark, or fixed when Spark starts',
                hint=f'velostream.connect(config={{"{key}": "{value}"}}) gives it at the start',
                code="invalid-option",
            )
        session.conf.set(key, value)
        self._config[key] = value

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within, `interrupt` called by another thread ends the Spark jobs of this one.

        A JVM that crashes meanwhile is a retriable error `spark-lost`, whatever PySpark makes of it.
        """
        self._calling.interruptible = True
        try:
            yield
        except Exception as error:
            if not (_may_be_lost_gateway(error) and self._ends_soon()):
                raise
            raise VelostreamError(
                "Spark's process has ended",
                detail=f"its log is in {self._directory / 'logs'}",
                hint="run the statement again, which starts Spark anew",
                code="spark-lost",
                category=Category.STATE,
            ) from error
        finally:
            self._calling.interruptible = False
            if self._calling.grouped and self._session is not None:
                self._calling.grouped = False
                with _without_gateway_trouble():
                    for name in _JOB_GROUP_PROPERTIES:
                        self._session.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]

    def interrupt(self) -> None:
        """End the Spark jobs that were started within `interruptible`."""
        if self._session is not None:
            self._session.sparkContext.cancelJobGroup(self._job_group)

    def warm_up(self) -> None:
        """Start Spark in the background and return at once; a failure shows at the next `session()`."""
        with self._lock:
            if self._session is None and self._warming is None and not self._stopped:
                self._warming = threading.Thread(target=self._warm, name="velostream-spark-warm-up", daemon=True)
                self._warming.start()

    def stop(self) -> None:
        """Let go of Spark; the context ends with its last connection. Streaming queries must have been stopped."""
        with self._lock:
            self._stopped = True
            if self._session is not None and self._given is None:
                _process_spark.release(self)
            self._session = None

    def _ends_soon(self) -> bool:
        """Whether the JVM is gone: its sockets close a moment before its process ends."""
        deadline = time.monotonic() + _SECONDS_TO_END
        while not self._is_lost:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    @property
    def _is_lost(self) -> bool:
        """Whether the session we have is of a JVM that is gone."""
        return self._given is None and self._session is not None and _process_spark.has_lost(self)

    def _start(self) -> SparkSession:
        if self._given is not None:
            base = self._given
        else:
            for name in _NOISY_LOGGERS:
                logging.getLogger(name).setLevel(logging.CRITICAL)
            await_orphan(self._directory, ours=_process_spark.identity)
            base = _process_spark.acquire(
                self,
                config=self._config,
                log_directory=self._directory / "logs",
                inherit=self._inherit,
            )
            if _process_spark.identity is not None:
                record_user(self._directory, _process_spark.identity)
        session = base.newSession()
        for key, value in (_SESSION_SETTINGS | self._config).items():
            if session.conf.isModifiable(key):
                session.conf.set(key, value)
        return session

    def _begin(self, session: SparkSession) -> None:
        """From now on the session is ours; it knows every function, whoever registers one just now."""
        with self._functions_lock:
            for register in self._functions.values():
                register(session)
            self._session = session

    def _warm(self) -> None:
        with suppress(VelostreamError):
            self.session()


class _CallingThread(threading.local):
    """What a runtime knows of each thread that calls it."""

    interruptible = False
    grouped = False


class _ProcessSpark:
    """The process's one Spark context: who uses it, and how it begins and ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._users: set[SparkRuntime] = set()
        self._jvm: SparkJvm | None = None
        self._root: SparkSession | None = None

    @property
    def identity(self) -> Identity | None:
        """The JVM that is ours, if one is running."""
        return self._jvm.identity if self._jvm is not None else None

    def acquire(
        self, user: SparkRuntime, *, config: Mapping[str, str], log_directory: Path, inherit: Sequence[int]
    ) -> SparkSession:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        with self._lock:
            if self._is_dead():
                self.end()
            if self._root is None:
                running = SparkContext._active_spark_context
                if running is not None:
                    self._root = SparkSession(running)
                else:
                    self._root = self._launch(config, log_directory=log_directory, inherit=inherit)
            self._users.add(user)
            return self._root

    def has_lost(self, user: SparkRuntime) -> bool:
        """Whether the context that a user was given is gone."""
        return self._is_dead() or user not in self._users

    def release(self, user: SparkRuntime) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self.end()

    def end(self) -> None:
        """Stop what we started and forget the rest."""
        with self._lock:
            jvm, root = self._jvm, self._root
            self._jvm = self._root = None
            self._users.clear()
            if jvm is not None:
                disconnect_session(jvm, session=root)

    def _is_dead(self) -> bool:
        """Whether the JVM has crashed, or the user has stopped the context we borrowed."""
        if self._jvm is not None:
            return not self._jvm.alive
        return self._root is not None and self._root.sparkContext._jsc is None

    def _launch(self, config: Mapping[str, str], *, log_directory: Path, inherit: Sequence[int]) -> SparkSession:
        home = new_home()
        try:
            jvm = SparkJvm(
                find_java(),
                home=home,
                settings=default_settings(home) | dict(config),
                log_directory=log_directory,
                inherit=inherit,
            )
        except VelostreamError:
            shutil.rmtree(home, ignore_errors=True)
            raise
        self._jvm = jvm
        try:
            return connect_session(jvm)
        except BaseException:
            self.end()
            raise


_process_spark = _ProcessSpark()
atexit.register(_process_spark.end)


def default_settings(home: Path) -> dict[str, str]:
    """Settings of a context of our own, whose JVM has this home."""
    scratch = {"spark.local.dir": str(home), "spark.sql.warehouse.dir": (home / "warehouse").as_uri()}
    return _CONTEXT_SETTINGS | _SESSION_SETTINGS | scratch


def connect_session(jvm: SparkJvm) -> SparkSession:
    """Make PySpark's context in a JVM that is running, leaving no trace of it in the environment."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway_variables = {
        "PYSPARK_GATEWAY_PORT": str(jvm.port),
        "PYSPARK_GATEWAY_SECRET": jvm.secret,
        "PYSPARK_PYTHON": sys.executable,
    }
    try:
        with _environment(gateway_variables), _interrupt_handler_kept(), _module_path_kept():
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
            # The JVM may outlive us by a moment, so the last one to use its home is the one to remove it.
            gateway.jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(
                gateway.jvm.java.io.File(str(jvm.home))
            )
            return SparkSession(SparkContext(conf=SparkConf(_jvm=gateway.jvm), gateway=gateway))
    except Py4JError as error:
        raise VelostreamError(
            "Spark did not start",
            detail=str(error).strip().splitlines()[0],
            hint=f"see {jvm.log_file}, and check the spark.* settings given to connect()",
            code="spark-start",
            category=Category.CONFIGURATION,
        ) from error


def disconnect_session(jvm: SparkJvm, *, session: SparkSession | None) -> None:
    """End a JVM of ours and leave the process as if Spark had never run in it."""
    if session is not None and jvm.alive:
        with _without_gateway_trouble():
            session.stop()
    _forget_gateway()
    jvm.stop()
    shutil.rmtree(jvm.home, ignore_errors=True)


def _forget_gateway() -> None:
    """Close PySpark's connection to our JVM, so that the next context of this process starts with one of its own."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    SparkSession._instantiatedSession = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    if gateway is not None:
        with _without_gateway_trouble():
            gateway.shutdown()


@contextmanager
def _without_gateway_trouble() -> Iterator[None]:
    """A JVM that has crashed can't answer any more."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, OSError):
        yield


def _may_be_lost_gateway(error: BaseException) -> bool:
    """Whether an error, or one that led to it, is how PySpark tells that the JVM doesn't answer."""
    from py4j.protocol import Py4JError, Py4JJavaError

    chain: BaseException | None = error
    seen: set[int] = set()
    while chain is not None and id(chain) not in seen:
        if isinstance(chain, Py4JError | OSError) and not isinstance(chain, Py4JJavaError):
            return True
        seen.add(id(chain))
        chain = chain.__cause__ or chain.__context__
    return False


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _interrupt_handler_kept() -> Iterator[None]:
    """PySpark replaces the handler of Ctrl-C by one that cancels every job of every query."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


@contextmanager
def _module_path_kept() -> Iterator[None]:
    """PySpark puts its folder of distributed files in front of the module path; we distribute none."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before


def _text(value: object) -> str:
    """A setting as Spark reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
