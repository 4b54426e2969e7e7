"""`con.create_function`: functions in Python that any SQL may call, of a row or a group, over values or Arrow arrays.

The functions live in the program, so a state directory remembers only their names and kinds: after a restart what uses
one waits until the program has registered it again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from sqlglot import exp

from velostream.engine.directory import write_atomically
from velostream.engine.json_values import register_json_values
from velostream.engine.spark_failures import WORKER_TOKEN, WorkerError, spark_errors_translated
from velostream.errors import Category, QueryError, StateError, ValidationError
from velostream.model.rows import MisfitError, fit_value
from velostream.model.types import parse_type, render_type
from velostream.model.variant import holds_variant
from velostream.sql.functions import is_aggregate
from velostream.sql.parse import parse_expression
from velostream.sql.path_values import JSON_VALUES
from velostream.sql.rules.rename_aggregates import is_renamed
from velostream.tables.memory.values import shown_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from velostream.engine.spark import SparkRuntime

_NAME = re.compile(r"[A-Za-z_]\w*")
_ARROW = (pa.Array, pa.ChunkedArray)


class FunctionKind(StrEnum):
    """What a function is called for."""

    SCALAR = "scalar"
    """Each row gives a value."""
    AGGREGATE = "aggregate"
    """All rows of a group give one value."""


@dataclass(frozen=True)
class PythonFunction:
    """A function as it was registered."""

    name: str
    function: Callable[..., Any]
    returns: pa.DataType
    vectorised: bool
    kind: FunctionKind = FunctionKind.SCALAR

    @cached_property
    def version(self) -> str:
        """Differs for another function of the same name."""
        declared = f"{self.kind} {self.vectorised} {render_type(self.returns)}"
        return hashlib.sha256(_pickled(self.function) + declared.encode()).hexdigest()[:16]

    def register(self, session: SparkSession) -> None:
        """Make the function known to a session."""
        from pyspark.sql.functions import arrow_udf

        called = _CALLED[self.kind, self.vectorised]
        evaluate = _Evaluation(self.name, _pickled(self.function), self.returns, called, WORKER_TOKEN)
        made = arrow_udf(evaluate.udf(), render_type(self.returns))  # type: ignore[call-overload]
        session.udf.register(self.name, made)


class Functions:
    """The functions of one connection. Thread-safe."""

    def __init__(self, spark: SparkRuntime, path: Path) -> None:
        """`path` is where the names are remembered."""
        self._spark = spark
        self._path = path
        self._lock = threading.Lock()
        self._registered: dict[str, PythonFunction] = {}
        self._remembered: dict[str, str] = {}
        """Kinds by name, those of earlier runs among them."""
        if path.exists():
            try:
                self._remembered = json.loads(path.read_bytes())
            except ValueError as error:
                raise StateError.corrupt(str(path), reason=str(error)) from error
        spark.register(JSON_VALUES, register_json_values)

    def __iter__(self) -> Iterator[PythonFunction]:
        return iter(list(self._registered.values()))

    def create(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        returns: str,
        kind: str = FunctionKind.SCALAR,
        vectorised: bool | None = None,
    ) -> PythonFunction | None:
        """Register a function; gives the one of that name before it, if there was one in this run."""
        if not _NAME.fullmatch(name):
            raise ValidationError(f'"{name}" is no name for a function', hint="letters, digits and _")
        if not callable(function):
            raise ValidationError(f'function "{name}" needs something that can be called')
        if not _takes_arguments(function):
            raise ValidationError(f'function "{name}" takes no arguments', hint="SQL has the value itself, or a column")
        if kind not in set(FunctionKind):
            kinds = ", ".join(FunctionKind)
            raise ValidationError(f'function "{name}" can\'t be of the kind "{kind}"', hint=f"one of {kinds}")
        over_arrays = _is_vectorised(function) if vectorised is None else vectorised
        made = PythonFunction(name, function, parse_type(returns), over_arrays, FunctionKind(kind))
        with self._lock:
            before = self._registered.get(name.lower())
            if before is None:
                self._refuse_known(name)
            with spark_errors_translated():
                self._spark.register(name.lower(), made.register)
            self._registered[name.lower()] = made
            remembered = {**self._remembered, name.lower(): made.kind.value}
            if remembered != self._remembered:
                write_atomically(self._path, json.dumps(remembered).encode())
                self._remembered = remembered
        return before

    def aggregates(self) -> frozenset[str]:
        """The names of aggregates, in small letters, those that only an earlier run has registered among them."""
        return frozenset(name for name, kind in self._remembered.items() if kind == FunctionKind.AGGREGATE)

    def names(self) -> Collection[str]:
        """The names of all, in small letters, those that only an earlier run has registered among them."""
        return self._remembered.keys()

    def missing_in(self, *texts: str) -> str | None:
        """The name of a function that one of the SQL texts calls, and that only an earlier run has registered."""
        unknown = self._remembered.keys() - self._registered.keys()
        return next((name for name in sorted(unknown) if any(calls(text, name) for text in texts)), None)

    def versions_in(self, text: str) -> dict[str, str]:
        """The versions of the functions that a text of SQL calls, by name."""
        return {name: one.version for name, one in sorted(self._registered.items()) if calls(text, name)}

    def _refuse_known(self, name: str) -> None:
        call = parse_expression(f"{name}(1)")
        is_ours = is_aggregate(call) or is_renamed(call) or not isinstance(call, exp.Anonymous)
        if is_ours or self._spark.session().catalog.functionExists(name.lower()):
            raise ValidationError(
                f'function "{name}" is one of Spark\'s own, or stands for one',
                hint=f'con.create_function("my_{name}", fn, returns="…")',
            )


def calls(sql: str, name: str) -> bool:
    """Whether a SQL text calls a function: its name, quoted or not, before a bracket."""
    return re.search(rf"(?<![\w.])[`\"]?{re.escape(name)}[`\"]?\s*\(", sql, re.IGNORECASE) is not None


@dataclass(frozen=True)
class _Evaluation:
    """How a function is evaluated in a worker; goes there as a whole."""

    name: str
    pickled: bytes
    returns: pa.DataType
    call: Callable[[Callable[..., Any], Sequence[pa.Array], pa.DataType], pa.Array]
    token: str

    def udf(self) -> Callable[..., pa.Array]:
        """A plain function, which is what Spark takes."""
        loaded: list[Callable[..., Any]] = []

        def evaluate(*arguments: pa.Array) -> pa.Array:
            from pyspark import cloudpickle

            if not loaded:
                loaded.append(cloudpickle.loads(self.pickled))
            try:
                return self.call(loaded[0], arguments, self.returns)
            except Exception as error:
                told = QueryError(
                    f'function "{self.name}" failed: {type(error).__name__}: {error}',
                    code="function-failed",
                    category=Category.DATA,
                )
                raise WorkerError(told, token=self.token) from error

        return evaluate


def _over_rows(function: Callable[..., Any], arguments: Sequence[pa.Array], returns: pa.DataType) -> pa.Array:
    return _fitted([function(*row) for row in zip(*map(shown_values, arguments), strict=True)], returns)


def _fitted(values: list[Any], returns: pa.DataType) -> pa.Array:
    try:
        if not holds_variant(returns):
            return pa.array(values, returns)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        pass
    return pa.array([None if value is None else fit_value(value, returns) for value in values], returns)


def _over_arrays(function: Callable[..., Any], arguments: Sequence[pa.Array], returns: pa.DataType) -> pa.Array:
    found = function(*arguments)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    if not isinstance(found, pa.Array):
        found = pa.array(found)
    if arguments and len(found) != len(arguments[0]):
        raise MisfitError(f"it gave {len(found)} values for {len(arguments[0])} rows")
    return found if found.type == returns else found.cast(returns)


def _of_lists(function: Callable[..., Any], arguments: Sequence[pa.Array], returns: pa.DataType) -> pa.Array:
    values = [function(*map(shown_values, columns)) for columns in _groups(arguments)]
    return _fitted(values, returns)


def _of_arrays(function: Callable[..., Any], arguments: Sequence[pa.Array], returns: pa.DataType) -> pa.Array:
    found = [function(*columns) for columns in _groups(arguments)]
    return _fitted([one.cast(returns).as_py() if isinstance(one, pa.Scalar) else one for one in found], returns)


def _groups(arguments: Sequence[pa.Array]) -> Iterator[Sequence[pa.Array]]:
    """The columns of each group, whose rows `sql/python_aggregates.py` has made a list of structs."""
    (lists,) = arguments
    for rows in lists:
        yield rows.values.flatten()


_CALLED = {
    (FunctionKind.SCALAR, False): _over_rows,
    (FunctionKind.SCALAR, True): _over_arrays,
    (FunctionKind.AGGREGATE, False): _of_lists,
    (FunctionKind.AGGREGATE, True): _of_arrays,
}
"""How a function is called, by its kind and whether it is vectorised."""


def _takes_arguments(function: Callable[..., Any]) -> bool:
    try:
        return bool(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        return True


def _is_vectorised(function: Callable[..., Any]) -> bool:
    """Whether the annotations of a function say that it takes or gives Arrow arrays."""
    try:
        signature = inspect.signature(function, eval_str=True)
    except (ValueError, TypeError, NameError):
        return False
    annotations = [parameter.annotation for parameter in signature.parameters.values()]
    return any(isinstance(one, type) and issubclass(one, _ARROW) for one in (*annotations, signature.return_annotation))


def _pickled(function: Callable[..., Any]) -> bytes:
    """The function as bytes: by value where its module is part of the program, which workers can't import."""
    from pyspark import cloudpickle

    pickler: Any = cloudpickle
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or _is_installed(module.__dict__):
        return bytes(pickler.dumps(function))
    pickler.register_pickle_by_value(module)
    try:
        return bytes(pickler.dumps(function))
    finally:
        pickler.unregister_pickle_by_value(module)


def _is_installed(module: Mapping[str, Any]) -> bool:
    file = module.get("__file__")
    if file is None:
        return True
    places = {sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")}
    return any(Path(file).is_relative_to(place) for place in places)
