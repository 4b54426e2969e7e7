"""Making a collection, or finding out how the one that is there is used."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from velostream.errors import AlreadyExistsError, NotFoundError, StateError, TableError
from velostream.model.options import Options
from velostream.model.schema import Schema
from velostream.tables.base import Origin, TableSpec
from velostream.tables.mongodb.client import KIND, Connection
from velostream.tables.mongodb.layout import HASH, Document, Layout
from velostream.tables.mongodb.metadata import RESERVED, Metadata, TableState
from velostream.tables.stored import check_columns, column_missing, is_read_only, mismatch

_DOCUMENTS_LOOKED_AT = 1000
_ALREADY_THERE = 48
_DUPLICATE_KEY = 11000


@dataclass(frozen=True)
class Opening:
    """How a table is to be used once it is open."""

    collection: str
    layout: Layout
    incarnation: str
    origin: Origin | None

    @classmethod
    def of(cls, spec: TableSpec, options: Options, connection: Connection) -> Opening:
        """Raises `StateError` with the difference when what is there has other columns."""
        name = options.text("table") or spec.name
        if name in RESERVED or name.startswith("system.") or not name or "\0" in name or "$" in name:
            raise TableError(f'no table can be the collection "{name}"', hint="WITH ('table' = …) names another one")
        database = connection.database
        there = bool(database.list_collection_names(filter={"name": name}))
        metadata = Metadata(database)
        if is_read_only(options):
            if not there:
                raise NotFoundError.of("collection", name)
            state = metadata.state(name)
            if state is not None and state.made:
                check_columns(KIND, spec.name, wanted=spec.schema, there=state.schema)
            layout = _checked_layout(spec, database[name], own=state is not None and state.made)
            return cls(name, layout, "", None if state is None else Origin(state.id, state.made))
        metadata.create()
        state = metadata.state(name)
        if there and (state is None or state.id != spec.id):
            match options.text("if.exists"):
                case "fail":
                    raise AlreadyExistsError.of("collection", name)
                case "replace":
                    Layout(spec.name, spec.schema, own=True).check()
                    _indexed(spec.schema, options)
                    database.drop_collection(name)
                    metadata.remove(name)
                    there, state = False, None
        if state is not None and not there and (state.version > 0 or not state.made):
            # Somebody has dropped the collection: its versions and epochs speak of rows that are gone.
            metadata.remove(name)
            state = None
        return cls._made_or_found(name, spec, options, database, metadata, state, there=there)

    @classmethod
    def _made_or_found(
        cls,
        name: str,
        spec: TableSpec,
        options: Options,
        database: Any,
        metadata: Metadata,
        state: TableState | None,
        *,
        there: bool,
    ) -> Opening:
        made = state.made if state is not None else not there
        if state is not None and made:
            check_columns(KIND, spec.name, wanted=spec.schema, there=state.schema)
        layout = _checked_layout(spec, database[name], own=made)
        if state is None:
            # The entry first: a crash in between leaves an entry whose collection is made by the next opening.
            metadata.add(name, TableState(spec.id, uuid.uuid4().hex, 0, spec.schema, made))
        if not there:
            _create(database, name)
        _create_indexes(database[name], layout, options)
        entry = metadata.state(name)
        if entry is None:
            raise StateError(f'collection "{name}" was dropped while it was opened', hint="open it again")
        return cls(name, layout, entry.incarnation, Origin(entry.id, entry.made))


def _create(database: Any, name: str) -> None:
    from pymongo.errors import CollectionInvalid, OperationFailure

    try:
        database.create_collection(name, check_exists=False)
    except CollectionInvalid:
        return
    except OperationFailure as error:
        if error.code != _ALREADY_THERE:
            raise


def _create_indexes(collection: Any, layout: Layout, options: Options) -> None:
    from pymongo.errors import OperationFailure

    if layout.own and not layout.schema.key:
        collection.create_index(HASH)
    if layout.schema.key and not layout.key_in_id:
        try:
            collection.create_index([(layout.paths[name], 1) for name in layout.schema.key], unique=True)
        except OperationFailure as error:
            if error.code != _DUPLICATE_KEY:
                raise
            raise mismatch(
                KIND, layout.name, [f"several documents have the same key ({', '.join(layout.schema.key)})"]
            ) from error
    for names in _indexed(layout.schema, options):
        collection.create_index([(layout.paths[name], 1) for name in names])


def _indexed(schema: Schema, options: Options) -> list[list[str]]:
    """The columns of each index that the options ask for."""
    asked = (options.text("index") or "").split(";")
    named = ([schema.column(name.strip()).name for name in columns.split(",") if name.strip()] for columns in asked)
    return [names for names in named if names]


def _checked_layout(spec: TableSpec, collection: Any, *, own: bool) -> Layout:
    layout = Layout(spec.name, spec.schema, own)
    layout.check()
    if not own:
        documents = list(collection.find({}, limit=_DOCUMENTS_LOOKED_AT))
        differences = _differences(layout, documents)
        if differences:
            raise mismatch(KIND, spec.name, differences)
    return layout


def _differences(layout: Layout, documents: Sequence[Document]) -> list[str]:
    """What a look at some documents tells against the columns asked for."""
    found = []
    for column in layout.schema.columns:
        if documents and not any(column.name in document for document in documents):
            found.append(column_missing(column))
            continue
        try:
            layout.rows(documents, [column.name])
        except TableError as error:
            found.append(error.message)
    return found
