"""Statement heads: everything around queries and expressions, one method per statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from velostream.sql.declarations import DeclarationGrammar
from velostream.sql.places import place_of
from velostream.sql.reading import shortened
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
    ObjectKind,
    OptionValue,
    Query,
    QueryAction,
    Refresh,
    Select,
    SetOption,
    Show,
    ShowKind,
    Statement,
    Transaction,
    TransactionAction,
    Truncate,
    Update,
    Validate,
)

T = TypeVar("T")

_QUERY_WORDS = {"QUERY": "QUERY", "JOB": "QUERY"}
_SHOW_NAMED = (
    ShowKind.STATUS,
    ShowKind.PROGRESS,
    ShowKind.METRICS,
    ShowKind.SCHEMA,
    ShowKind.PROPERTIES,
    ShowKind.DEAD_LETTERS,
)
_QUERY_STARTS = (TokenType.SELECT, TokenType.WITH, TokenType.L_PAREN, TokenType.VALUES, TokenType.TABLE, TokenType.FROM)


class StatementGrammar(DeclarationGrammar):
    """Reads one statement. Each method begins at the statement's first word and sets its text and place."""

    def statement(self) -> Statement:
        """The whole statement; text after it that belongs to nothing is an error."""
        statement = self._statement()
        self._end()
        return statement

    def lone_expression(self) -> exp.Expression:
        tree = self.expression_tree()
        if self.loose_sources:
            raise self.text.error_at("a source can't stand in this expression", place=self.loose_sources[0].place)
        self._end()
        return tree

    def _end(self) -> None:
        if self._curr:
            raise self.unexpected(self._curr)

    def _statement(self) -> Statement:
        first = self._curr
        reader = self._READERS.get(first.text.upper()) if first.token_type != TokenType.IDENTIFIER else None
        if reader is not None:
            self._advance()
        elif first.token_type not in _QUERY_STARTS:
            raise self.refuse(
                f'no statement begins with "{shortened(first.text)}"', hint="SELECT, CREATE, INSERT, SHOW, EXPLAIN, …"
            )
        statement = reader(self) if reader is not None else self._select()
        return replace(statement, text=self.text.original, place=self.place(first))

    def _words(self, *words: str) -> bool:
        """Take these words if they come next."""
        return bool(self._match_text_seq(*words))

    def _expect(self, *words: str, hint: str | None = None) -> None:
        for word in words:
            if not self._words(word):
                raise self.refuse(f"expected {word}", hint=hint)

    def _one_of(self, what: str, choices: dict[str, T]) -> T:
        """Take the word that names one of the choices."""
        chosen = choices.get(self._curr.text.upper()) if self._curr else None
        if chosen is None or self._curr.token_type in (TokenType.STRING, TokenType.IDENTIFIER):
            raise self.refuse(f"expected {what}", hint=", ".join(choices))
        self._advance()
        return chosen

    def _own_options(self) -> tuple[OptionValue, ...]:
        """The statement's own WITH clause; those that ended its query count as such."""
        if self._at_options():
            return self._options()
        return self.trailing_options

    def _late_emit(self, query: Query) -> Query:
        """The query with an EMIT that stands after the statement's WITH."""
        return query if query.emit is not None else replace(query, emit=self._emit())

    def _create(self) -> Statement:
        or_replace = self._words("OR", "REPLACE")
        if not or_replace and self._words("INDEX"):
            return self._create_index()
        what = self._one_of("TABLE, STREAM or INDEX", {"TABLE": ObjectKind.TABLE, "STREAM": ObjectKind.STREAM})
        if_not_exists = self._words("IF", "NOT", "EXISTS")
        name = self.name(f"the {what.lower()}")
        columns = self.columns() if self._match(TokenType.L_PAREN) else None
        options = self._options() if self._at_options() else ()
        query = self.query() if self._match(TokenType.ALIAS) else None
        if query is not None and query.into is not None:
            raise self.text.error_at(
                "a query with a target can't fill a table", place=query.into.place, hint="leave INTO out"
            )
        if query is None and (emit := self._emit()):
            raise self.refuse(f"EMIT {emit.upper()} belongs to a query", token=self._prev)
        own = self._own_options()
        if options and own:
            raise self.text.error_at("the statement has two WITH clauses", place=own[0].place)
        if query is not None:
            query = self._late_emit(query)
            if what is ObjectKind.TABLE:
                query = replace(query, table_key=() if columns is None else columns.key)
        elif columns is None and not (options or own):
            raise self.refuse(
                f'{what.lower()} "{name.text}" has neither columns nor a query',
                hint="add (id BIGINT, …) or AS SELECT …",
            )
        return Create(what, name, columns, query, options or own, or_replace, if_not_exists)

    def _create_index(self) -> Statement:
        name = self.name("the index")
        self._expect("ON")
        table = self.name("a table")
        return CreateIndex(name, table, tuple(column.text for column in self.name_list("a column")))

    def _drop(self) -> Statement:
        what = self._one_of("TABLE, STREAM or INDEX", {str(kind): kind for kind in ObjectKind})
        if_exists = self._words("IF", "EXISTS")
        name = self.name(f"the {what.lower()}")
        return Drop(what, name, if_exists, self._words("CASCADE"))

    def _insert(self, *, upsert: bool = False) -> Statement:
        self._expect("INTO")
        target = self.target()
        columns: tuple[str, ...] = ()
        if self._match(TokenType.L_PAREN, advance=False) and self._next.token_type not in _QUERY_STARTS:
            columns = tuple(name.text for name in self.name_list("a column"))
        if self._match(TokenType.VALUES):
            values = self._value_rows(columns)
            return Insert(
                target, columns, values, upsert=upsert, options=self._own_options(), sources=self.loose_sources
            )
        query = self.query()
        if query.into is not None:
            raise self.text.error_at("the query has a target of its own", place=query.into.place, hint="leave INTO out")
        condition = self.expression_tree() if upsert and self._match(TokenType.ON) else None
        options = self._own_options()
        return Insert(
            target,
            columns,
            query=self._late_emit(query),
            upsert=upsert,
            on=condition,
            options=options,
            sources=self.loose_sources,
        )

    def _upsert(self) -> Statement:
        return self._insert(upsert=True)

    def _value_rows(self, columns: tuple[str, ...]) -> tuple[tuple[exp.Expression, ...], ...]:
        rows: list[tuple[exp.Expression, ...]] = []
        while True:
            token = self._curr
            if not self._match(TokenType.L_PAREN):
                raise self.refuse('expected "(" before a row of values')
            row = [self.expression_tree()]
            while self._match(TokenType.COMMA):
                row.append(self.expression_tree())
            if not self._match(TokenType.R_PAREN):
                raise self.refuse('expected "," or ")" in a row of values')
            expected = len(columns or (rows[0] if rows else row))
            if len(row) != expected:
                raise self.refuse(f"expected {expected} values in the row, got {len(row)}", token=token)
            rows.append(tuple(row))
            if not self._match(TokenType.COMMA):
                return tuple(rows)

    def _update(self) -> Statement:
        table = self.name("a table")
        alias = self._alias()
        self._expect("SET")
        assignments = [self._assignment()]
        while self._match(TokenType.COMMA):
            assignments.append(self._assignment())
        source = self.relations() if self._match(TokenType.FROM) else None
        where = self.expression_tree() if self._match(TokenType.WHERE) else None
        return Update(table, tuple(assignments), source, where, alias, sources=self.loose_sources)

    def _assignment(self) -> Assignment:
        column = self.column_name()
        if not self._match(TokenType.EQ):
            raise self.refuse(f'expected "=" after column "{column.text}"')
        return Assignment(column, self.expression_tree())

    def _delete(self) -> Statement:
        self._expect("FROM")
        table = self.name("a table")
        alias = self._alias()
        source = self.relations() if self._match_set((TokenType.USING, TokenType.FROM)) else None
        where = self.expression_tree() if self._match(TokenType.WHERE) else None
        return Delete(table, source, where, alias, sources=self.loose_sources)

    def _alias(self) -> str | None:
        if self._words("AS"):
            return self.name("an alias").text
        if self._curr.token_type in (TokenType.VAR, TokenType.IDENTIFIER):
            return self.name("an alias").text
        return None

    def _merge(self) -> Statement:
        query = self.merge()
        target = query.tree.this
        if not isinstance(target, exp.Table) or target.name in [source.relation for source in query.sources]:
            raise self.text.error_at("MERGE INTO needs a table", place=place_of(target))
        return Merge(Name(target.name, place_of(target)), query.tree, query.sources)

    def _select(self) -> Statement:
        query = self.query()
        target = query.into
        if target is None and (self._words("INSERT", "INTO") or self._words("INTO")):
            target = self.target()
            query = self._late_emit(query)
        options = self._own_options()
        query = self._late_emit(query)
        if target is None:
            return Select(query, options)
        return Insert(target, query=replace(query, into=None), options=options)

    def _explain(self) -> Statement:
        if self._words("ANALYZE"):
            self._one_of("QUERY", _QUERY_WORDS)
            return ExplainAnalyze(self.name("a query"))
        extended = self._words("EXTENDED")
        return Explain(self._inner(), extended)

    def _validate(self) -> Statement:
        return Validate(self._inner())

    def _inner(self) -> Statement:
        if not self._curr or self._curr.text.upper() in ("EXPLAIN", "VALIDATE"):
            raise self.refuse("expected a statement to explain or validate")
        return self._statement()

    def _describe(self) -> Statement:
        self._words("TABLE")
        return Describe(self.name("a table, a stream or a query"))

    def _show(self) -> Statement:
        if self._words("DEAD", "LETTERS"):
            what = ShowKind.DEAD_LETTERS
        else:
            choices = {str(kind): kind for kind in ShowKind if kind is not ShowKind.DEAD_LETTERS}
            what = self._one_of("what to show", choices | {"JOBS": ShowKind.QUERIES})
        name = None
        if what in _SHOW_NAMED and self._curr and not self._match(TokenType.LIKE, advance=False):
            name = self.name("a table or a query")
        if name is None and what in (ShowKind.SCHEMA, ShowKind.PROPERTIES):
            raise self.refuse("expected the name of a table or a stream")
        like = None
        if self._match(TokenType.LIKE):
            if not self._match(TokenType.STRING):
                raise self.refuse("expected a pattern in quotes", hint="LIKE 'p%'")
            like = self._prev.text
        return Show(what, name, like)

    def _control(self) -> Statement:
        action = QueryAction(self._prev.text.upper())
        self._one_of("QUERY", _QUERY_WORDS)
        return Control(action, self.name("a query"))

    def _transaction(self) -> Statement:
        action = TransactionAction(self._prev.text.upper())
        self._words("TRANSACTION")
        return Transaction(action)

    def _truncate(self) -> Statement:
        self._expect("TABLE")
        return Truncate(self.name("a table"))

    def _refresh(self) -> Statement:
        self._expect("TABLE")
        return Refresh(self.name("a table"))

    def _set(self) -> Statement:
        key = self._option_text()
        if not key or not self._match(TokenType.EQ):
            raise self.refuse('expected a setting, "=" and its value', hint="SET key = 'value'")
        quoted = self._curr.token_type in (TokenType.STRING, TokenType.IDENTIFIER)
        value = self._option_text()
        if not value and not quoted:
            raise self.refuse("expected the value of the setting", hint=f"SET {key} = 'value'")
        return SetOption(key, value)

    _READERS: ClassVar[dict[str, Callable[[Any], Statement]]] = {
        "CREATE": _create,
        "DROP": _drop,
        "INSERT": _insert,
        "UPSERT": _upsert,
        "UPDATE": _update,
        "DELETE": _delete,
        "MERGE": _merge,
        "BEGIN": _transaction,
        "COMMIT": _transaction,
        "ROLLBACK": _transaction,
        "TRUNCATE": _truncate,
        "REFRESH": _refresh,
        "EXPLAIN": _explain,
        "VALIDATE": _validate,
        "DESCRIBE": _describe,
        "DESC": _describe,
        "SHOW": _show,
        "PAUSE": _control,
        "RESUME": _control,
        "STOP": _control,
        "RESTART": _control,
        "SET": _set,
    }
