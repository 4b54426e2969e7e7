"""Functions whose value a recomputation would change, where a result is recomputed or kept in state."""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from velostream.errors import SqlError, ValidationError
from velostream.sql.functions import function_name, is_nondeterministic, is_time_function
from velostream.sql.pointing import pointer
from velostream.sql.statements import OptionValue

REFRESH_INTERVAL = "refresh.interval"


def check_repeatable(tree: exp.Expr, *, where: str, text: str) -> list[SqlError]:
    """Problems for `rand()`, `uuid()` and their like; `where` says what can't have them."""
    return [
        ValidationError(
            f"{function_name(node)}() gives another value each time and can't stand {where}",
            hint="compute it where the rows come in, in a CREATE STREAM, and read that",
            code="not-repeatable",
            width=len(function_name(node)),
            **pointer(node, text),
        )
        for node in tree.walk()
        if is_nondeterministic(node)
    ]


def check_clock(tree: exp.Expr, *, options: Iterable[OptionValue], text: str) -> list[SqlError]:
    """Problems for `current_timestamp()` and its like in a view that changes only when its inputs do."""
    if any(option.name.lower() == REFRESH_INTERVAL for option in options):
        return []
    return [
        ValidationError(
            f"{function_name(node) or node.name}() in a view over tables needs an interval to be read again",
            hint=f"WITH ('{REFRESH_INTERVAL}' = '1m')",
            code="clock-in-view",
            **pointer(node, text),
        )
        for node in tree.walk()
        if is_time_function(node)
    ]
