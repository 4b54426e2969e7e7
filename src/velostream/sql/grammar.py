"""Queries and expressions: sqlglot's Spark parser extended by what our language adds to a SELECT.

Added: sources in FROM with options of their own, PRIMARY KEY after a select item, the time WINDOW clause, WITHIN on
joins. Made strict: a join needs its condition, SELECT and GROUP BY need items.
"""
# ruff: noqa: FBT001, FBT002 -- the signatures of overridden methods are sqlglot's

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from velostream.sql.dialect import FUNCTIONS, HINTS, SYNTAX_FUNCTIONS, URI
from velostream.sql.paths import PathGrammar
from velostream.sql.sources import source_functions, source_of, source_of_function
from velostream.sql.statements import Name, Place, SourceRef, Window, WindowKind

SOURCE = "source"
"""Key of a table node's meta under which its `SourceRef` waits for its name."""
OPTIONS = "options"
"""Key of a table node's meta with the options of `FROM x WITH (…)`."""
OPTIONS_END = "options_end"
"""Key of a table node's meta: index of the token after that clause."""
PRIMARY_KEY = "primary_key"
"""Key of a select item's meta: PRIMARY KEY stood after it."""
INTO = "into"
"""Key of the meta of a SELECT's INTO node with its target."""
BEGINS_AT = "begins_at"
"""Key of the meta of a clause's node with the token it begins at."""
WITHIN = "within"
"""Argument of a join with the time bound between two streams."""
TIME_WINDOW = "time_window"
"""Argument of a SELECT with its WINDOW clause, as a `Window` in the meta of a literal."""

_WINDOW_KINDS = {
    "TUMBLING": WindowKind.TUMBLING,
    "SLIDING": WindowKind.SLIDING,
    "HOPPING": WindowKind.SLIDING,
    "SESSION": WindowKind.SESSION,
}

_NO_ALIAS = frozenset((TokenType.PRIMARY_KEY, TokenType.L_PAREN))
_QUOTED_RELATIONS = frozenset(("STREAM",))
"""Names that Spark takes for a keyword before an alias: it reads `FROM stream AS s` as the stream of a table `AS`."""


