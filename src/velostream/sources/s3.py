"""`s3://bucket/prefix/*.parquet`: objects of a store that speaks S3; see `objects.py`.

With `s3.events.queue` the address is listed when the bucket's events say so, and every few minutes whatever they say.
Delivery guarantee: exactly-once, for as long as the objects that were read stay readable.
"""

from __future__ import annotations

import time
from datetime import timedelta

from velostream.model.options import Option
from velostream.model.s3 import S3Store
from velostream.sources.base import SourceSpec
from velostream.sources.objects import OBJECT_OPTIONS, ObjectSource, States
from velostream.sources.s3_events import BucketEvents

_QUEUE_INTERVAL = timedelta(seconds=1)
_LIST_ANYWAY_SECONDS = 300.0
"""Events may get lost, or be sent to nobody yet when an object comes."""


class S3Source(ObjectSource):
    """Objects of a bucket. Delivery guarantee: exactly-once, for as long as the objects stay readable."""

    kind = "s3"
    store = S3Store
    options = (
        *OBJECT_OPTIONS,
        *S3Store.options,
        Option("s3.events.queue", "URL of an SQS queue that gets the bucket's events; implies watch"),
    )
    implies_watch = (*ObjectSource.implies_watch, "s3.events.queue")

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        queue = self.settings.text("s3.events.queue")
        self._events = None if queue is None else BucketEvents(queue, S3Store.of(self.settings))
        self._list_at = 0.0
        """When to list again without an event."""

    @property
    def poll_interval(self) -> timedelta:
        """A queue may be asked more often than a bucket is listed."""
        return super().poll_interval if self._events is None or "poll.interval" in self.settings else _QUEUE_INTERVAL

    def close(self) -> None:
        super().close()
        if self._events is not None:
            self._events.close()

    def _watched(self, states: States, max_rows: int | None) -> States:
        if self._events is None:
            return super()._watched(states, max_rows)
        if self._events.arrived():
            self._list_at = 0.0
        if max_rows is not None and time.monotonic() < self._list_at:
            return states
        found = super()._watched(states, max_rows)
        if found == states:
            # All that there is was taken in, for the position that a look begins at is durable.
            self._events.settled()
            self._list_at = time.monotonic() + _LIST_ANYWAY_SECONDS
        return found
