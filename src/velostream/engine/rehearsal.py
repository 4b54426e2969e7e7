"""A script looked at without being run: what `velostream validate` and `velostream explain` show.

Each statement is planned against the catalog as the statements before it would have left it. The columns of a view
are Spark's to say, so Spark starts only when a later statement reads a view of the same script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from velostream.engine.planning import Lens
from velostream.engine.sourcing import reference_of
from velostream.errors import AlreadyExistsError, SqlError, VelostreamError
from velostream.sql import statements as st
from velostream.sql.explain import explain_rows, validate_statement
from velostream.sql.explain_changes import changes_by_rows, explain_change
from velostream.sql.parse import parse_statement
from velostream.sql.plan import Relation, RelationKind
from velostream.sql.planner import plan_query

if TYPE_CHECKING:
    from velostream.engine.connection import Connection
    from velostream.model.schema import Schema


@dataclass(frozen=True)
class Rehearsed:
    """One statement: what is wrong or doubtful with it, and how it would run."""

    kind: str
    name: str | None
    problems: tuple[VelostreamError, ...]
    """Warnings are those whose code begins with `warning`."""
    plan: tuple[tuple[str, str], ...]
    """Properties and values as EXPLAIN gives them; empty when the statement can't be planned."""

    @property
    def errors(self) -> tuple[VelostreamError, ...]:
        return tuple(problem for problem in self.problems if not problem.code.startswith("warning"))


def rehearse(connection: Connection, statements: Sequence[str], *, extended: bool = False) -> list[Rehearsed]:
    """Look at statements one after another; nothing is created and nothing is raised for a faulty one."""
    lens = _ScriptLens(connection)
    return [_rehearse(lens, statement, extended=extended) for statement in statements]


def _rehearse(lens: _ScriptLens, text: str, *, extended: bool) -> Rehearsed:
    try:
        statement = parse_statement(text)
    except SqlError as error:
        return Rehearsed("statement", None, error.problems, ())
    with lens.speaking_for(getattr(statement, "options", ())):
        return _rehearse_statement(lens, statement, extended=extended)


def _rehearse_statement(lens: _ScriptLens, statement: st.Statement, *, extended: bool) -> Rehearsed:
    name = getattr(statement, "name", None)
    shown = name.text if isinstance(name, st.Name) else None
    try:
        problems: tuple[VelostreamError, ...] = tuple(validate_statement(statement, lens, statement.text))
    except VelostreamError as error:
        problems = (error,)
    problems += lens.conflicts(statement)
    found = Rehearsed(statement.kind, shown, problems, ())
    if not found.errors:
        found = Rehearsed(statement.kind, shown, problems, tuple(_plan(lens, statement, extended=extended)))
    lens.note(statement)
    return found


def _plan(lens: _ScriptLens, statement: st.Statement, *, extended: bool) -> list[tuple[str, str]]:
    if changes_by_rows(statement):
        explained = explain_change(statement, lens)
        return explained.rows + ([] if explained.plan is None else explain_rows(explained.plan, extended=extended))
    query = getattr(statement, "query", None)
    if not isinstance(query, st.Query):
        return [("strategy", "executed directly")]
    options = getattr(statement, "options", ())
    continuous = not isinstance(statement, st.Select)
    plan = plan_query(query, options=options, catalog=lens, text=statement.text, continuous=continuous)
    return explain_rows(plan, extended=extended)


class _ScriptLens(Lens):
    """The catalog with what the script would have created so far."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection._context, connection._launcher.book)
        self._binder = connection._launcher.binder
        self._created: dict[str, _Created] = {}
        self._dropped: set[str] = set()

    def names(self) -> Sequence[str]:
        kept = [name for name in super().names() if name.lower() not in self._dropped]
        return [*kept, *(created.name for created in self._created.values())]

    def relation(self, name: str) -> Relation | None:
        created = self._created.get(name.lower())
        if created is not None:
            return created.relation()
        return None if name.lower() in self._dropped else super().relation(name)

    def conflicts(self, statement: st.Statement) -> tuple[VelostreamError, ...]:
        """The error of creating something under a name that is taken."""
        if not isinstance(statement, st.Create) or statement.or_replace or statement.if_not_exists:
            return ()
        name = statement.name.text
        taken = name.lower() in (known.lower() for known in self.names())
        return (AlreadyExistsError.of(statement.what.lower(), name),) if taken else ()

    def note(self, statement: st.Statement) -> None:
        """Take a statement as executed."""
        match statement:
            case st.Create(name=name):
                self._dropped.discard(name.text.lower())
                self._created[name.text.lower()] = _Created(name.text, lambda: self._relation_created_by(statement))
            case st.Drop(name=name):
                self._created.pop(name.text.lower(), None)
                self._dropped.add(name.text.lower())
            case _:
                pass

    def _relation_created_by(self, statement: st.Create) -> Relation:
        name, is_stream = statement.name.text, statement.what is st.ObjectKind.STREAM
        if statement.query is None and is_stream:
            return self._declared_stream(statement)
        kind = RelationKind.STREAM if is_stream else RelationKind.TABLE
        reason = "created by this script"
        schema = statement.columns or self._columns_of(statement)
        indexes = (schema.key,) if schema is not None and schema.key else ()
        return Relation(name, kind, schema, indexes=indexes, reason=reason)

    def _declared_stream(self, statement: st.Create) -> Relation:
        uri = next((option.value for option in statement.options if option.name == "source"), None)
        if uri is None:
            return Relation(statement.name.text, RelationKind.STREAM, statement.columns)
        spec = self._book.spec(reference_of(uri), statement.options, columns=statement.columns)
        return self._relation_of(statement.name.text, spec)

    def _columns_of(self, statement: st.Create) -> Schema | None:
        """Columns of a view, by Spark's analyser; nothing while a source of it has no columns, or it is faulty."""
        if statement.query is None:
            return None
        try:
            with self.speaking_for(statement.options):
                plan = plan_query(
                    statement.query, options=statement.options, catalog=self, text=statement.text, continuous=True
                )
            return self._binder.bind_plan(plan, self).schema
        except VelostreamError:
            return None


class _Created:
    """Something the script creates; its columns are found out when a later statement asks."""

    def __init__(self, name: str, find: Callable[[], Relation]) -> None:
        self.name = name
        self._find = find
        self._relation: Relation | None = None

    def relation(self) -> Relation:
        if self._relation is None:
            self._relation = self._find()
        return self._relation