class Grammar(PathGrammar):
    """Reads queries and expressions. Ours is left in the tree as marks for `QueryGrammar` to collect."""

    STRICT_CAST = True
    ADD_JOIN_ON_TRUE = False
    SUPPORTS_TABLE_QUERY = True
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    COLUMN_OPERATORS: ClassVar[dict[TokenType, Any]] = {
        token: SparkParser.COLUMN_OPERATORS[token] for token in (TokenType.DOT, TokenType.DCOLON)
    }
    FUNCTIONS: ClassVar[dict[str, Any]] = FUNCTIONS
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        **{name: SparkParser.FUNCTION_PARSERS[name] for name in (*SYNTAX_FUNCTIONS, *HINTS)},
        "POSITION": lambda self: self._position_call(),
        "TRIM": lambda self: self._trim_call(),
    }
    NO_PAREN_FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.NO_PAREN_FUNCTION_PARSERS[name] for name in ("CASE", "IF")
    }
    STATEMENT_PARSERS: ClassVar[dict[TokenType, Any]] = {}
    QUERY_MODIFIER_PARSERS: ClassVar[dict[TokenType, Any]] = {
        **{
            token: SparkParser.QUERY_MODIFIER_PARSERS[token]
            for token in (
                TokenType.WHERE,
                TokenType.GROUP_BY,
                TokenType.HAVING,
                TokenType.ORDER_BY,
                TokenType.LIMIT,
                TokenType.OFFSET,
                TokenType.TABLE_SAMPLE,
                TokenType.CLUSTER_BY,
                TokenType.DISTRIBUTE_BY,
                TokenType.SORT_BY,
            )
        },
        TokenType.WINDOW: lambda self: self._window_clause(),
    }

    def _parse_statement(self) -> exp.Expr:
        query = self._parse_ddl_select()
        if not isinstance(query, exp.Query | exp.Values):
            self.raise_error("Expected a SELECT")
        return query

    def _parse_connect(self, skip_start_token: bool = False) -> exp.Connect | None:
        return None

    def _parse_bracket(self, this: exp.Expr | None = None) -> exp.Expr | None:
        """`[…]` after something; by itself it is no array in Spark."""
        if this is None and self._match(TokenType.L_BRACKET, advance=False):
            self.raise_error("Expected something before the bracket")
        return super()._parse_bracket(this)

    def _parse_primary(self) -> exp.Expr | None:
        """Strings side by side are one string."""
        primary = super()._parse_primary()
        if isinstance(primary, exp.Concat):
            return exp.Literal.string("".join(part.name for part in primary.expressions))
        return primary

    def _position_call(self) -> exp.Expr:
        """`position(a IN b)` as the call `position(a, b)`."""
        found = self._parse_position()
        arguments = [found.args.get(name) for name in ("substr", "this", "position")]
        return exp.Anonymous(this="position", expressions=[argument for argument in arguments if argument is not None])

    def _trim_call(self) -> exp.Expr:
        """`trim(LEADING FROM a)` as the call `ltrim(a)`; one that names what to trim keeps its form."""
        trim = self._parse_trim()
        if trim.expression is not None or not trim.args.get("position"):
            return trim
        name = {"LEADING": "ltrim", "TRAILING": "rtrim", "BOTH": "trim"}[trim.args["position"]]
        return exp.Trim(this=trim.this) if name == "trim" else exp.Anonymous(this=name, expressions=[trim.this])

    def _parse_at_time_zone(self, this: exp.Expr | None) -> exp.Expr | None:
        return this

    def _parse_pipe_syntax_query(self, query: exp.Query) -> exp.Query | None:
        """`query |> …`: what is piped is the query's result, so its own names must not be seen past it."""
        if not (isinstance(query, exp.Select) and query.is_star and set(_given(query)) <= {"expressions", "from_"}):
            query = exp.select("*").from_(query.subquery(copy=False), copy=False)
        return super()._parse_pipe_syntax_query(query)

    def _parse_group(self, skip_group_by_token: bool = False) -> exp.Group | None:
        group = super()._parse_group(skip_group_by_token)
        if group is not None and not _given(group):
            self.raise_error("Expected something to group by")
        return group

    def _parse_in(self, this: exp.Expr | None, alias: bool = False) -> exp.In:
        membership = super()._parse_in(this, alias)
        if set(_given(membership)) <= {"this"}:
            self.raise_error("Expected values", self._prev)
        return membership

    def _parse_table_parts(
        self, schema: bool = False, is_db_reference: bool = False, wildcard: bool = False, fast: bool = False
    ) -> exp.Table | exp.Dot | None:
        """The name of a relation; a star after it, which Postgres ignores, is an error."""
        parts = super()._parse_table_parts(schema, is_db_reference, wildcard, fast)
        if parts is not None and self._match(TokenType.STAR, advance=False):
            self.raise_error("Unexpected star")
        return parts

    def _parse_value(self, values: bool = True) -> exp.Tuple | None:
        """A row of VALUES; one without brackets has one value and no alias of its own."""
        if self._match(TokenType.L_PAREN, advance=False):
            return super()._parse_value(values)
        value = self._parse_disjunction()
        return exp.Tuple(expressions=[value]) if value is not None else None

    def _parse_types(
        self,
        check_func: bool = False,
        schema: bool = False,
        allow_identifiers: bool = True,
        with_collation: bool = False,
    ) -> exp.Expr | None:
        """A type. sqlglot takes TIME for TIMESTAMP in Spark, which has had a TIME of its own since 4.1, and reads
        `date(a) 'text'` as a literal of a type with arguments.
        """
        first, index = self._curr, self._index
        type_ = super()._parse_types(check_func, schema, allow_identifiers, with_collation)
        if check_func and self._index > index + 1 and self._match(TokenType.STRING, advance=False):
            self._retreat(index)
            return None
        if isinstance(type_, exp.DataType) and type_.this == exp.DType.TIME:
            return exp.DataType(this=exp.DType.USERDEFINED, kind=self._written(first, self._prev).upper())
        return type_

    def _parse_projections(self) -> tuple[list[exp.Expr], list[exp.Expr] | None]:
        items = self._parse_csv(self._select_item)
        if not items:
            self.raise_error("Expected something to select")
        return items, None

    def _select_item(self) -> exp.Expr | None:
        item = self._parse_expression()
        if item is not None and self._match(TokenType.PRIMARY_KEY):
            if not item.alias_or_name or item.is_star:
                raise self.refuse("PRIMARY KEY needs a column or an alias before it", token=self._prev)
            item.meta[PRIMARY_KEY] = self._prev
        return item

    def _parse_table(
        self,
        schema: bool = False,
        joins: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
        parse_bracket: bool = False,
        is_db_reference: bool = False,
        parse_partition: bool = False,
        consume_pipe: bool = False,
    ) -> exp.Expr | None:
        source = self._source()
        if source is None:
            table = super()._parse_table(
                schema, joins, alias_tokens, parse_bracket, is_db_reference, parse_partition, consume_pipe
            )
            if table is not None and (hints := table.args.pop("hints", None)):
                table.meta.update(hints[0].meta)
            if isinstance(table, exp.Table) and table.name.upper() in _QUOTED_RELATIONS:
                table.this.set("quoted", True)
        else:
            table = self._source_table(source, alias_tokens)
            if joins:
                for join in self._parse_joins(alias_tokens=alias_tokens):
                    table.append("joins", join)
        if table is not None and self._at_within():
            table.set(WITHIN, self._within())
        return table

    def _source_table(self, source: SourceRef, alias_tokens: Collection[TokenType] | None) -> exp.Table:
        place = {"line": source.place.line, "col": source.place.column}
        table = exp.Table(this=exp.Identifier(this=SOURCE, quoted=False))
        table.this.meta.update(place)
        table.meta.update(place)
        table.meta[SOURCE] = source
        table.set("sample", self._parse_table_sample())
        table.set("alias", self._parse_table_alias(alias_tokens=alias_tokens or self.TABLE_ALIAS_TOKENS))
        if hints := self._parse_table_hints():
            table.meta.update(hints[0].meta)
        table.set("pivots", self._parse_pivots())
        return table

    def target(self) -> Name | SourceRef:
        """What is written to: a name, or a sink by its URI."""
        source = self._source()
        if source is None:
            return self.name("a table, a stream or a URI")
        options = source.options + (self._options() if self._at_options() else ())
        self.refuse_duplicates(options)
        return replace(source, relation="target", options=options)

    def _parse_into(self) -> exp.Into | None:
        token = self._curr
        if not self._match(TokenType.INTO):
            return None
        into = exp.Into(this=exp.Var(this=INTO))
        into.meta.update({INTO: self.target(), BEGINS_AT: token})
        return into

    def _source(self) -> SourceRef | None:
        """A source in the place of a table: a URI, a quoted URI or path, or a call of a source function."""
        token = self._curr
        place = self.place(token) if token else Place()
        if self._match(URI):
            return source_of(self.text.uris[token.start].text, relation="", place=place)
        if self._match(TokenType.STRING) or ("://" in token.text and self._match(TokenType.IDENTIFIER)):
            if not token.text.strip():
                raise self.refuse("the name of a source is empty", token=token)
            return source_of(token.text, relation="", place=place)
        if token.token_type != TokenType.IDENTIFIER and self._next.token_type == TokenType.L_PAREN:
            name = token.text.lower()
            if name in source_functions():
                self._advance(2)
                return self._source_call(name, place)
        return None

    def _source_call(self, name: str, place: Place) -> SourceRef:
        """The arguments of a source function, after its opening bracket: an address, then `option => value`."""
        address = ""
        if self._match(TokenType.STRING):
            address = self._prev.text
            if not self._match(TokenType.R_PAREN, advance=False) and not self._match(TokenType.COMMA):
                raise self.refuse(f'expected "," or ")" in {name}(…)')
        options = self._option_list(TokenType.FARROW, example=f"{name}('…', option => 'value')")
        return source_of_function(name, address, relation="", options=options, place=place)

    def _parse_table_hints(self) -> list[exp.Expr] | None:
        if not self._at_options():
            return None
        carrier = exp.WithTableHint(expressions=[exp.Var(this=OPTIONS)])
        carrier.meta[OPTIONS] = self._options()
        carrier.meta[OPTIONS_END] = self._index
        return [carrier]

    def _parse_table_alias(self, alias_tokens: Collection[TokenType] | None = None) -> exp.TableAlias | None:
        if self._at_emit() or self._at_within():
            return None
        return super()._parse_table_alias(alias_tokens)

    def _parse_alias(self, this: exp.Expr | None, explicit: bool = False) -> exp.Expr | None:
        """An alias after an expression; a list of them needs AS, or a call of an unknown word would be taken for it."""
        if self._at_emit() or self._at_time_window() or self._curr.token_type in _NO_ALIAS:
            return this
        return super()._parse_alias(this, explicit)

    def _at_within(self) -> bool:
        if self._curr.token_type != TokenType.VAR or self._curr.text.upper() != "WITHIN":
            return False
        following = self._next
        return (
            following.token_type in (TokenType.NUMBER, TokenType.INTERVAL, TokenType.STRING)
            or following.text[:1].isdigit()
        )

    def _within(self) -> exp.Expr:
        self._advance()
        return exp.Literal.string(self._duration())

    def _parse_join(
        self,
        skip_join_token: bool = False,
        parse_bracket: bool = False,
        alias_tokens: Collection[TokenType] | None = None,
    ) -> exp.Join | None:
        first = self._curr
        join = super()._parse_join(skip_join_token, parse_bracket, alias_tokens)
        if join is None:
            return None
        within = join.this.args.pop(WITHIN, None)
        if within is None and self._at_within():
            within = self._within()
        if within is not None:
            join.set(WITHIN, within)
        conditioned = join.args.get("on") or join.args.get("using")
        if join.this.args.get("joins"):
            # `a JOIN b JOIN c ON x ON y`: Spark has no joins within joins but in brackets.
            conditioned = None
        if not conditioned and isinstance(join.this, exp.Lateral) and join.kind != "CROSS":
            join.set("on", exp.true())
        elif not conditioned and join.kind != "CROSS" and join.method != "NATURAL":
            raise self.refuse(
                "JOIN without a condition",
                token=first,
                hint="add ON a.x = b.y or USING (x); CROSS JOIN joins every row with every row",
            )
        return join

    def _at_time_window(self) -> bool:
        return self._match(TokenType.WINDOW, advance=False) and self._next.text.upper() in _WINDOW_KINDS

    def _window_clause(self) -> tuple[str, Any]:
        following = self._tokens[self._index + 2] if self._index + 2 < self._tokens_size else None
        if not self._at_time_window() or following is None or following.token_type != TokenType.L_PAREN:
            return "windows", self._parse_window_clause()
        first = self._curr
        self._advance()
        window = self._time_window()
        carrier = exp.Literal.string(self._written(first, self._prev))
        carrier.meta.update({TIME_WINDOW: window, BEGINS_AT: first})
        return TIME_WINDOW, carrier

    def _time_window(self) -> Window:
        """TUMBLING([ts,] size), SLIDING|HOPPING([ts,] size, advance), SESSION([ts,] gap); also SIZE 5 MINUTES."""
        kind_token = self._curr
        kind = _WINDOW_KINDS[kind_token.text.upper()]
        self._advance(2)
        time_column = None
        if not self._at_duration():
            column = self._parse_column()
            if not isinstance(column, (exp.Column, exp.Dot)) or column.find(exp.Star):
                raise self.refuse("expected a time column or a duration", token=self._curr)
            time_column = column.sql(dialect="spark")
            if not self._match(TokenType.COMMA):
                raise self.refuse('expected "," and the size of the window')
        self._match_text_seq("SIZE")
        size = self._duration()
        advance = None
        if kind is WindowKind.SLIDING and self._match(TokenType.COMMA):
            self._match_text_seq("ADVANCE", "BY")
            advance = self._duration()
        if not self._match(TokenType.R_PAREN):
            raise self.refuse(f'expected ")" to end {kind_token.text.upper()}(…)')
        return Window(kind, time_column, size, advance, self.place(kind_token))

    def _at_emit(self) -> bool:
        return self._at_words("EMIT", "CHANGES") or self._at_words("EMIT", "FINAL")


def _given(node: exp.Expr) -> list[str]:
    """Names of the arguments a node really has."""
    return [name for name, value in node.args.items() if value not in (None, [], False)]
