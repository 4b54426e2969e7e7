"""The sink seam: where a query's rows go when they leave the tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa

from velostream.model.change import Epoch
from velostream.model.options import Option, Options
from velostream.model.schema import Schema


@dataclass(frozen=True, slots=True)
class SinkCapabilities:
    """What a sink promises; shown by EXPLAIN and in docs/options.md."""

    idempotent: bool = False
    """A repeated epoch leaves the same output as one (else a crash may repeat a batch: at-least-once)."""
    guarantee: str = "at-least-once"
    changes: bool = False
    """Takes the changes of a view (`SinkSpec.changes`): follows rows that change or leave, by their key."""


@dataclass(frozen=True, slots=True)
class SinkSpec:
    kind: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    changes: bool = False
    """The rows come with `_change`, +1 for one that is there now and -1 for one that is gone: the net change from one
    state of a view to another. `open` is given the columns without it."""


class Sink(ABC):
    """One sink of one query. Called from one thread at a time, on the driver."""

    kind: ClassVar[str]
    options: ClassVar[tuple[Option, ...]] = ()
    capabilities: ClassVar[SinkCapabilities] = SinkCapabilities()
    keeps_parameters: ClassVar[bool] = False
    """Whether parameters of the address that are no options belong to it. The kind then gets the address as it is
    written, variables included, and finds its options there itself."""

    def __init__(self, spec: SinkSpec) -> None:
        """Keep the spec and check its options. Must not touch the outside."""
        self.spec = spec
        self.settings = Options(spec.options, self.options)

    @abstractmethod
    def open(self, schema: Schema) -> None:
        """Check that rows of this schema can be written; fails at CREATE, not at the first batch."""

    @abstractmethod
    def write(self, rows: pa.Table, epoch: Epoch) -> None:
        """Write one batch, all or nothing where the sink can; durable when it returns. A writer's epochs come in
        ascending order; after a crash the last one may come again, with the same rows.
        """

    def close(self) -> None:
        """Give back what is held."""
