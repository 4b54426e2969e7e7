"""From parsed trees to queries: sources get their names, our clauses leave the tree, nodes get their places."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar, cast

from sqlglot import exp

from velostream.sql.ctes import separate_inner_ctes
from velostream.sql.grammar import (
    BEGINS_AT,
    INTO,
    OPTIONS,
    OPTIONS_END,
    PRIMARY_KEY,
    SOURCE,
    TIME_WINDOW,
    WITHIN,
    Grammar,
)
from velostream.sql.places import mark_places, place_of
from velostream.sql.sources import natural_alias, needs_quotes
from velostream.sql.statements import Emit, Name, OptionValue, Query, SourceRef, Window

N = TypeVar("N", bound=exp.Expr)

MAX_DEPTH = 150
"""Levels of a tree; a chain of equal operators counts as one."""

_CLAUSES = ("where", "group", "having", "order", "limit", "offset", "sort", "cluster", "distribute", "windows")
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
        if not self._curr and len(tables) == 1 and tables[0].meta_get(OPTIONS_END) == end == self._index:
            self.trailing_options = tables[0].meta.pop(OPTIONS)
            del tables[0].meta[OPTIONS_END]
        return self._finished(tree, emit)

    def relations(self) -> Query:
        """What follows FROM or USING in UPDATE and DELETE, as `SELECT * FROM …`."""
        tree = exp.Select(expressions=[exp.Star()])
        tree.set("from_", exp.From(this=self._parse_table()))
        for join in self._parse_joins():
            tree.append("joins", join)
        return self._finished(tree)

    def merge(self) -> Query:
        """MERGE after its first word: the tree and the sources it reads."""
        return self._finished(self._parse_merge())

    def expression_tree(self) -> exp.Expression:
        """A condition or value; sources in its subqueries are in `loose_sources` afterwards."""
        tree = self._parse_disjunction()
        if tree is None:
            raise self.refuse("expected an expression")
        self.loose_sources += self._finished(tree).sources
        return cast("exp.Expression", tree)

    def _emit(self) -> Emit | None:
        if not self._at_emit():
            return None
        self._advance(2)
        return _EMITS[self._prev.text.upper()]

    def _finished(self, tree: exp.Expr, emit: Emit | None = None) -> Query:
        """The query of a tree, with all that is ours taken out of it."""
        nodes = list(tree.walk())
        outermost = outermost_select(tree)
        self._refuse_depth(nodes)
        self._refuse_misplaced(nodes)
        self._complete_frames(nodes)
        self._lift_joins(nodes)
        key_items = self._key_items(nodes, outermost)
        window = self._window(nodes, outermost)
        into = self._into(nodes, outermost)
        separate_inner_ctes(tree, nodes)
        sources = self._name_sources(nodes)
        relation_options = self._relation_options(nodes)
        mark_places(nodes)
        return Query(
            cast("exp.Expression", tree),
            sources=sources,
            relation_options=relation_options,
            key_items=key_items,
            emit=emit,
            window=window,
            into=into,
        )

    def _lift_joins(self, nodes: list[exp.Expr]) -> None:
        """`FROM a JOIN b … SELECT x` has its joins where `SELECT x FROM a JOIN b …` has them."""
        for select in _only(exp.Select, nodes):
            relation = select.args["from_"].this if select.args.get("from_") else None
            if relation is not None and relation.args.get("joins"):
                joins = relation.args.pop("joins") + (select.args.get("joins") or [])
                select.set("joins", joins)

    def _complete_frames(self, nodes: list[exp.Expr]) -> None:
        """`ROWS 5 PRECEDING` ends at the current row."""
        for frame in _only(exp.WindowSpec, nodes):
            if not frame.args.get("end"):
                frame.set("end", "CURRENT ROW")

    def _refuse_depth(self, nodes: list[exp.Expr]) -> None:
        """Refuse a tree that could not be written again within Python's stack; the nodes come parents first."""
        depths: dict[int, int] = {}
        for node in nodes:
            above = depths.get(id(node.parent), 0)
            depths[id(node)] = above if _is_chained(node) else above + 1
            if above > MAX_DEPTH:
                raise self.text.error_at("the expression is nested too deeply", place=place_of(node))

    def _refuse_misplaced(self, nodes: list[exp.Expr]) -> None:
        """Refuse what sqlglot lets pass and would write otherwise or not at all."""
        for node in nodes:
            problem = _misplaced(node)
            if problem is not None:
                raise self.text.error_at(problem, place=place_of(node))

    def _key_items(self, nodes: list[exp.Expr], outermost: exp.Select | None) -> tuple[str, ...]:
        names: list[str] = []
        for select in _only(exp.Select, nodes):
            for item in select.expressions:
                token = item.meta_get(PRIMARY_KEY)
                if token is None:
                    continue
                del item.meta[PRIMARY_KEY]
                if select is not outermost:
                    raise self.refuse("PRIMARY KEY belongs to the items of the outermost SELECT", token=token)
                names.append(item.alias_or_name)
        return tuple(names)

    def _window(self, nodes: list[exp.Expr], outermost: exp.Select | None) -> Window | None:
        found: Window | None = None
        for node in nodes:
            carrier = node.args.pop(TIME_WINDOW, None)
            if carrier is None:
                continue
            if node is not outermost:
                raise self.refuse(
                    "this WINDOW belongs to the outermost SELECT",
                    token=carrier.meta[BEGINS_AT],
                    hint="inside, group by Spark's own window(ts, '5 minutes')",
                )
            found = carrier.meta[TIME_WINDOW]
        return found

    def _into(self, nodes: list[exp.Expr], outermost: exp.Select | None) -> Name | SourceRef | None:
        found: Name | SourceRef | None = None
        for select in _only(exp.Select, nodes):
            carrier = select.args.pop("into", None)
            if carrier is None:
                continue
            if select is not outermost:
                raise self.refuse("INTO belongs to the outermost SELECT", token=carrier.meta[BEGINS_AT])
            found = carrier.meta[INTO]
        return found

    def _name_sources(self, nodes: list[exp.Expr]) -> tuple[SourceRef, ...]:
        """Give each source its relation name, in the order of the text, and the alias it answers to."""
        tables = list(_only(exp.Table, nodes))
        taken = {table.name.lower() for table in tables if table.meta_get(SOURCE) is None}
        taken |= {cte.alias.lower() for cte in _only(exp.CTE, nodes)}
        named_by_source = [table for table in tables if table.meta_get(SOURCE) is not None]
        named_by_source.sort(key=lambda table: (table.meta["line"], table.meta["col"]))
        sources: list[SourceRef] = []
        for table in named_by_source:
            source: SourceRef = table.meta.pop(SOURCE)
            table.meta.pop(OPTIONS_END, None)
            options = source.options + table.meta.pop(OPTIONS, ())
            self.refuse_duplicates(options)
            named = replace(source, relation=self._next_relation(taken), options=options)
            table.this.set("this", named.relation)
            alias = natural_alias(named)
            if alias and not table.alias:
                identifier = exp.Identifier(this=alias, quoted=needs_quotes(alias))
                table.set("alias", exp.TableAlias(this=identifier))
            sources.append(named)
        return tuple(sources)

    def _next_relation(self, taken: set[str]) -> str:
        while True:
            name = f"source_{self._named_sources}"
            self._named_sources += 1
            if name not in taken:
                return name

    def _relation_options(self, nodes: list[exp.Expr]) -> dict[str, tuple[OptionValue, ...]]:
        """Options of tables and streams named in FROM; one relation has one set of them."""
        found: dict[str, tuple[OptionValue, ...]] = {}
        for table in _only(exp.Table, nodes):
            options = table.meta_get(OPTIONS)
            if options is None:
                continue
            del table.meta[OPTIONS], table.meta[OPTIONS_END]
            if options and found.setdefault(table.name.lower(), options) != options:
                raise self.text.error_at(
                    f'relation "{table.name}" has different options elsewhere in the query', place=options[0].place
                )
        return found


