"""Statements back to text, such that parsing the text gives an equal statement.

The text is normal, not the one written: sources are URIs, durations and options are quoted where they must be, synonyms
are resolved.
"""

from __future__ import annotations

import re
from functools import singledispatch
from typing import ClassVar

from sqlglot import exp
from sqlglot.generators.spark import SparkGenerator

from velostream.model.schema import Schema
from velostream.model.types import render_type
from velostream.sql.grammar import WITHIN
from velostream.sql.paths import is_wildcard_path, path_as_written
from velostream.sql.queries import outermost_select
from velostream.sql.sources import needs_quotes, source_of
from velostream.sql.statements import (
    Assignment,
    Control,
    Create,
    CreateIndex,
    Delete,
    Describe,
    Drop,
    Explain,
    ExplainAnalyze,
    Insert,
    Merge,
    Name,
    OptionValue,
    Query,
    Refresh,
    Select,
    SetOption,
    Show,
    SourceRef,
    Statement,
    Transaction,
    Truncate,
    Update,
    Validate,
    Window,
)
from velostream.sql.uris import is_bare_uri

_BARE_DURATION = re.compile(r"\d+(?:\.\d+)?[A-Za-z]*")
_BARE_SETTING = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


@singledispatch
def render(statement: Statement) -> str:
    """The statement as SQL text, without a closing `;`."""
    raise TypeError(f"no text for {type(statement).__name__}")


class _Writer(SparkGenerator):
    """Writes trees in our language: sources in place of their relations, options, WITHIN, wildcard paths."""

    TABLE_HINTS = True
    EXPRESSIONS_WITHOUT_NESTED_CTES: ClassVar[set[type[exp.Expr]]] = set()

    def __init__(
        self,
        sources: tuple[SourceRef, ...],
        relation_options: dict[str, tuple[OptionValue, ...]],
        *,
        commas: bool = False,
    ) -> None:
        super().__init__(dialect="spark")
        self._commas = commas
        self._source_of = {source.relation: source for source in sources}
        self._relation_options = relation_options

    def written(self, tree: exp.Expr) -> str:
        return str(self.generate(tree, copy=True))

    def table_sql(self, expression: exp.Table, sep: str = " AS ") -> str:
        source = self._source_of.get(expression.name) if not expression.db else None
        options = source.options if source else self._relation_options.get(expression.name.lower(), ())
        if source is None and not options:
            return str(super().table_sql(expression, sep))
        shown = expression.copy()
        if source is not None:
            shown.set("this", exp.Var(this=_source(source)))
        if options:
            shown.set("hints", [exp.Var(this=_options(options))])
        return str(super().table_sql(shown, sep))

    def join_sql(self, expression: exp.Join, join_op: str | None = None) -> str:
        if self._commas and expression.kind == "CROSS" and not expression.args.get("on"):
            return f", {self.sql(expression, 'this')}"
        within = expression.args.get(WITHIN)
        text = str(super().join_sql(expression, join_op))
        return f"{text} WITHIN {_duration(within.name)}" if within is not None else text

    def anonymous_sql(self, expression: exp.Anonymous) -> str:
        if is_wildcard_path(expression):
            return path_as_written(expression)
        return str(super().anonymous_sql(expression))


def _query(query: Query, *, commas: bool = False) -> str:
    """The query; with `commas` it has no CROSS JOIN, which would take an ON that follows the query for its own."""
    writer = _Writer(query.sources, dict(query.relation_options), commas=commas)
    tree = query.tree.copy()
    _mark_keys(tree, query.key_items, writer)
    parts = [writer.written(tree)]
    if query.window is not None:
        parts.append(_window(query.window))
    if query.emit is not None:
        parts.append(f"EMIT {query.emit.upper()}")
    return " ".join(parts)


def _mark_keys(tree: exp.Expr, key_items: tuple[str, ...], writer: _Writer) -> None:
    """Write PRIMARY KEY after the first select item of each key name."""
    select = outermost_select(tree)
    names = list(key_items)
    for item in select.expressions if select else ():
        if item.alias_or_name in names:
            names.remove(item.alias_or_name)
            item.replace(exp.Var(this=f"{writer.written(item)} PRIMARY KEY"))


def _query_with_options(query: Query, options: tuple[OptionValue, ...]) -> str:
    """A query and its statement's WITH.

    Options that end the text would be read as the statement's, so an empty WITH follows those of a relation.
    """
    text = _query(query)
    if options:
        return f"{text} {_options(options)}"
    relations = [source.options for source in query.sources] + list(query.relation_options.values())
    ambiguous = any(given and text.endswith(_options(given)) for given in relations)
    return f"{text} WITH ()" if ambiguous else text


def _relations(query: Query) -> str:
    return _query(query).removeprefix("SELECT * FROM ")


def _expression(tree: exp.Expr, sources: tuple[SourceRef, ...] = ()) -> str:
    return _Writer(sources, {}).written(tree)


def _window(window: Window) -> str:
    arguments = [window.time_column] if window.time_column else []
    arguments += [_duration(window.size)] + ([_duration(window.advance)] if window.advance else [])
    return f"WINDOW {window.kind.upper()}({', '.join(arguments)})"


def _duration(text: str) -> str:
    return text if _BARE_DURATION.fullmatch(text) else _string(text)


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return "`" + name.replace("`", "``") + "`" if needs_quotes(name) else name


def _options(options: tuple[OptionValue, ...]) -> str:
    return f"WITH ({', '.join(f'{_string(option.name)} = {_string(option.value)}' for option in options)})"


