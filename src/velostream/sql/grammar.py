"""Queries and expressions: sqlglot's Spark parser extended by what our language adds to a SELECT.

Added: sources in FROM with options of their own, PRIMARY KEY after a select item, the time WINDOW clause, WITHIN on
joins, wildcard paths. Made strict: a join needs its condition.

Methods named `_parse…` belong to sqlglot and are called by it; our own are named after what they read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

from sqlglot import exp
from sqlglot.errors import ParseError as SqlglotParseError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokens import Token, TokenType

from velostream.errors import ParseError
from velostream.sql.dialect import FUNCTIONS, HINTS, SYNTAX_FUNCTIONS, URI, Velostream
from velostream.sql.sources import source_functions, source_of, source_of_function
from velostream.sql.statements import Name, OptionValue, Place, SourceRef, Window, WindowKind
from velostream.sql.uris import MaskedText

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
WITHIN = "within"
"""Argument of a join with the time bound between two streams."""
TIME_WINDOW = "time_window"
"""Argument of a SELECT with its WINDOW clause, as a `Window` in the meta of a literal."""
WILDCARD_PATH = "wildcard_path"
"""Name of the call that stands for a wildcard path; its argument is the path as written."""

_WINDOW_KINDS = {
    "TUMBLING": WindowKind.TUMBLING,
    "SLIDING": WindowKind.SLIDING,
    "HOPPING": WindowKind.SLIDING,
    "SESSION": WindowKind.SESSION,
}
_UNITS = frozenset(
    "MS MILLIS MILLISECOND MILLISECONDS S SEC SECS SECOND SECONDS M MIN MINS MINUTE MINUTES "
    "H HR HRS HOUR HOURS D DAY DAYS".split()
)
_COMPARISONS = frozenset(
    (TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE)
)


def _given(node: exp.Expr) -> list[str]:
    """Names of the arguments a node really has."""
    return [name for name, value in node.args.items() if value not in (None, [], False)]


class SyntaxTrouble(SqlglotParseError):
    """What sqlglot can't parse, before it is known whether another way of reading succeeds."""

    def __init__(self, message: str, token: Token, *, at_end: bool) -> None:
        super().__init__(message)
        self.message = message
        self.token = token
        self.at_end = at_end


