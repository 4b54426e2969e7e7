"""What the planner sees of the engine: tables, streams and sources by name, with their columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from velostream.engine.catalog import CHANGERS, Entry, EntryKind
from velostream.engine.growing import table_identity
from velostream.engine.options import MEMORY, QUERY_OPTIONS, pointing_at, table_options
from velostream.engine.sourcing import reference_of
from velostream.errors import Category, OptionError, SourceError, present
from velostream.model.options import EVOLUTION
from velostream.sources.base import SourceSpec
from velostream.sql.parse import parse_statement
from velostream.sql.plan import Relation, RelationKind
from velostream.sql.statements import Create, OptionValue, SourceRef

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.engine.sourcing import SourceBook
    from velostream.model.schema import Schema
    from velostream.sources.base import Offset, Source


class Lens:
    """The planner's view of the catalog for one statement.

    `pinned` are the source schemas the statement was first planned with, by source identity: a restart plans with the
    same columns, whatever discovery would find by now. Schemas found on the way are kept in `found`. `starts` likewise
    are the positions at which sources are begun that are read from their end on; those found out now are added. None:
    the statement reads nothing by positions.
    """

    def __init__(
        self,
        context: EngineContext,
        book: SourceBook,
        pinned: dict[str, Schema] | None = None,
        *,
        options: tuple[OptionValue, ...] = (),
        text: str = "",
        starts: dict[str, Offset] | None = None,
    ) -> None:
        """`options` are the statement's own; the kind of table they name says which others it may have."""
        self._context = context
        self._book = book
        self._pinned = pinned or {}
        self._options = options
        self._text = text
        self._starts = starts
        self.found: dict[str, Schema] = {}
        self.opened: dict[str, Source] = {}
        """Sources that were asked for their columns now, by identity: whoever reads one next needn't ask again."""

    @contextmanager
    def speaking_for(self, options: tuple[OptionValue, ...]) -> Iterator[None]:
        """Within, the statement is another one, with these options."""
        before, self._options = self._options, options
        try:
            yield
        finally:
            self._options = before

    def names(self) -> Sequence[str]:
        return [entry.name for entry in self._context.catalog.visible() if entry.kind not in CHANGERS]

    def relation(self, name: str) -> Relation | None:
        entry = self._context.catalog.find(name)
        if entry is None or entry.kind in CHANGERS:
            return None
        if entry.kind is EntryKind.STREAM:
            return self._stream(entry)
        if entry.schema is None:
            return Relation(entry.name, RelationKind.TABLE, None, reason="waits for the columns of its source")
        schema = self._columns_known(entry, entry.schema)
        indexes = [schema.key] if schema.key else []
        indexes += [tuple(columns) for columns in entry.indexes.values()]
        is_ours = entry.store == MEMORY
        return Relation(
            entry.name,
            RelationKind.TABLE,
            schema,
            indexes=tuple(indexes),
            rows=self._context.table(entry.id).snapshot().count() if is_ours else None,
            reason=_reason_of(entry),
            store="" if is_ours else entry.store,
            version_column=_version_column(entry),
        )

    def _columns_known(self, entry: Entry, schema: Schema) -> Schema:
        """Those of a table; of one that gets columns while it is there, those that the statement was made with."""
        if not entry.grows:
            return schema
        identity = table_identity(entry)
        self.found[identity] = self._pinned.get(identity, schema)
        return self.found[identity]

    def source(self, reference: SourceRef, options: tuple[OptionValue, ...]) -> Relation:
        with pointing_at(options, text=self._text):
            return self._relation_of(reference.uri, self._book.spec(reference, options))

    def option_names(self, reference: SourceRef | None) -> Sequence[str]:
        if reference is None:
            return [option.name for option in (*table_options(self._options, text=self._text), *QUERY_OPTIONS)]
        return [option.name for option in self._book.options(reference.kind)]

    def python_aggregates(self) -> Collection[str]:
        return self._context.functions.aggregates()

    def stream_spec(self, entry: Entry) -> SourceSpec:
        """The source behind a stream of the catalog, declared or derived."""
        statement = definition_of(entry)
        if statement.query is not None:
            return self._book.stream_spec(entry.id, present(entry.schema))
        uri = next(option.value for option in statement.options if option.name == "source")
        return self._book.spec(reference_of(uri), statement.options, columns=statement.columns)

    def start_of(self, spec: SourceSpec) -> Offset | None:
        """Where reading of a source begins, if that is settled already."""
        return None if self._starts is None else self._starts.get(_address_of(spec))

    def _stream(self, entry: Entry) -> Relation:
        if entry.derived:
            return Relation(entry.name, RelationKind.STREAM, entry.schema, reason="a stream derived by a query")
        return self._relation_of(entry.name, self.stream_spec(entry))

    def _relation_of(self, name: str, spec: SourceSpec) -> Relation:
        source = self._book.open(spec)
        kind, reason = _kind_of(source)
        is_declared = spec.columns is not None or bool(source.settings.text("record.schema"))
        growing = self._grows(source, is_declared=is_declared)
        identity = spec.identity()
        with self._settling_start(source, spec):
            schema = self._pinned.get(identity) or self.found.get(identity) or spec.columns
            if schema is None:
                schema = source.schema()
                self.opened[identity] = source
        if schema is not None:
            self.found[identity] = schema
        return Relation(
            name,
            kind,
            schema,
            reason=reason,
            system=source.system_columns,
            grows=growing,
            may_grow=EVOLUTION not in source.settings and not is_declared and source.adds_columns,
        )

    @staticmethod
    def _grows(source: Source, *, is_declared: bool) -> bool:
        """Whether the options have columns added that records have later; `OptionError` where that can't be."""
        if source.settings.text(EVOLUTION) != "add":
            return False
        if is_declared:
            raise OptionError(
                "columns that are declared can't be added to (schema.evolution = add)",
                hint="leave the columns out, they are taken from the records; or leave 'schema.evolution' = 'add' out",
                code="cannot-add-columns",
            )
        if not source.adds_columns:
            raise OptionError(
                f'columns that come later can\'t be added from "{source.spec.shown}" (schema.evolution = add)',
                detail="that is for files, objects, JSON messages, memory feeds and the logs of databases",
                hint="'schema.evolution' = 'ignore' leaves them out; CREATE OR REPLACE then takes them in",
                code="cannot-add-columns",
            )
        return True

    @contextmanager
    def _settling_start(self, source: Source, spec: SourceSpec) -> Iterator[None]:
        """Around what finds out whether the source is there: of one that is read from its end on, that end is noted.

        What isn't there yet will be read from its beginning: all of it comes after the statement.
        """
        address = _address_of(spec)
        if self._starts is None or not source.begins_at_latest or self._starts.get(address) is not None:
            yield
            return
        was_missing = address in self._starts
        try:
            yield
            begun = self._book.open(spec, from_beginning=True) if was_missing else source
            self._starts[address] = begun.initial_offset()
        except SourceError as error:
            if error.category is Category.MISSING:
                self._starts[address] = None
            raise


def _address_of(spec: SourceSpec) -> str:
    """Equal for sources of one address, whatever their options. Passwords in it can't be read off."""
    return SourceSpec(spec.kind, spec.uri).identity()


def _version_column(entry: Entry) -> str | None:
    if "version.column" not in entry.sql.lower():
        return None
    return next((option.value for option in definition_of(entry).options if option.name == "version.column"), None)


def _reason_of(entry: Entry) -> str:
    reason = "a table" if entry.kind is EntryKind.TABLE else "a view, kept up to date"
    if entry.store == MEMORY:
        return reason
    return f"{reason}, in {entry.store}; views over it follow it through a mirror"


def definition_of(entry: Entry) -> Create:
    """The CREATE statement of an entry."""
    statement = parse_statement(entry.sql)
    return present(statement if isinstance(statement, Create) else None)


def _kind_of(source: Source) -> tuple[RelationKind, str]:
    capabilities = source.capabilities
    if capabilities.is_stream:
        return RelationKind.STREAM, "appends are followed without end"
    if capabilities.follows:
        return RelationKind.TABLE, f"followed, and emits {capabilities.emits}: folded into a table"
    return RelationKind.BOUNDED, "read once; 'watch' = 'true' would follow it"
