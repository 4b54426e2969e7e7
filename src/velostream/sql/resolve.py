"""Names of a query to what they mean: relations of the catalog, sources, columns.

The tree that comes out reads relations under the names of its inputs (`in_0`, …), each with the alias the user wrote or
the name the user used, so that `prices.sku` keeps working. Every column whose meaning is certain carries its `Origin`.
A name is an error only when it is certain that nothing answers to it: where columns aren't known, Spark decides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from sqlglot import exp

from velostream.errors import (
    Category,
    NotExecutableError,
    OptionError,
    ResolveError,
    SourceError,
    SqlError,
    ValidationError,
)
from velostream.model.conform import parse_timestamps
from velostream.model.kafka import brokers_are_known
from velostream.model.options import COPIED, SYSTEM_COLUMNS
from velostream.sql.columns import ColumnResolver
from velostream.sql.copying import copied_key
from velostream.sql.from_clause import FromClause, aliased, joins_within, renamed
from velostream.sql.growing import as_grown
from velostream.sql.option_names import covers, merge_options
from velostream.sql.outputs import labels_of, outputs_of
from velostream.sql.places import place_of
from velostream.sql.plan import Catalog, Input, RelationKind
from velostream.sql.pointing import pointer
from velostream.sql.scope import Columns, Frame, Source, set_input, set_scope, set_streams, streams_in
from velostream.sql.statements import OptionValue, Query, SourceRef


@dataclass(frozen=True)
class Resolution:
    """A query whose names are known. With `problems` it must not be run."""

    tree: exp.Expr
    inputs: tuple[Input, ...]
    outputs: Columns
    frames: Mapping[int, Frame]
    """What each SELECT of the tree sees, by its scope number."""
    problems: tuple[SqlError, ...] = ()

    def input(self, relation: str) -> Input:
        return next(entry for entry in self.inputs if entry.relation == relation)


def resolve_query(query: Query, *, options: tuple[OptionValue, ...], catalog: Catalog, text: str) -> Resolution:
    """Find every name of a query; problems are collected, not raised.

    Trouble with a source itself (`SourceError`) passes through: it is no fault of the text.
    """
    return _Resolver(query, options=options, catalog=catalog, text=text).run()


@dataclass(frozen=True)
class _Named:
    """What a CTE's name stands for."""

    columns: Columns
    streams: frozenset[str]


_Scope = Mapping[str, _Named]


