"""Rows of a batch for which lookups found nothing: kept, left out, looked for again, or the end of the query."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from velostream.errors import Category, QueryError
from velostream.model.retry import RetryPolicy, RetryStrategy
from velostream.sql.plan import MissingPolicy

if TYPE_CHECKING:
    from velostream.sql.plan import MissingRows


class MissingRowsError(QueryError):
    """A lookup found no row, and is to be repeated after a while."""

    default_code = "missing-rows"
    default_category = Category.MISSING

    def __init__(self, message: str, *, delay: timedelta, attempts: int) -> None:
        super().__init__(message, hint="it is looked up again; 'join.missing.retry.max' says how often")
        self.delay = delay
        self.attempts = attempts


class MissingRowsWatch:
    """What becomes of the rows of one statement's batches whose lookups missed. Used by one thread at a time."""

    def __init__(self, policies: Sequence[MissingRows]) -> None:
        self._policies = tuple(policies)
        self._attempts = 0
        self._counts: dict[str, int] = {}

    def settled(self, rows: pa.Table) -> pa.Table:
        """The rows a batch gives, from those that the plan watches: the last columns say what is missing.

        Raises `MissingRowsError` to have the batch repeated, `QueryError` where a missing row is the end.
        """
        if not self._policies:
            return rows
        count = len(self._policies)
        width = rows.num_columns - count - 1
        kept = rows.column(width + count)
        misses: dict[str, int] = {}
        for number, policy in enumerate(self._policies):
            found = rows.column(width + number)
            self._judge(policy, _number_of(pc.greater(found, 0)), hopeless=_number_of(pc.greater(found, 1)))
            misses[policy.table] = misses.get(policy.table, 0) + _number_of(pc.greater(found, 0))
            if policy.drops:
                kept = pc.and_(kept, pc.equal(found, 0))
        self._counts = misses
        return rows.select(range(width)).filter(kept)

    def taken(self) -> dict[str, int]:
        """How many rows of the batch just committed had no match, by table."""
        counts, self._counts, self._attempts = self._counts, {}, 0
        return counts

    def _judge(self, policy: MissingRows, missed: int, *, hopeless: int) -> None:
        if not missed:
            return
        what = f'{missed} row{"s" if missed > 1 else ""} of the stream without a match in table "{policy.table}"'
        if policy.policy is MissingPolicy.FAIL:
            raise QueryError(
                what,
                hint="'join.missing' = 'nulls' | 'skip' | 'defaults' | 'retry' goes on without them",
                code="missing-rows",
                category=Category.CONFLICT,
            )
        if policy.policy is MissingPolicy.RETRY and missed > hopeless and self._attempts < policy.retry_max:
            self._attempts += 1
            delays = RetryPolicy(RetryStrategy.EXPONENTIAL, policy.retry_delay, policy.retry_multiplier)
            raise MissingRowsError(what, delay=delays.delay(self._attempts), attempts=self._attempts)


def _number_of(mask: pa.ChunkedArray) -> int:
    return int(pc.sum(mask).as_py() or 0)
