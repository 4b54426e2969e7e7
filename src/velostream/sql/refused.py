"""Forms of the language that parse but that nothing may run."""

from __future__ import annotations

from sqlglot import exp

from velostream.errors import SqlError, ValidationError
from velostream.sql.functions import function_name
from velostream.sql.pointing import pointer
from velostream.sql.statements import Query

_CALLS_JAVA = frozenset(("java_method", "reflect", "try_reflect"))


def refused_forms(query: Query, *, text: str) -> list[SqlError]:
    """A problem per form that must not reach Spark."""
    found: list[SqlError] = []

    for call in query.tree.find_all(exp.Func):
        if function_name(call) in _CALLS_JAVA:
            message = f"function {function_name(call)} is not allowed: it calls any Java method in Spark's process"
            found.append(ValidationError(message, **pointer(call, text)))
    return found