class _Resolver:
    def __init__(self, query: Query, *, options: tuple[OptionValue, ...], catalog: Catalog, text: str) -> None:
        self.query = query
        self.tree = query.tree.copy()
        self.options = options
        self.catalog = catalog
        self.text = text
        self.problems: list[SqlError] = []
        self.inputs: list[Input] = []
        self.frames: dict[int, Frame] = {}
        self.taken = {str(cte.alias).lower() for cte in self.tree.find_all(exp.CTE)}
        self.references = {reference.relation.lower(): reference for reference in query.sources}
        columns = (str(column.name).lower() for column in self.tree.find_all(exp.Column))
        self.underscored = sorted({name for name in columns if name.startswith("_")})
        self.columns = ColumnResolver(
            problems=self.problems,
            text=text,
            extra=("_window_start", "_window_end") if query.window else (),
        )

    def run(self) -> Resolution:
        outputs = self._query(self.tree, outer=None, named={}).columns
        return Resolution(self.tree, tuple(self.inputs), outputs, self.frames, _once_per_place(self.problems))

    def _query(self, node: exp.Expr, *, outer: Frame | None, named: _Scope) -> _Named:
        named = self._with(node, outer=outer, named=named)
        if isinstance(node, exp.Select):
            return self._select(node, outer=outer, named=named)
        if isinstance(node, exp.SetOperation):
            return self._set_operation(node, outer=outer, named=named)
        if isinstance(node, exp.Subquery):
            inner = self._query(node.this, outer=outer, named=named)
            return _Named(renamed(inner.columns, node), inner.streams)
        if isinstance(node, exp.Table):
            source = self._table(node, named=named)
            return _Named(source.columns, streams_in(node))
        self._nested_queries(node, outer=outer, named=named)
        return _Named(renamed(Columns(), node), streams_in(node))

    def _with(self, node: exp.Expr, *, outer: Frame | None, named: _Scope) -> _Scope:
        clause = node.args.get("with_")
        if clause is None:
            return named
        known = dict(named)
        for cte in clause.expressions:
            name = str(cte.alias).lower()
            visible = {**known, name: _Named(Columns(), frozenset())} if clause.args.get("recursive") else known
            found = self._query(cte.this, outer=outer, named=visible)
            known[name] = _Named(renamed(found.columns, cte), found.streams)
        return known

    def _set_operation(self, node: exp.SetOperation, *, outer: Frame | None, named: _Scope) -> _Named:
        left = self._query(node.this, outer=outer, named=named)
        right = self._query(node.expression, outer=outer, named=named)
        frame = self._frame(FromClause(), outer=None, outputs=left.columns)
        for clause in ("order", "sort", "limit", "offset"):
            self._expressions(node.args.get(clause), frame=frame, clause=clause, named=named)
        return _Named(left.columns, left.streams | right.streams)

    def _select(self, select: exp.Select, *, outer: Frame | None, named: _Scope) -> _Named:
        building = FromClause()
        from_ = select.args.get("from_")
        if from_ is not None:
            building.absorb(self._relations(from_.this, building, outer=outer, named=named))
        for join in select.args.get("joins") or ():
            self._join(join, building, outer=outer, named=named)
        for lateral in select.args.get("laterals") or ():
            building.absorb(self._relations(lateral, building, outer=outer, named=named))
        frame = self._frame(building, outer=outer, outputs=Columns())
        _leave_out_system_columns(select, frame)
        outputs = outputs_of(select, frame)
        frame = replace(frame, outputs=outputs, labels=labels_of(select))
        self.frames[frame.scope] = frame
        set_scope(select, frame.scope)
        for join in joins_within(select):
            self._expressions(join.args.get("on"), frame=frame, clause="on", named=named)
        for lateral in select.args.get("laterals") or ():
            self._expressions(lateral.this, frame=frame, clause="on", named=named)
        for clause, value in select.args.items():
            if clause in ("with_", "from_", "joins", "laterals", "hint"):
                continue
            for part in value if isinstance(value, list) else [value]:
                if isinstance(part, exp.Expr):
                    self._expressions(part, frame=frame, clause=clause, named=named)
        return _Named(outputs, streams_in(select))

    def _frame(self, building: FromClause, *, outer: Frame | None, outputs: Columns) -> Frame:
        star = None if building.star is None else tuple(building.star)
        frame = Frame(
            len(self.frames),
            tuple(building.sources),
            star,
            merged=building.merged,
            hidden=tuple(building.hidden),
            outer=outer,
            outputs=outputs,
        )
        self.frames[frame.scope] = frame
        return frame

    def _join(self, join: exp.Join, building: FromClause, *, outer: Frame | None, named: _Scope) -> None:
        right = self._relations(join.this, building, outer=outer, named=named)
        written = [str(part.name) for part in join.args.get("using") or ()]
        self._check_using(join, written, building.sources, right.sources)
        if str(join.args.get("kind") or "").upper() in ("SEMI", "ANTI"):
            building.hide(right)
            return
        left_names = {name.lower() for source in building.sources for name in source.columns.names}
        building.absorb(right)
        using = written
        if str(join.args.get("method") or "").upper() == "NATURAL":
            right_names = [name for source in right.sources for name in source.columns.names]
            using = [name for name in right_names if name.lower() in left_names]
        if using:
            building.merge(using, side=str(join.args.get("side") or "").upper(), right=right.sources)

    def _check_using(
        self, join: exp.Join, using: Sequence[str], left: Sequence[Source], right: Sequence[Source]
    ) -> None:
        places = dict(zip(using, join.args.get("using") or (), strict=True))
        for name, side in ((name, side) for name in using for side in (left, right)):
            known = [column for source in side for column in source.columns.names]
            complete = all(source.columns.complete for source in side)
            if complete and name.lower() not in (column.lower() for column in known):
                place = pointer(places[name], self.text)
                self.problems.append(ResolveError.unknown("column", name, known=known, **place))

    def _relations(self, node: exp.Expr, building: FromClause, *, outer: Frame | None, named: _Scope) -> FromClause:
        """The sources that one item of a FROM brings: one, but for joins in parentheses."""
        if isinstance(node, exp.Table):
            found = FromClause.of(self._table(node, named=named))
        elif isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table):
            found = self._relations(node.this, building, outer=outer, named=named)
            if node.alias:
                found = FromClause.of(Source(str(node.alias), aliased(found, node)))
        elif isinstance(node, exp.Subquery):
            columns = self._query(node, outer=outer, named=named).columns
            pivoted = bool(node.args.get("pivots"))
            found = FromClause.of(Source(str(node.alias or ""), Columns() if pivoted else columns))
        elif isinstance(node, exp.Lateral):
            frame = self._frame(building, outer=outer, outputs=Columns())
            lateral = self._query(node.this, outer=frame, named=named) if isinstance(node.this, exp.Query) else None
            found = FromClause.of(
                Source(str(node.alias or ""), renamed(lateral.columns if lateral else Columns(), node))
            )
        else:
            self._nested_queries(node, outer=outer, named=named)
            found = FromClause.of(Source(str(node.alias_or_name or ""), renamed(Columns(), node)))
        for join in () if isinstance(node, exp.Lateral) else node.args.get("joins") or ():
            self._join(join, found, outer=outer, named=named)
        return found

    def _table(self, node: exp.Table, *, named: _Scope) -> Source:
        if not isinstance(node.this, exp.Identifier):
            return Source(str(node.alias or ""), renamed(Columns(), node))
        parts = [str(part.name) for part in node.parts]
        written = ".".join(parts)
        alias = str(node.alias or parts[-1])
        if len(parts) == 1 and written.lower() in named:
            found = named[written.lower()]
            set_streams(node, found.streams)
            columns = Columns() if node.args.get("pivots") else renamed(found.columns, node)
            return Source(alias, columns)
        version = self._version(node, written)
        entry = self._input(node, written, version)
        if entry is None:
            return Source(alias, Columns())
        _rename(node, entry.relation, parts[-1])
        set_input(node, entry.relation)
        set_streams(node, (entry.relation,) if entry.target.kind is RelationKind.STREAM else ())
        schema = entry.target.schema
        columns = Columns()
        if schema is not None and not node.args.get("pivots"):
            columns = Columns(schema.names, complete=True, system=entry.target.system)
        return Source(alias, renamed(columns, node), entry.relation)

    def _version(self, node: exp.Table, written: str) -> int | datetime | None:
        """What VERSION or TIMESTAMP AS OF names, taken off the node: Spark is given that version as the relation."""
        asked = node.args.get("version")
        if asked is None and not node.args.get("when"):
            return None
        found = _as_of(asked) if isinstance(asked, exp.Version) and str(asked.args.get("kind")) == "AS OF" else None
        if found is None:
            self.problems.append(
                NotExecutableError(
                    f'an older version of table "{written}" is named by its number or by a time',
                    hint=f"FROM {written} VERSION AS OF n; or FROM {written} TIMESTAMP AS OF '2026-01-31 12:00:00'",
                    **pointer(node, self.text),
                )
            )
        else:
            node.set("version", None)
        return found

    def _input(self, node: exp.Table, written: str, version: int | datetime | None) -> Input | None:
        reference = self.references.get(written.lower())
        if reference is not None:
            return self._source_input(reference)
        relation = self.catalog.relation(written)
        if relation is None:
            return self._topic_input(node, written)
        if version is not None and relation.kind is not RelationKind.TABLE:
            self.problems.append(
                ValidationError(
                    f'"{written}" is a {relation.kind} and has no versions',
                    hint=f"FROM {written}",
                    **pointer(node, self.text),
                )
            )
        own = tuple(self.query.relation_options.get(written.lower(), ()))
        self._check_options(own, [*relation.option_names, *self.catalog.option_names(None)])
        relation = as_grown(relation, self.query, name=relation.name)
        return self._shared(Input(self._fresh_name(), relation, None, merge_options(own, ()), version))

    def _topic_input(self, node: exp.Table, written: str) -> Input | None:
        """A name that nothing in the catalog has: a Kafka topic where brokers are known, else an error."""
        own = tuple(self.query.relation_options.get(written.lower(), ()))
        unknown = ResolveError.unknown("table", written, known=self.catalog.names(), **pointer(node.this, self.text))
        if not brokers_are_known(option.name.lower() for option in (*own, *self.options)):
            self.problems.append(unknown)
            return None
        try:
            return self._source_input(SourceRef(written, "kafka", f"kafka://{written}", own, place_of(node.this)))
        except SourceError as error:
            if error.category is not Category.MISSING or not unknown.hint:
                raise
            self.problems.append(unknown)
            return None

    def _source_input(self, reference: SourceRef) -> Input | None:
        known = self.catalog.option_names(reference)
        self._check_options(reference.options, known)
        statement = tuple(option for option in self.options if covers(known, option.name.lower()))
        merged = merge_options([*reference.options, *self._meant_by_query(reference)], statement)
        if not all(covers(known, option.name.lower()) for option in reference.options):
            return None
        try:
            relation = self.catalog.source(reference, merged)
        except OptionError as error:
            self.problems.append(_placed(error, reference, merged, self.text))
            return None
        relation = as_grown(relation, self.query, name=reference.relation)
        return self._shared(Input(self._fresh_name(), relation, reference, merged))

    def _meant_by_query(self, reference: SourceRef) -> list[OptionValue]:
        """What the query says about a source without an option for it. A kind that doesn't care passes it over."""
        found: list[OptionValue] = []
        key = copied_key(self.query, self.options, relation=reference.relation)
        if key is not None:
            found.append(OptionValue(COPIED, ",".join(key)))
        if self.underscored:
            found.append(OptionValue(SYSTEM_COLUMNS, ",".join(self.underscored)))
        return found

    def _fresh_name(self) -> str:
        """The next input's name, which no CTE has."""
        name = f"in_{len(self.inputs)}"
        while name in self.taken:
            name += "_"
        return name

    def _shared(self, entry: Input) -> Input:
        """The input already made for the same relation, or this one: a table under two aliases is read once."""
        for known in self.inputs:
            if _reads(known) == _reads(entry):
                return known
        self.inputs.append(entry)
        return entry

    def _check_options(self, options: Sequence[OptionValue], known: Sequence[str]) -> None:
        for option in options:
            if not covers(known, option.name.lower()):
                place = pointer(option.place, self.text)
                self.problems.append(OptionError.unknown(option.name, known=known, **place))

    def _expressions(self, node: exp.Expr | None, *, frame: Frame, clause: str, named: _Scope) -> None:
        """Resolve the columns of one clause, and the queries nested in it with this SELECT as their outer one."""
        if node is None:
            return
        for part in node.walk(prune=lambda n: isinstance(n, exp.Query | exp.Column)):
            if isinstance(part, exp.Query):
                self._query(part, outer=frame, named=named)
            elif isinstance(part, exp.Column):
                self.columns.resolve(part, frame=frame, clause=clause)

    def _nested_queries(self, node: exp.Expr, *, outer: Frame | None, named: _Scope) -> None:
        for part in node.walk(prune=lambda n: isinstance(n, exp.Query)):
            if isinstance(part, exp.Query) and part is not node:
                self._query(part, outer=outer, named=named)


