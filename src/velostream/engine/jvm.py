"""The JVM that Spark runs in, started by us instead of by Spark's launcher script.

Ours starts faster, runs on the cut-down Java of the `jdk` extra (the launcher script insists on a module that one
leaves out), keeps Spark's noise off the terminal, and ends whenever this process ends, by whatever means: the JVM
reads a pipe that only we hold, and the end of that pipe is the end of the JVM.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from velostream.engine.archive import ClassArchive, class_archive
from velostream.engine.java import Java
from velostream.errors import Category, StateError, VelostreamError

_START_TIMEOUT_SECONDS = 120.0
_STOP_TIMEOUT_SECONDS = 10.0
_ARCHIVING_STOP_TIMEOUT_SECONDS = 180.0
_ORPHAN_TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.02

# What Spark's launcher passes (org.apache.spark.launcher.JavaModuleOptions of 4.2), without the incubator's vector
# module: only Spark ML uses it, it prints a warning, and the jdk extra doesn't have it.
_MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
)
_MODULE_OPTIONS_SINCE_24 = ("--sun-misc-unsafe-memory-access=allow", "--enable-native-access=ALL-UNNAMED")

# The optimising compiler comes in some ten times later than usual. Measured on two cores: as with
# -XX:TieredStopAtLevel=1 Spark starts and runs its first batches a fifth to a third faster, but long queries reach
# the full speed, where that option leaves them a third slower.
_LATE_OPTIMISATION = (
    "-XX:Tier4InvocationThreshold=30000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=400000",
)

_LOGGING = """\
status = error
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """A process, told apart from a later one that got the same number."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> Self:
        return cls(pid=pid, started=_start_time(pid))

    @property
    def alive(self) -> bool:
        started = _start_time(self.pid)
        return started != "" and started == self.started


class SparkJvm:
    """One running JVM with a Py4J gateway; `port` and `secret` are what a client connects with.

    `home` is the JVM's own scratch folder: its temporary files, shuffle files and warehouse go there, never into
    the working directory. The JVM must be told to remove it when it ends (`SparkRuntime` does), because it may
    outlive us by a moment. `inherit` are file descriptors the JVM keeps open as long as it lives: a lock among
    them stays held until it is gone, unless it is explicitly unlocked. `jars` are on the class path behind Spark's own,
    where they leave the class archive valid. With `archive_to` the JVM writes the classes
    it has loaded there when it is stopped (see archive.py), which takes it a quarter of a minute.
    """

    def __init__(
        self,
        java: Java,
        *,
        home: Path,
        settings: Mapping[str, str],
        log_directory: Path,
        inherit: Sequence[int] = (),
        jars: Sequence[Path] = (),
        archive_to: ClassArchive | None = None,
    ) -> None:
        self.home = home
        self._jars = jars
        self._stop_timeout_seconds = _STOP_TIMEOUT_SECONDS if archive_to is None else _ARCHIVING_STOP_TIMEOUT_SECONDS
        self.log_file = log_directory / "spark.log"
        self._error_file = log_directory / "spark.err"
        log_directory.mkdir(parents=True, exist_ok=True)
        classes = _class_archive_options(java, archive_to=archive_to)
        self._process = self._start(java, settings=settings, inherit=inherit, options=classes)
        self.port, self.secret = self._connection()
        self.identity = Identity.of(self._process.pid)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """End the JVM; returns when it is gone."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=self._stop_timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(
        self, java: Java, *, settings: Mapping[str, str], inherit: Sequence[int], options: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        # Settings go through a file, not the command line: some are secrets, and everyone may read a command line.
        properties = self._private_file("spark.properties", _properties(settings))
        logging = self._private_file("log4j2.properties", _LOGGING.format(path=_escaped(str(self.log_file))))
        spark = spark_home()
        class_path = [*filter(None, [settings.get("spark.driver.extraClassPath")]), str(spark / "jars" / "*")]
        class_path += map(str, self._jars)
        command = [
            str(java.path),
            *_runtime_options(settings),
            *options,
            f"-Djava.io.tmpdir={self.home}",
            f"-Dlog4j2.configurationFile={logging.as_uri()}",
            *_MODULE_OPTIONS,
            *(_MODULE_OPTIONS_SINCE_24 if java.version >= 24 else ()),
            *shlex.split(settings.get("spark.driver.extraJavaOptions", "")),
            "-cp",
            os.pathsep.join(class_path),
            "org.apache.spark.deploy.SparkSubmit",
            "--properties-file",
            str(properties),
            "pyspark-shell",
        ]
        environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "SPARK_CONNECT_MODE": "0",
            "SPARK_HOME": str(spark),
            "SPARK_SCALA_VERSION": "2.13",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection_file),
        }
        environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        with self._error_file.open("wb") as errors:
            return subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                env=environment,
                pass_fds=tuple(inherit),
                # Ctrl-C in the terminal is for us; we end the JVM when we are done with it.
                start_new_session=True,
            )

    @property
    def _connection_file(self) -> Path:
        return self.home / "connection"

    def _connection(self) -> tuple[int, str]:
        """Port and secret, which the JVM writes into a file that appears whole."""
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not self._connection_file.exists():
            if not self.alive or time.monotonic() > deadline:
                self.stop()
                raise VelostreamError(
                    "Spark's JVM did not start",
                    detail=self._last_words(),
                    hint=f"see {self._error_file} and {self.log_file}, and run velostream doctor --spark",
                    code="spark-start",
                    category=Category.CONFIGURATION,
                )
            time.sleep(_POLL_SECONDS)
        content = self._connection_file.read_bytes()
        for name in ("connection", "spark.properties", "log4j2.properties"):
            (self.home / name).unlink()
        port, length = struct.unpack_from(">ii", content)
        return port, content[8 : 8 + length].decode()

    def _last_words(self) -> str:
        lines = self._error_file.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "\n".join(lines[-8:]) or f"exit code {self._process.returncode}, no output"

    def _private_file(self, name: str, content: str) -> Path:
        path = self.home / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
        return path


