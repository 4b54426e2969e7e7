"""`memory://name` as a target: batches go into the feed's spool, where every reader of the feed finds them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from velostream.errors import present
from velostream.model.change import Epoch
from velostream.model.options import Option
from velostream.model.schema import Schema
from velostream.model.spool import Spool
from velostream.sinks.base import Sink, SinkCapabilities, SinkSpec
from velostream.sinks.common import with_parameters

_EPOCHS = "epochs"


class MemorySink(Sink):
    """Into a spool. The newest file carries the last epoch of every writer, so a repeat is known by it.

    Delivery guarantee: exactly-once.
    """

    kind = "memory"
    capabilities = SinkCapabilities(idempotent=True, guarantee="exactly-once")
    options = (Option("spool", "directory of the feed, set by the engine"),)

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(with_parameters(spec))
        self._spool = Spool(Path(present(self.settings.text("spool"))))

    def open(self, schema: Schema) -> None:
        """Any rows can be written."""

    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        if not rows.num_rows:
            return
        with self._spool.appending():
            last = self._spool.count()
            epochs: dict[str, int] = json.loads(self._spool.note(last).get(_EPOCHS, "{}")) if last else {}
            if epochs.get(epoch.writer, -1) < epoch.number:
                self._spool.append(rows, note={_EPOCHS: json.dumps(epochs | {epoch.writer: epoch.number})})
