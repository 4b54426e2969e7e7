"""From parsed trees to queries: sources get their names, our clauses leave the tree, nodes get their places."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp
from sqlglot.tokens import Token

from velostream.sql.grammar import INTO, OPTIONS, OPTIONS_END, PRIMARY_KEY, SOURCE, TIME_WINDOW, WITHIN, Grammar
from velostream.sql.places import mark_places, place_of
from velostream.sql.sources import natural_alias, needs_quotes
from velostream.sql.statements import Emit, Name, OptionValue, Query, SourceRef, Window

_EMITS = {"CHANGES": Emit.CHANGES, "FINAL": Emit.FINAL}


class QueryGrammar(Grammar):
    """Reads whole queries and expressions. Sources are numbered through all of one statement's."""

    _named_sources = 0
    loose_sources: tuple[SourceRef, ...] = ()
    """Sources named inside expressions read so far."""
    trailing_options: tuple[OptionValue, ...] = ()
    """Options that stood after the only relation of the last query and ended the statement: both the relation's and the
    statement's by their place, so they are the statement's, which gives them to the relation too."""

    def query(self) -> Query:
        """A query with its EMIT, up to where it ends."""
        tree = self._parse_statement()
        end = self._index
        emit = self._emit()
        if emit is not None and tree.args.get("limit") is None and (limit := self._parse_limit()):
            tree.set("limit", limit)
        self.trailing_options = ()
        tables = list(tree.find_all(exp.Table))
        if not self._curr and len(tables) == 1 and tables[0].meta.get(OPTIONS_END) == end == self._index:
            self.trailing_options = tables[0].meta.pop(OPTIONS)
        return self._finished(tree, emit)

    def relations(self) -> Query:
        """What follows FROM or USING in UPDATE and DELETE, as `SELECT * FROM …`."""
        tree = exp.Select(expressions=[exp.Star()])
        tree.set("from_", exp.From(this=self._parse_table()))
        for join in self._parse_joins():
            tree.append("joins", join)
        return self._finished(tree, None)

    def merge(self) -> Query:
        """MERGE after its first word: the tree and the sources it reads."""
        return self._finished(self._parse_merge(), None)

    def expression_tree(self) -> exp.Expression:
        """A condition or value; sources in its subqueries are in `loose_sources` afterwards."""
        tree = self._parse_disjunction()
        if tree is None:
            raise self.refuse("expected an expression")
        self.loose_sources += self._finished(tree, None).sources
        return tree

    def _emit(self) -> Emit | None:
        if not self._at_emit():
            return None
        self._advance(2)
        return _EMITS[self._prev.text.upper()]

    def _finished(self, tree: exp.Expr, emit: Emit | None) -> Query:
        outermost = outermost_select(tree)
        key_items = self._key_items(tree, outermost)
        window = self._window(tree, outermost)
        into = self._into(tree, outermost)
        self._refuse_lone_within(tree)
        self._refuse_inner_stars(tree)
        sources = self._name_sources(tree)
        relation_options = self._relation_options(tree)
        mark_places(tree)
        return Query(
            tree,
            sources=sources,
            relation_options=relation_options,
            key_items=key_items,
            emit=emit,
            window=window,
            into=into,
        )

    def _key_items(self, tree: exp.Expr, outermost: exp.Select | None) -> tuple[str, ...]:
        names: list[str] = []
        for select in tree.find_all(exp.Select):
            for item in select.expressions:
                token = item.meta.pop(PRIMARY_KEY, None)
                if token is None:
                    continue
                if select is not outermost:
                    raise self.refuse("PRIMARY KEY belongs to the items of the outermost SELECT", token=token)
                names.append(item.alias_or_name)
        return tuple(names)

    def _window(self, tree: exp.Expr, outermost: exp.Select | None) -> Window | None:
        found: Window | None = None
        for query in tree.find_all(exp.Query):
            carrier = query.args.pop(TIME_WINDOW, None)
            if carrier is None:
                continue
            token: Token = carrier.meta["token"]
            if query is not outermost:
                raise self.refuse(
                    "this WINDOW belongs to the outermost SELECT",
                    token=token,
                    hint="inside, group by Spark's own window(ts, '5 minutes')",
                )
            found = carrier.meta[TIME_WINDOW]
        return found

    def _into(self, tree: exp.Expr, outermost: exp.Select | None) -> Name | SourceRef | None:
        found: Name | SourceRef | None = None
        for select in tree.find_all(exp.Select):
            carrier = select.args.pop("into", None)
            if carrier is None:
                continue
            found = carrier.meta[INTO]
            if select is not outermost:
                raise self.refuse("INTO belongs to the outermost SELECT", token=carrier.meta["token"])
        return found

    def _name_sources(self, tree: exp.Expr) -> tuple[SourceRef, ...]:
        """Give each source its relation name, in the order of the text, and the alias it answers to."""
        tables = [table for table in tree.find_all(exp.Table) if SOURCE in table.meta]
        tables.sort(key=lambda table: table.meta["start"])
        taken = {table.name.lower() for table in tree.find_all(exp.Table) if SOURCE not in table.meta}
        taken |= {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        sources: list[SourceRef] = []
        for table in tables:
            source: SourceRef = table.meta.pop(SOURCE)
            options = source.options + table.meta.pop(OPTIONS, ())
            self._refuse_duplicates(options)
            named = replace(source, relation=self._next_relation(taken), options=options)
            table.this.set("this", named.relation)
            alias = natural_alias(named)
            if alias and not table.alias:
                quoted = needs_quotes(alias)
                table.set("alias", exp.TableAlias(this=exp.Identifier(this=alias, quoted=quoted)))
            sources.append(named)
        return tuple(sources)

    def _next_relation(self, taken: set[str]) -> str:
        while True:
            name = f"source_{self._named_sources}"
            self._named_sources += 1
            if name not in taken:
                return name

    def _refuse_duplicates(self, options: tuple[OptionValue, ...]) -> None:
        names: set[str] = set()
        for option in options:
            if option.name in names:
                raise self.text.error_at(f'option "{option.name}" is given twice', place=option.place)
            names.add(option.name)

    def _relation_options(self, tree: exp.Expr) -> dict[str, tuple[OptionValue, ...]]:
        """Options of tables and streams named in FROM; one relation has one set of them."""
        found: dict[str, tuple[OptionValue, ...]] = {}
        for table in tree.find_all(exp.Table):
            options = table.meta.pop(OPTIONS, None)
            if options and found.setdefault(table.name.lower(), options) != options:
                raise self.text.error_at(
                    f'relation "{table.name}" has different options elsewhere in the query', place=options[0].place
                )
        return found

    def _refuse_inner_stars(self, tree: exp.Expr) -> None:
        for dot in tree.find_all(exp.Dot):
            if dot.this.is_star:
                raise self.text.error_at("a wildcard path begins with a column", place=place_of(dot))

    def _refuse_lone_within(self, tree: exp.Expr) -> None:
        for table in tree.find_all(exp.Table, exp.Subquery):
            if WITHIN in table.args:
                raise self.text.error_at("WITHIN belongs to a join of two streams", place=place_of(table))


def outermost_select(tree: exp.Expr) -> exp.Select | None:
    """The SELECT whose items name the result's columns."""
    while isinstance(tree, (exp.Subquery, exp.SetOperation)):
        tree = tree.this
    return tree if isinstance(tree, exp.Select) else None