def new_home() -> Path:
    """A scratch folder for one JVM, readable by its owner only."""
    return Path(tempfile.mkdtemp(prefix="velostream-spark-"))


def record_user(directory: Path, jvm: Identity) -> None:
    """Note in a state directory which JVM may write to it, for `await_orphan` of the next process."""
    temporary = directory / "jvm.tmp"
    temporary.write_text(json.dumps({"pid": jvm.pid, "started": jvm.started}))
    temporary.replace(directory / "jvm.json")


def await_orphan(directory: Path, *, ours: Identity | None = None) -> None:
    """Wait until the JVM that last wrote to a state directory is gone, unless it is `ours`.

    A killed process leaves its JVM running for a moment, and that JVM may still write a checkpoint. The directory's
    lock is inherited only by a JVM that was started for it, not by one that was running already and is shared.
    """
    try:
        record = json.loads((directory / "jvm.json").read_text())
        orphan = Identity(pid=int(record["pid"]), started=str(record["started"]))
    except (OSError, ValueError, KeyError, TypeError):
        return
    deadline = time.monotonic() + _ORPHAN_TIMEOUT_SECONDS
    while orphan != ours and orphan.alive:
        if time.monotonic() > deadline:
            raise StateError.locked(str(directory), holder=f"the Spark JVM {orphan.pid} of an earlier process")
        time.sleep(_POLL_SECONDS)


def end_orphan(jvm: Identity) -> None:
    """Wait until the JVM of a process that has ended is gone, too; it is killed if it takes too long."""
    deadline = time.monotonic() + _ORPHAN_TIMEOUT_SECONDS
    while jvm.alive:
        if time.monotonic() > deadline:
            with suppress(ProcessLookupError):
                os.kill(jvm.pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _class_archive_options(java: Java, *, archive_to: ClassArchive | None) -> list[str]:
    if archive_to is not None:
        return archive_to.writing_options()
    archive = class_archive(java, jars=spark_home() / "jars")
    return archive.reading_options() if archive.exists else []


def _runtime_options(settings: Mapping[str, str]) -> list[str]:
    heap = settings.get("spark.driver.memory", f"{default_heap_megabytes()}m")
    return [
        f"-Xmx{heap}",
        "-Xss4m",
        *_LATE_OPTIMISATION,
        "-XX:-UsePerfData",
        "-XX:+UseSerialGC" if (os.cpu_count() or 1) < 4 else "-XX:+UseParallelGC",
        "-Dfile.encoding=UTF-8",
        "-Djava.awt.headless=true",
    ]


def default_heap_megabytes() -> int:
    """A quarter of the memory this process may use, between one and four gigabytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    if limit.isdigit():
        total = min(total, int(limit))
    return max(1024, min(4096, total // 4 // 2**20))


def spark_home() -> Path:
    """The installed PySpark, which is a Spark distribution."""
    import pyspark

    return Path(pyspark.__file__).parent


def _properties(settings: Mapping[str, str]) -> str:
    """Settings in Java's properties format."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    special = {
        "\\": "\\\\",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "=": "\\=",
        ":": "\\:",
        "#": "\\#",
        "!": "\\!",
        " ": "\\ ",
    }
    return "".join(special.get(character, character) for character in text)


def _start_time(pid: int) -> str:
    """When a process started, in the kernel's own terms; empty when there is no such process.

    Where there is no /proc the bare existence of the process has to do.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        if Path("/proc/self/stat").exists() or not _exists(pid):
            return ""
        return "running"
    return "" if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