class Grammar(SparkParser):
    """Reads queries and expressions of one statement's tokens; `text` is the whole script they come from."""

    STRICT_CAST = True
    ADD_JOIN_ON_TRUE = False
    SUPPORTS_TABLE_QUERY = True
    ARRAY_CONSTRUCTORS: ClassVar[dict[str, Any]] = {}
    COLUMN_OPERATORS: ClassVar[dict[TokenType, Any]] = {
        token: SparkParser.COLUMN_OPERATORS[token] for token in (TokenType.DOT, TokenType.DCOLON)
    }
    FUNCTIONS: ClassVar[dict[str, Any]] = FUNCTIONS
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        name: SparkParser.FUNCTION_PARSERS[name] for name in (*SYNTAX_FUNCTIONS, *HINTS)
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

    def __init__(self, text: MaskedText, tokens: list[Token]) -> None:
        super().__init__(dialect=Velostream())
        self.text = text
        self.sql = text.original
        self._chunks = [tokens]
        self._advance_chunk()

    def raise_error(self, message: str, token: Token | None = None) -> NoReturn:  # type: ignore[override]
        raise SyntaxTrouble(message, token or self.reached, at_end=not token and not self._curr)

    @property
    def reached(self) -> Token:
        """The token that is read next, at the end the last one."""
        return self._curr or self._prev

    def refuse(self, message: str, *, token: Token | None = None, hint: str | None = None) -> ParseError:
        """The error for something of ours that is wrong at a token; no other way of reading is tried."""
        at = token or self.reached
        return self.text.error(message, offset=at.start, width=at.end - at.start + 1, hint=hint)

    def unexpected(self, token: Token) -> ParseError:
        """The error for a token that fits nowhere."""
        if token.token_type == URI:
            return self.refuse("a source can't stand here", token=token, hint="name it after FROM, JOIN, USING or INTO")
        return self.refuse(f'unexpected "{self._written(token, token)}"', token=token)

    def place(self, token: Token | None = None) -> Place:
        return self.text.positions.place((token or self.reached).start)

    def _written(self, first: Token, last: Token) -> str:
        return self.text.original[first.start : last.end + 1]

    def _at_words(self, *words: str) -> bool:
        return bool(self._match_text_seq(*words, advance=False))

    def _parse_statement(self) -> exp.Expr | None:
        query = self._parse_ddl_select()
        if query is None or not isinstance(query, (exp.Query, exp.Values)):
            self.raise_error("Expected a SELECT")
        return query

    def _parse_connect(self, skip_start_token: bool = False) -> exp.Connect | None:
        return None

    def _parse_primary(self) -> exp.Expr | None:
        """Strings side by side are one string."""
        primary = super()._parse_primary()
        if isinstance(primary, exp.Concat):
            return exp.Literal.string("".join(part.name for part in primary.expressions))
        return primary

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
        table.meta.update({SOURCE: source, "start": self._prev.start})
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
        options = self._options() if self._at_options() else ()
        return replace(source, relation="target", options=source.options + options)

    def column_name(self) -> Name:
        """A column that is set, perhaps qualified by its table."""
        if self._next.token_type == TokenType.DOT:
            self._advance(2)
        return self.name("a column")

    def name(self, what: str) -> Name:
        token = self._curr
        identifier = self._parse_id_var(any_token=False)
        if not isinstance(identifier, exp.Identifier):
            raise self.refuse(f"expected the name of {what}")
        if not identifier.name.strip():
            raise self.refuse("a name is empty", token=token)
        if self._match(TokenType.DOT):
            raise self.refuse("a name has one part only", token=token, hint='quote a name with dots: "a.b"')
        return Name(identifier.name, self.place(token))

    def _parse_into(self) -> exp.Into | None:
        token = self._curr
        if not self._match(TokenType.INTO):
            return None
        into = exp.Into(this=exp.Var(this=INTO))
        into.meta.update({INTO: self.target(), "token": token})
        return into

    def _source(self) -> SourceRef | None:
        """A source in the place of a table: a URI, a quoted URI or path, or a call of a source function."""
        token = self._curr
        place = self.place(token) if token else Place()
        if self._match(URI):
            return source_of(self.text.uris[token.start].text, relation="", place=place)
        if self._match(TokenType.STRING):
            if not token.text.strip():
                raise self.refuse("the name of a source is empty", token=token)
            return source_of(token.text, relation="", place=place)
        if token.token_type == TokenType.VAR and self._next.token_type == TokenType.L_PAREN:
            name = token.text.lower()
            if name in source_functions():
                self._advance(2)
                return self._source_call(name, place)
        return None

    def _source_call(self, name: str, place: Place) -> SourceRef:
        address = self._curr.text if self._match(TokenType.STRING, advance=False) else ""
        if address:
            self._advance()
            if self._curr.token_type != TokenType.R_PAREN and not self._match(TokenType.COMMA):
                raise self.refuse(f'expected "," or ")" in {name}(…)')
        options: list[OptionValue] = []
        while not self._match(TokenType.R_PAREN):
            options.append(self._option(TokenType.FARROW, "=>", options))
            if self._curr.token_type != TokenType.R_PAREN and not self._match(TokenType.COMMA):
                raise self.refuse(f'expected "," or ")" in {name}(…)', hint=f"write {name}('…', option => 'value')")
        return source_of_function(name, address, relation="", options=tuple(options), place=place)

    def _parse_table_hints(self) -> list[exp.Expr] | None:
        if not self._at_options():
            return None
        carrier = exp.WithTableHint(expressions=[exp.Var(this=OPTIONS)])
        carrier.meta[OPTIONS] = self._options()
        carrier.meta[OPTIONS_END] = self._index
        return [carrier]

    def _at_options(self) -> bool:
        return bool(self._match_pair(TokenType.WITH, TokenType.L_PAREN, advance=False))

    def _options(self) -> tuple[OptionValue, ...]:
        """WITH ('name' = 'value', …); names and values quoted with ' or " or not at all."""
        self._advance(2)
        options: list[OptionValue] = []
        while not self._match(TokenType.R_PAREN):
            options.append(self._option(TokenType.EQ, "=", options))
            if self._curr.token_type != TokenType.R_PAREN and not self._match(TokenType.COMMA):
                raise self.refuse('expected "," or ")" after an option', hint="write WITH ('name' = 'value', …)")
        return tuple(options)

    def _option(self, assign: TokenType, sign: str, others: list[OptionValue]) -> OptionValue:
        first = self._curr
        name = self._option_text().lower()
        if not name or not self._match(assign):
            raise self.refuse(
                f'expected an option, its name, "{sign}" and its value', hint=f"write 'name' {sign} 'value'"
            )
        value_at = self._curr
        value = self._option_text()
        if not value and value_at.token_type not in (TokenType.STRING, TokenType.IDENTIFIER):
            raise self.refuse(f'option "{name}" has no value', token=first)
        if any(other.name == name for other in others):
            raise self.refuse(f'option "{name}" is given twice', token=first)
        return OptionValue(name, value, self.place(first))

    def _option_text(self) -> str:
        """A quoted word, or everything up to what ends it, as written."""
        if self._curr.token_type in (TokenType.STRING, TokenType.RAW_STRING, TokenType.IDENTIFIER):
            self._advance()
            return str(self._prev.text)
        ends = (TokenType.COMMA, TokenType.R_PAREN, TokenType.L_PAREN, TokenType.EQ, TokenType.FARROW)
        first = self._curr
        while self._curr and self._curr.token_type not in ends:
            self._advance()
        return self._written(first, self._prev) if self._curr is not first else ""

    def _parse_table_alias(self, alias_tokens: Collection[TokenType] | None = None) -> exp.TableAlias | None:
        if self._at_emit() or self._at_within():
            return None
        return super()._parse_table_alias(alias_tokens)

    def _parse_alias(self, this: exp.Expr | None, explicit: bool = False) -> exp.Expr | None:
        if self._at_emit() or self._curr.token_type == TokenType.PRIMARY_KEY or self._at_time_window():
            return this
        return super()._parse_alias(this, explicit)

    def _at_emit(self) -> bool:
        return self._at_words("EMIT", "CHANGES") or self._at_words("EMIT", "FINAL")

    def _at_within(self) -> bool:
        if self._curr.token_type != TokenType.VAR or self._curr.text.upper() != "WITHIN":
            return False
        following = self._next
        return following.token_type in (TokenType.NUMBER, TokenType.INTERVAL, TokenType.STRING) or following.text[
            :1
        ].isdigit()

    def _within(self) -> exp.Expr:
        self._advance()
        return exp.Literal.string(self._duration())

    def _duration(self) -> str:
        """A duration as written: `10m`, `10 minutes`, `'10m'`, `INTERVAL '5' MINUTE`."""
        first = self._curr
        if self._match(TokenType.STRING):
            return str(first.text)
        if self._match(TokenType.INTERVAL):
            if not self._match_set((TokenType.STRING, TokenType.NUMBER)):
                raise self.refuse("expected a duration after INTERVAL", hint="write INTERVAL '5' MINUTE")
        elif first.text[:1].isdigit():
            self._advance()
            while self._curr and self._curr.start == first.start:
                self._advance()
        else:
            raise self.refuse("expected a duration", hint="write 500ms, 30s, 5m, 1h, 7d or INTERVAL '5' MINUTE")
        if self._curr.text.upper() in _UNITS and self._curr.token_type != TokenType.STRING:
            self._advance()
        return self._written(first, self._prev)

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
        free = join.kind == "CROSS" or join.method == "NATURAL" or isinstance(join.this, exp.Lateral)
        if not conditioned and not free:
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
        carrier.meta.update({TIME_WINDOW: window, "token": first})
        return TIME_WINDOW, carrier

    def _time_window(self) -> Window:
        """TUMBLING([ts,] size), SLIDING|HOPPING([ts,] size, advance), SESSION([ts,] gap), sizes also as SIZE 5 MINUTES."""
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

    def _at_duration(self) -> bool:
        if self._curr.token_type in (TokenType.NUMBER, TokenType.STRING, TokenType.INTERVAL):
            return True
        if self._curr.text.upper() == "SIZE":
            return self._next.text[:1].isdigit() or self._next.token_type in (TokenType.STRING, TokenType.INTERVAL)
        return self._curr.token_type == TokenType.VAR and self._curr.text[:1].isdigit()

    def _parse_atom(self) -> exp.Expr | None:
        if self._curr.token_type == TokenType.STAR and (path := self._wildcard_path()):
            return path
        return super()._parse_atom()

    def _parse_column(self) -> exp.Expr | None:
        return self._wildcard_path() or super()._parse_column()

    def _wildcard_path(self) -> exp.Expr | None:
        """`a.*.b`, `a.**.b`, `a[*].b`, `a[1:3]`, `a[price > 100]`: a call of `wildcard_path` with the text.

        A path of plain names and indexes is no such path: it is left to SQL's own rules.
        """
        first = self._curr
        end = self._wildcard_end()
        if end is None:
            return None
        self._advance(end - self._index)
        path = exp.Anonymous(
            this=WILDCARD_PATH, expressions=[exp.Literal.string(self._written(first, self._prev))]
        )
        return path.update_positions(first)

    def _wildcard_end(self) -> int | None:
        """Index of the token after the path that begins here, if it holds a wildcard."""
        index = self._index
        wildcard = False
        if self._token_at(index).token_type == TokenType.STAR:
            index = self._after_stars(index)
            wildcard = self._token_at(index).token_type == TokenType.DOT
            if not wildcard:
                return None
        elif self._token_at(index).token_type in self.ID_VAR_TOKENS or self._curr.token_type == TokenType.IDENTIFIER:
            index += 1
        else:
            return None
        while True:
            token = self._token_at(index)
            if token.token_type == TokenType.DOT:
                following = self._token_at(index + 1)
                if following.token_type == TokenType.STAR:
                    after = self._after_stars(index + 1)
                    double = after - index > 2
                    continues = self._token_at(after).token_type in (TokenType.DOT, TokenType.L_BRACKET)
                    if not (double or continues):
                        return index if wildcard else None
                    wildcard, index = True, after
                elif following.token_type in (TokenType.VAR, TokenType.IDENTIFIER) or following.text[:1].isalpha():
                    index += 2
                else:
                    break
            elif token.token_type == TokenType.L_BRACKET:
                after, selects_many = self._bracket_end(index)
                if after is None:
                    break
                wildcard, index = wildcard or selects_many, after
            else:
                break
        return index if wildcard else None

    def _token_at(self, index: int) -> Token:
        return self._tokens[index] if index < self._tokens_size else Token(TokenType.SENTINEL, "")

    def _after_stars(self, index: int) -> int:
        """Index after `*` or `**`; the two stars of `**` touch."""
        following = self._token_at(index + 1)
        double = following.token_type == TokenType.STAR and following.start == self._token_at(index).end + 1
        return index + 2 if double else index + 1

    def _bracket_end(self, index: int) -> tuple[int | None, bool]:
        """Index after the bracket that opens here, and whether it selects many: `[*]`, `[1:3]`, `[price > 100]`."""
        depth = 0
        selects_many = False
        start = index
        while index < self._tokens_size:
            kind = self._tokens[index].token_type
            if kind in (TokenType.L_BRACKET, TokenType.L_PAREN):
                depth += 1
            elif kind in (TokenType.R_BRACKET, TokenType.R_PAREN):
                depth -= 1
                if depth == 0:
                    return index + 1, selects_many
            elif depth == 1:
                star = kind == TokenType.STAR and index == start + 1
                following = self._token_at(index + 1).token_type
                slice_ = kind == TokenType.COLON and following in (TokenType.NUMBER, TokenType.DASH, TokenType.R_BRACKET)
                selects_many = selects_many or star or slice_ or kind in _COMPARISONS
            index += 1
        return None, False