def _source(source: SourceRef) -> str:
    if source_of(source.uri, relation="").kind != source.kind:
        return f"{source.kind}({_string(source.uri)})"
    return source.uri if is_bare_uri(source.uri) else _string(source.uri)


def _target(target: Name | SourceRef) -> str:
    if isinstance(target, Name):
        return _identifier(target.text)
    return f"{_source(target)} {_options(target.options)}" if target.options else _source(target)


def _names(names: tuple[str, ...]) -> str:
    return f"({', '.join(map(_identifier, names))})"


def _columns(schema: Schema) -> str:
    declared = [
        f"{_identifier(column.name)} {render_type(column.type)}" + ("" if column.nullable else " NOT NULL")
        for column in schema.columns
    ]
    if schema.key:
        declared.append(f"PRIMARY KEY {_names(schema.key)}")
    return f"({', '.join(declared)})"


@render.register
def _(statement: Create) -> str:
    words = ["CREATE"]
    if statement.or_replace:
        words.append("OR REPLACE")
    words.append(statement.what)
    if statement.if_not_exists:
        words.append("IF NOT EXISTS")
    words.append(_identifier(statement.name.text))
    if statement.columns is not None:
        words.append(_columns(statement.columns))
    if statement.query is not None:
        words += ["AS", _query_with_options(statement.query, statement.options)]
    elif statement.options:
        words.append(_options(statement.options))
    return " ".join(words)


@render.register
def _(statement: CreateIndex) -> str:
    table = _identifier(statement.table.text)
    return f"CREATE INDEX {_identifier(statement.name.text)} ON {table} {_names(statement.columns)}"


@render.register
def _(statement: Drop) -> str:
    exists = "IF EXISTS " if statement.if_exists else ""
    cascade = " CASCADE" if statement.cascade else ""
    return f"DROP {statement.what} {exists}{_identifier(statement.name.text)}{cascade}"


@render.register
def _(statement: Insert) -> str:
    words = ["UPSERT INTO" if statement.upsert else "INSERT INTO", _target(statement.target)]
    if statement.columns:
        words.append(_names(statement.columns))
    if statement.query is None:
        words.append("VALUES " + ", ".join(_row(row, statement.sources) for row in statement.values))
    elif statement.on is None:
        return " ".join([*words, _query_with_options(statement.query, statement.options)])
    else:
        words += [_query(statement.query, commas=True), "ON", _expression(statement.on, statement.sources)]
    if statement.options:
        words.append(_options(statement.options))
    return " ".join(words)


def _row(row: tuple[exp.Expression, ...], sources: tuple[SourceRef, ...]) -> str:
    return f"({', '.join(_expression(value, sources) for value in row)})"


@render.register
def _(statement: Update) -> str:
    words = ["UPDATE", _aliased(statement.table, statement.alias), "SET"]
    words.append(", ".join(_assignment(assignment, statement.sources) for assignment in statement.assignments))
    if statement.source is not None:
        words += ["FROM", _relations(statement.source)]
    if statement.where is not None:
        words += ["WHERE", _expression(statement.where, statement.sources)]
    return " ".join(words)


@render.register
def _(statement: Delete) -> str:
    words = ["DELETE FROM", _aliased(statement.table, statement.alias)]
    if statement.source is not None:
        words += ["USING", _relations(statement.source)]
    if statement.where is not None:
        words += ["WHERE", _expression(statement.where, statement.sources)]
    return " ".join(words)


def _aliased(table: Name, alias: str | None) -> str:
    return _identifier(table.text) + (f" AS {_identifier(alias)}" if alias else "")


def _assignment(assignment: Assignment, sources: tuple[SourceRef, ...]) -> str:
    return f"{_identifier(assignment.column.text)} = {_expression(assignment.value, sources)}"


@render.register
def _(statement: Merge) -> str:
    return _expression(statement.tree, statement.sources)


@render.register
def _(statement: Transaction) -> str:
    return str(statement.action)


@render.register
def _(statement: Truncate) -> str:
    return f"TRUNCATE TABLE {_identifier(statement.table.text)}"


@render.register
def _(statement: Refresh) -> str:
    return f"REFRESH TABLE {_identifier(statement.table.text)}"


@render.register
def _(statement: Select) -> str:
    return _query_with_options(statement.query, statement.options)


@render.register
def _(statement: Explain) -> str:
    return f"EXPLAIN {'EXTENDED ' if statement.extended else ''}{render(statement.statement)}"


@render.register
def _(statement: ExplainAnalyze) -> str:
    return f"EXPLAIN ANALYZE QUERY {_identifier(statement.query.text)}"


@render.register
def _(statement: Validate) -> str:
    return f"VALIDATE {render(statement.statement)}"


@render.register
def _(statement: Describe) -> str:
    return f"DESCRIBE {_identifier(statement.name.text)}"


@render.register
def _(statement: Show) -> str:
    name = f" {_identifier(statement.name.text)}" if statement.name else ""
    like = f" LIKE {_string(statement.like)}" if statement.like is not None else ""
    return f"SHOW {statement.what}{name}{like}"


@render.register
def _(statement: Control) -> str:
    return f"{statement.action} QUERY {_identifier(statement.name.text)}"


@render.register
def _(statement: SetOption) -> str:
    key = statement.key if _BARE_SETTING.fullmatch(statement.key) else _string(statement.key)
    return f"SET {key} = {_string(statement.value)}"