def _leave_out_system_columns(select: exp.Select, frame: Frame) -> None:
    """Let Spark, too, leave out of `*` what the query names by itself."""
    for item in select.expressions:
        star = item.this if isinstance(item, exp.Column) else item
        if not isinstance(star, exp.Star):
            continue
        alias = str(item.table).lower() if isinstance(item, exp.Column) else None
        meant = [source for source in frame.sources if alias is None or source.alias.lower() == alias]
        left_out = {str(part.name).lower(): part for part in star.args.get("except_") or ()}
        for name in (name for source in meant for name in source.columns.system):
            left_out.setdefault(name.lower(), exp.Identifier(this=name, quoted=False))
        if left_out:
            star.set("except_", list(left_out.values()))


def _as_of(asked: exp.Version) -> int | datetime | None:
    """A number or an instant; None for anything but a constant of the kind."""
    named = asked.expression
    if str(asked.this).upper() == "VERSION":
        is_number = isinstance(named, exp.Literal) and not named.is_string and str(named.this).isdigit()
        return int(str(named.this)) if is_number else None
    if isinstance(named, exp.Cast) and named.to.this in _TIMES:
        named = named.this
    if not isinstance(named, exp.Literal) or not named.is_string:
        return None
    try:
        instant = parse_timestamps(pa.array([str(named.this).strip()]))[0].as_py()
    except pa.ArrowInvalid:
        return None
    return instant if isinstance(instant, datetime) else None