def outermost_select(tree: exp.Expr) -> exp.Select | None:
    """The SELECT whose items name the result's columns."""
    while isinstance(tree, exp.Subquery | exp.SetOperation):
        tree = tree.this
    return tree if isinstance(tree, exp.Select) else None


def _misplaced(node: exp.Expr) -> str | None:
    """What is wrong with a node that stands where Spark has no place for it."""
    if WITHIN in node.args and not isinstance(node, exp.Join):
        return "WITHIN belongs to a join of two streams"
    match node:
        case exp.Dot() if not isinstance(node.this, exp.Expr) or isinstance(node.this, exp.Literal):
            return "a field of something that has none"
        case exp.Dot() if node.this.is_star:
            return "a wildcard path begins with a column"
        case exp.Lateral() if node.arg_key == "laterals" and not node.args.get("view"):
            return "LATERAL needs a comma or JOIN before it, or VIEW after it"
        case exp.Table() if any(node.args.get(clause) for clause in _CLAUSES):
            return "a relation in brackets has no clauses of its own"
        case exp.Table() if "" in (node.args.get("this"), node.args.get("db"), node.args.get("catalog")):
            return "a part of the name is missing"
        case exp.From() | exp.Join() if isinstance(node.this, exp.Select | exp.SetOperation):
            return "a query in FROM needs brackets"
        case exp.DataTypeParam() if node.args.get("expression"):
            return "a type takes numbers only"
        case exp.Distinct() if node.args.get("on"):
            return "DISTINCT has no ON in Spark"
    return None


def _is_chained(node: exp.Expr) -> bool:
    """Whether a node is one more link of a chain such as `a AND b OR c` or `1 + 2 + 3`, which is written in a loop."""
    for kind in (exp.Connector, exp.SetOperation):
        if isinstance(node, kind):
            return isinstance(node.parent, kind)
    return isinstance(node, exp.Binary) and not isinstance(node, exp.Dot) and type(node) is type(node.parent)


def _only(kind: type[N], nodes: Iterable[exp.Expr]) -> Iterator[N]:
    return (node for node in nodes if isinstance(node, kind))
