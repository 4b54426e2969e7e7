"""An archive of Spark's classes that halves the time Spark takes to start.

A JVM spends most of Spark's start reading and verifying some twenty thousand classes. It can write them, as loaded,
to a file that later JVMs map into memory. The file belongs to one Java and one set of jars; the JVM itself checks
that and goes without when it doesn't fit, so an archive can make a start fast but never wrong.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from velostream.engine.java import Java, find_java

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_KEPT = 3
"""Archives of how many Java and Spark combinations to keep; each takes some 170 MB."""


def cache_directory() -> Path:
    """Where files that can be made again are kept: `velostream` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    return Path(base).expanduser() / "velostream"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java and one set of jars, whether it exists or not.

    `base` holds Java's own classes; a Java that ships without such an archive (the one of the `jdk` extra) gets one
    of ours, others leave it empty. `classes` holds Spark's on top of it.
    """

    java: Java
    classes: Path
    base: Path | None

    @property
    def exists(self) -> bool:
        return self.classes.exists() and (self.base is None or self.base.exists())

    def reading_options(self) -> list[str]:
        """What a JVM needs to use the archive."""
        files = [str(path) for path in (self.base, self.classes) if path is not None]
        return ["-Xshare:auto", f"-XX:SharedArchiveFile={os.pathsep.join(files)}"]

    def writing_options(self) -> list[str]:
        """What a JVM needs to write the archive when it ends."""
        base = [f"-XX:SharedArchiveFile={self.base}"] if self.base is not None else []
        return [*base, f"-XX:ArchiveClassesAtExit={self.classes}"]


def class_archive(java: Java, *, jars: Path) -> ClassArchive:
    """The archive that fits this Java and these jars."""
    java_home = java.path.resolve().parent.parent
    release = java_home / "release"
    belongs_to = [str(java_home), release.read_text() if release.is_file() else str(java.version), str(jars)]
    belongs_to += sorted(path.name for path in jars.iterdir())
    digest = hashlib.sha256("\n".join(belongs_to).encode()).hexdigest()[:16]
    folder = cache_directory() / f"spark-classes-{digest}"
    has_base = (java_home / "lib" / "server" / "classes.jsa").exists()
    return ClassArchive(java=java, classes=folder / "spark.jsa", base=None if has_base else folder / "java.jsa")


def build_archive() -> ClassArchive | None:
    """Start Spark once, use it as queries do, and keep the classes it loaded; takes half a minute.

    Spark must not be running in this process. Nothing when this Java can't write an archive.
    """
    from velostream.engine.jvm import SparkJvm, new_home, spark_home
    from velostream.engine.spark import connect_session, default_settings, disconnect_session

    archive = class_archive(find_java(), jars=spark_home() / "jars")
    folder = archive.classes.parent
    folder.mkdir(parents=True, exist_ok=True)
    if archive.base is not None:
        command = [str(archive.java.path), "-Xshare:dump", f"-XX:SharedArchiveFile={archive.base}"]
        subprocess.run(command, capture_output=True, check=False)  # noqa: S603
    # A JVM that starts meanwhile must see the whole file or none.
    fresh = replace(archive, classes=archive.classes.with_suffix(f".{os.getpid()}"))
    with tempfile.TemporaryDirectory(prefix="velostream-archive-") as work:
        home = new_home()
        jvm = SparkJvm(
            archive.java,
            home=home,
            settings=default_settings(home),
            log_directory=Path(work) / "logs",
            archive_to=fresh,
        )
        session = connect_session(jvm)
        try:
            _exercise(session, folder=Path(work))
        finally:
            disconnect_session(jvm, session=session)
    if not fresh.classes.exists():
        shutil.rmtree(folder)
        return None
    fresh.classes.replace(archive.classes)
    _prune(folder.parent)
    return archive


def _exercise(session: SparkSession, *, folder: Path) -> None:
    """Touch what continuous queries touch: SQL, Arrow, Python stages, streaming with state, files."""
    session.sql("SELECT k, count(*), sum(v) FROM VALUES (1, 1.5), (2, 2.5) AS t(k, v) GROUP BY k ORDER BY k").toArrow()
    session.range(8).selectExpr("id", "cast(id AS decimal(10, 2)) AS v").write.parquet(str(folder / "rows"))
    rows = session.read.parquet(str(folder / "rows"))
    rows.createOrReplaceTempView("rows")
    session.sql("SELECT a.id FROM rows a JOIN rows b ON a.id = b.id WHERE a.v > (SELECT min(v) FROM rows)").toArrow()

    def collect(batch: DataFrame, _: int) -> None:
        batch.toArrow()

    query = (
        session.readStream.schema(rows.schema)
        .parquet(str(folder / "rows"))
        .mapInArrow(_unchanged, schema=rows.schema)
        .groupBy("id")
        .count()
        .writeStream.outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .foreachBatch(collect)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(60)


def _unchanged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _prune(directory: Path) -> None:
    folders = sorted(directory.glob("spark-classes-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for folder in folders[_KEPT:]:
        shutil.rmtree(folder, ignore_errors=True)