_TIMES = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.DATE)


def _reads(entry: Input) -> tuple[object, ...]:
    source = entry.source
    name = (source.kind, source.uri) if source else entry.target.name.lower()
    return (name, tuple((option.name, option.value) for option in entry.options), entry.version)


def _placed(error: OptionError, reference: SourceRef, options: Sequence[OptionValue], text: str) -> OptionError:
    """An option error of a source with the place of the option it names, or of the source."""
    named = next((option for option in options if f'"{option.name}"' in error.message), None)
    place = pointer(named.place if named else reference.place, text)
    return OptionError(
        error.message, detail=error.detail, hint=error.hint, code=error.code, category=error.category, **place
    )


def _once_per_place(problems: Sequence[SqlError]) -> tuple[SqlError, ...]:
    seen: dict[tuple[str, int, int], SqlError] = {}
    for problem in problems:
        seen.setdefault((problem.message, problem.line, problem.column), problem)
    return tuple(seen.values())


def _rename(node: exp.Table, relation: str, used: str) -> None:
    """Let a table node read `relation`, under the alias written or else the name used."""
    written = node.args.get("alias")
    if written is None or not written.args.get("this"):
        quoted = not re.fullmatch(r"[A-Za-z_]\w*", used) or bool(node.this.args.get("quoted"))
        name = exp.Identifier(this=used, quoted=quoted)
        name.meta.update(node.this.meta)
        columns = written.args.get("columns") if written is not None else None
        node.set("alias", exp.TableAlias(this=name, columns=columns))
    node.set("this", exp.Identifier(this=relation, quoted=False))
    node.set("db", None)
    node.set("catalog", None)
