"""Forms of the language that parse but that nothing may or can run yet."""

from __future__ import annotations

from sqlglot import exp

from velostream.errors import NotExecutableError, SqlError, ValidationError
from velostream.sql.functions import function_name
from velostream.sql.paths import WILDCARD_PATH
from velostream.sql.pointing import pointer
from velostream.sql.statements import Place, Query

_CALLS_JAVA = frozenset(("java_method", "reflect", "try_reflect"))


def refused_forms(query: Query, *, text: str) -> list[SqlError]:
    """A problem per form that would be lost or misread on the way to Spark, each with what to write instead."""
    found: list[SqlError] = []

    def refuse(form: str, at: exp.Expr | Place, *, hint: str) -> None:
        message = f"{form} can't be executed by this version"
        found.append(NotExecutableError(message, hint=hint, **pointer(at, text)))

    for call in query.tree.find_all(exp.Func):
        if function_name(call) in _CALLS_JAVA:
            message = f"function {function_name(call)} is not allowed: it calls any Java method in Spark's process"
            found.append(ValidationError(message, **pointer(call, text)))
    for call in query.tree.find_all(exp.Anonymous):
        if function_name(call) == WILDCARD_PATH:
            path = call.expressions[0].name
            refuse(f'the wildcard path "{path}"', call, hint="name the fields, or explode the array in a LATERAL VIEW")
    return found
