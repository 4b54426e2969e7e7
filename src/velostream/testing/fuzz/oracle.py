"""Spark by itself: relations of given rows, and what a query over them gives."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from velostream.engine.spark import SparkRuntime
from velostream.engine.spark_failures import spark_errors_translated
from velostream.errors import VelostreamError

_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.shuffle.partitions": "1",
}
"""Rows are few: compiling code for them takes longer than anything else, and several tasks longer than one.

It is another way through Spark than the engine takes, too, though the answers are the same.
"""


class Oracle:
    """A session of its own, with the settings that answers depend on, which knows what is put there only."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._runtime = SparkRuntime(folder, config=_SETTINGS)
        self._session = self._runtime.session()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._runtime.stop()

    def put(self, name: str, rows: pa.Table) -> None:
        """Make rows a relation, in place of what had that name."""
        # PySpark 4.2 stops at the first chunk that is empty.
        self._session.createDataFrame(rows.combine_chunks()).createOrReplaceTempView(name)

    def define(self, name: str, query: str) -> str | None:
        """Make a query a relation without running it; what Spark has against it, if anything."""
        try:
            with spark_errors_translated():
                self._session.sql(query).createOrReplaceTempView(name)
        except VelostreamError as error:
            return str(error)
        return None

    def ask(self, query: str) -> pa.Table | str:
        """The answer, or the error that Spark ends with."""
        try:
            with spark_errors_translated():
                return self._session.sql(query).toArrow()
        except VelostreamError as error:
            return str(error)
