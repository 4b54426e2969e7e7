"""From a source or sink named in a statement to the object that reads or writes it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from velostream import plugins
from velostream.engine.spooled import SpooledSource, needs_spool
from velostream.engine.table_sink import TableSink, table_sink
from velostream.errors import NotFoundError, UnsupportedError
from velostream.model.change import JsonValue
from velostream.model.options import COPIED, SYSTEM_COLUMNS, Option, expand_environment
from velostream.model.schema import Schema
from velostream.plugins import Group
from velostream.sinks.base import SinkSpec
from velostream.sources.base import Source, SourceSpec
from velostream.sources.common import OFFSET_RESET
from velostream.sql.sources import source_of, uri_parameters

if TYPE_CHECKING:
    from velostream.engine.catalog import Catalog
    from velostream.engine.directory import StateDirectory
    from velostream.sinks.base import Sink
    from velostream.sql.statements import OptionValue, SourceRef
    from velostream.tables.memory.sequence import CommitSequence

_SPOOL = "spool"
"""A kind that declares this option gets a folder of its own there, for what must outlast the process."""
INTERNAL = (_SPOOL, COPIED, SYSTEM_COLUMNS)
"""Options that the engine gives; no statement may."""


class SourceBook:
    """Makes sources and sinks out of references, and knows where feeds live."""

    def __init__(self, directory: StateDirectory, sequence: CommitSequence, catalog: Catalog) -> None:
        self._directory = directory
        self._sequence = sequence
        self._catalog = catalog

    def options(self, kind: str) -> list[Option]:
        """The options a statement may give to a source of that kind."""
        return [option for option in _source_class(kind).options if option.name not in INTERNAL]

    def spec(
        self, reference: SourceRef, options: Iterable[OptionValue], *, columns: Schema | None = None
    ) -> SourceSpec:
        """The spec of a reference; of the given options those are taken that its kind knows, the nearer one wins."""
        kind = _source_class(reference.kind)
        address, parameters = (reference.uri, ()) if kind.keeps_parameters else uri_parameters(reference.uri)
        taken = (o for o in options if any(option.covers(o.name) for option in kind.options))
        values = {o.name: o.value for o in (*parameters, *taken)}
        spec = SourceSpec(reference.kind, address, values, columns)
        if not any(option.name == _SPOOL for option in kind.options):
            return spec
        folder = self.memory_folder(memory_name(address)) if reference.kind == "memory" else self._received(spec)
        return replace(spec, options=values | {_SPOOL: str(folder)})

    def open(self, spec: SourceSpec, *, from_beginning: bool = False) -> Source:
        """A source of its own for whoever asks: planning looks afresh, an ingest or a fold keeps and closes its own.

        One that is read from its end on may be opened to be read from its beginning.
        """
        kind = _source_class(spec.kind)
        uri = spec.uri if kind.takes_variables else expand_environment(spec.uri)
        options = {**spec.options, OFFSET_RESET.name: "earliest"} if from_beginning else spec.options
        source: Source = kind(replace(spec, uri=uri, options=options))
        if not needs_spool(source):
            return source
        folder, durable = self._received(spec), self._directory.durable
        return SpooledSource(source, folder, durable=durable, positions=self._positions)

    def _positions(self) -> list[JsonValue]:
        """Offsets of everything that reads on, or is to begin reading."""
        read = [position.get("offset") for position in self._sequence.positions()]
        begun = (entry for entry in self._catalog if self._sequence.writer(entry.id) is None)
        return [*read, *(start for entry in begun for start in entry.starts.values())]

    def open_sink(
        self, reference: SourceRef, options: Iterable[OptionValue], schema: Schema, *, changes: bool = False
    ) -> Sink:
        """The sink a target URI stands for, checked against the rows it will get: of a view that changes, or new ones.

        Refuses changes into a kind that can't take them.
        """
        kind: Any = table_sink(reference.kind) if reference.kind not in plugins.names(Group.SINKS) else None
        try:
            kind = kind or plugins.load(Group.SINKS, reference.kind)
        except NotFoundError as error:
            known = ", ".join(plugins.names(Group.SINKS))
            raise NotFoundError(
                f'sink kind "{reference.kind}" is not installed', detail=f"known kinds: {known}", code="unknown-sink"
            ) from error
        if changes and not kind.capabilities.changes:
            raise UnsupportedError.capability(reference.kind, "changes")
        address, parameters = (reference.uri, ()) if kind.keeps_parameters else uri_parameters(reference.uri)
        taken = (o for o in options if any(option.covers(o.name) for option in kind.options))
        values = {o.name: o.value for o in (*parameters, *taken, *reference.options)}
        if reference.kind == "memory":
            values[_SPOOL] = str(self.memory_folder(memory_name(address)))
        # A table takes variables itself, once it has taken the address apart.
        uri = address if kind.keeps_parameters or issubclass(kind, TableSink) else expand_environment(address)
        sink: Sink = kind(SinkSpec(reference.kind, uri, values, changes=changes))
        sink.open(schema)
        return sink

    def memory_folder(self, name: str) -> Path:
        """Where the spool of `memory://name` lives."""
        return self._directory.folder("memory") / f"feed-{quote(name, safe='')}"

    def _received(self, spec: SourceSpec) -> Path:
        """Where that is kept which a source can't be asked for again."""
        return self._directory.folder("received") / spec.identity().rpartition(":")[2]

    def stream_spec(self, entry_id: str, schema: Schema) -> SourceSpec:
        """The stream derived by a query, as a source: its spool."""
        folder = self._directory.folder("streams") / entry_id
        return SourceSpec("memory", f"memory://{entry_id}", {"spool": str(folder)}, schema)


def memory_name(uri: str) -> str:
    """`orders` of `memory://orders?…`."""
    return re.sub(r"^memory:(//)?", "", uri).split("?", 1)[0].strip("/")


def reference_of(uri: str) -> SourceRef:
    """The source that a URI given as an option stands for."""
    return source_of(uri, relation="source_0")


def _source_class(kind: str) -> Any:
    try:
        return plugins.load(Group.SOURCES, kind)
    except NotFoundError as error:
        known = ", ".join(plugins.names(Group.SOURCES))
        raise NotFoundError(
            f'source kind "{kind}" is not installed',
            detail=f"known kinds: {known}",
            hint=error.hint,
            code="unknown-source",
        ) from error
