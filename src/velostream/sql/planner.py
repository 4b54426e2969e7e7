"""From a parsed query to the plan of how it is answered. Pure: no Spark, nothing read but the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from velostream.errors import NotExecutableError, OptionError, SqlError, ValidationError
from velostream.sql.aggregates import plan_aggregate
from velostream.sql.asof import spell_out_asof
from velostream.sql.delta import plan_delta
from velostream.sql.delta_groups import plan_streamed
from velostream.sql.delta_steps import NotDelta, is_linear, step_of
from velostream.sql.determinism import check_clock, check_repeatable
from velostream.sql.exact_signs import rounded_type, with_exact_signs
from velostream.sql.grouping import group_expressions
from velostream.sql.growing import check_growing
from velostream.sql.keeping import KeptStreams
from velostream.sql.keys import check_key, declared_key, key_of_result
from velostream.sql.maps import name_items, plan_map
from velostream.sql.meetings import WATERMARK, forgets_rows, with_expiry
from velostream.sql.missing import apply_policies, policies_without_lookup
from velostream.sql.naming import named
from velostream.sql.option_names import covers
from velostream.sql.passthrough import plan_passthrough
from velostream.sql.path_queries import spell_out_paths
from velostream.sql.plan import (
    AggregatePlan,
    Catalog,
    Input,
    MapPlan,
    PassthroughPlan,
    QueryPlan,
    RelationKind,
    Strategy,
)
from velostream.sql.pointing import pointer
from velostream.sql.python_aggregates import spell_out_python_aggregates
from velostream.sql.refused import refused_forms
from velostream.sql.resolve import Resolution, resolve_query
from velostream.sql.rules import apply_rules, is_rewritten
from velostream.sql.scope import input_of, scope_of, streams_in
from velostream.sql.shape import drive_by_stream, from_items, is_aggregated, nested_queries, outermost_select
from velostream.sql.statements import Emit, OptionValue, Place, Query
from velostream.sql.stream_joins import spell_out_within, time_test
from velostream.sql.window_calls import is_window_call
from velostream.sql.windows import spell_out_window


def plan_query(
    query: Query,
    *,
    options: tuple[OptionValue, ...],
    catalog: Catalog,
    text: str,
    continuous: bool,
    distinct_names: bool | None = None,
) -> QueryPlan:
    """How a query is answered: kept up to date (`continuous`: a view, a stream, an INSERT) or once, as a pull SELECT.

    All problems are raised at once as a `SqlError`; trouble with a source itself passes through as its `SourceError`.
    Names of the result must be distinct if `distinct_names`, by default if it is continuous. Where a relation has no
    schema yet the plan is provisional: it says what is read, and has to be made again when the columns are known.
    """
    try:
        return _Planner(
            query, options=options, catalog=catalog, text=text, continuous=continuous, distinct_names=distinct_names
        ).plan()
    except RecursionError as error:
        raise ValidationError("the query is nested too deeply", text=text, code="too-deep") from error


class _Planner:
    def __init__(
        self,
        query: Query,
        *,
        options: tuple[OptionValue, ...],
        catalog: Catalog,
        text: str,
        continuous: bool,
        distinct_names: bool | None,
    ) -> None:
        self.query = query
        self.options = options
        self.catalog = catalog
        self.text = text
        self.continuous = continuous
        self.distinct_names = continuous if distinct_names is None else distinct_names
        self.keeps_streams = continuous and self.distinct_names
        """Whether the result is a view, which may be one over a stream that is kept as a table. An INSERT follows its
        stream instead."""
        self.asked: frozenset[str] = frozenset()
        """Streams that only subqueries read."""
        self.warnings: list[SqlError] = []

    def plan(self) -> QueryPlan:
        aggregates = self.catalog.python_aggregates()
        self.query = spell_out_python_aggregates(self.query, names=aggregates, text=self.text)
        self.query = spell_out_asof(self.query, catalog=self.catalog, options=self.options, text=self.text)
        self.query = spell_out_within(self.query, options=self.options, text=self.text)
        self.query = spell_out_window(self.query, options=self.options, text=self.text)
        self.query = spell_out_paths(self.query, options=self.options, catalog=self.catalog, text=self.text)
        try:
            return self._plan()
        except SqlError as error:
            why = self._why_kept(error)
            if why is None:
                raise
        catalog = self.catalog
        if self.asked:
            self.catalog, self.warnings = KeptStreams(catalog, "a subquery", only=self.asked), []
            try:
                return self._plan()
            except SqlError as error:
                why = self._why_kept(error)
                if why is None:
                    raise
        self.catalog, self.warnings = KeptStreams(catalog, why), []
        return self._plan()

    def _why_kept(self, error: SqlError) -> str | None:
        """Why a view whose query can't be run batch by batch needs all rows of its streams; None: that's no help."""
        problems = error.problems
        if not self.keeps_streams or not all(problem.code == NotExecutableError.default_code for problem in problems):
            return None
        return problems[0].message.partition(" over a stream")[0]

    def _plan(self) -> QueryPlan:
        resolution = resolve_query(self.query, options=self.options, catalog=self.catalog, text=self.text)
        declared = declared_key(self.query, self.options)
        problems = [
            *resolution.problems,
            *self._unknown_options(resolution),
            *refused_forms(self.query, text=self.text),
            *check_key(declared, resolution.outputs, text=self.text),
            *check_growing(self.query, resolution, text=self.text),
        ]
        if self.distinct_names:
            problems += self._duplicate_names(resolution)
        if self.continuous:
            problems += self._older_versions(resolution)
        _raise_if_any(problems)
        key = key_of_result(resolution, declared)
        self._warn_of_final(resolution)
        streams = streams_in(resolution.tree)
        if not streams:
            _raise_if_any(self._unread_streams(resolution))
        tree = apply_rules(with_exact_signs(_with_rewritten_items_named(resolution), resolution))
        if streams:
            return self._streaming(tree, resolution, key)
        return self._over_tables(tree, resolution, key)

    def _over_tables(self, tree: exp.Expr, resolution: Resolution, key: tuple[str, ...]) -> QueryPlan:
        select = outermost_select(tree)
        _raise_if_any(policies_without_lookup(self.options, text=self.text))
        if self.continuous:
            where = "in a view over tables, which is computed again"
            _raise_if_any(
                [
                    *check_repeatable(tree, where=where, text=self.text),
                    *check_clock(tree, options=self.options, text=self.text),
                ]
            )
        elif select is not None and (scope := scope_of(select)) is not None:
            plain = plan_passthrough(select, frame=resolution.frames[scope], inputs=resolution.inputs)
            if plain is not None:
                reason = f'a pull SELECT that table "{plain.table}" answers itself'
                return self._finished(Strategy.PASSTHROUGH, reason, tree, resolution, key, passthrough=plain)
        reason = _why_refresh(resolution.inputs)
        if self.continuous:
            choice = plan_delta(tree, resolution=resolution, key=key)
            delta, inputs = choice.plan, choice.inputs
            if delta is not None:
                delta, inputs = with_expiry(delta, inputs, options=self.options, text=self.text)
            self._warn_of_kept_rows(tree, resolution, forgets=forgets_rows(delta, inputs))
            if delta is not None:
                followed = self._finished(Strategy.DELTA, choice.reason, tree, resolution, key)
                followed = replace(followed, delta=delta, inputs=inputs, sql=choice.sql)
                if not any(entry.part for entry in inputs):
                    return followed
                return replace(followed, whole=self._finished(Strategy.REFRESH, reason, tree, resolution, key))
            reason = f"{reason}; computed again after every change: {choice.reason}"
        plan = self._finished(Strategy.REFRESH, reason, tree, resolution, key)
        row_by_row = self.continuous and len(resolution.inputs) == 1 and is_linear(tree) and not _is_ordered(tree)
        return replace(plan, linear=step_of(tree, resolution=resolution)) if row_by_row else plan

    def _streaming(self, tree: exp.Expr, resolution: Resolution, key: tuple[str, ...]) -> QueryPlan:
        limit = None if self.continuous else _take_limit(tree)
        target = next(entry.target.name for entry in resolution.inputs if entry.target.kind is RelationKind.STREAM)
        self.asked = _only_in_subqueries(tree, resolution)
        is_time = time_test(resolution, options=self.options)
        shape = drive_by_stream(tree, text=self.text, stream=target, is_time=is_time)
        _raise_if_any(shape.problems)
        self.warnings += shape.warnings
        select = outermost_select(tree)
        scope = scope_of(select) if select is not None else None
        if select is not None and scope is not None:
            frame = resolution.frames[scope]
            wrong = apply_policies(select, frame=frame, inputs=resolution.inputs, options=self.options, text=self.text)
            _raise_if_any(wrong)
        if select is not None and scope is not None and is_aggregated(select):
            _raise_if_any(check_repeatable(tree, where="ahead of an aggregate's state", text=self.text))
            self._warn_of_global(select)
            aggregate = plan_aggregate(
                select,
                frame=resolution.frames[scope],
                frames=resolution.frames,
                inputs=resolution.inputs,
                declared_key=key,
                options=self.options,
                emit=self._emit(),
                text=self.text,
            )
            try:
                streamed = plan_streamed(select, resolution, key=key, options=self.options)
                aggregate = replace(aggregate, streamed=streamed)
            except NotDelta as why_not:
                aggregate = replace(aggregate, why_not=why_not.reason)
            reason = (
                f'GROUP BY over the stream "{target}"' if select.args.get("group") else f'an aggregate of "{target}"'
            )
            self._warn_of_scans(aggregate.feed, select, resolution)
            return self._finished(
                Strategy.AGGREGATE, reason, name_items(tree), resolution, key, aggregate=aggregate, limit=limit
            )
        plan = plan_map(tree, frames=resolution.frames, inputs=resolution.inputs)
        self._warn_of_scans(plan, tree, resolution)
        reason = f'each row of the stream "{target}" gives its result by itself'
        return self._finished(Strategy.MAP, reason, name_items(tree), resolution, key, map_=plan, limit=limit)

    def _finished(
        self,
        strategy: Strategy,
        reason: str,
        tree: exp.Expr,
        resolution: Resolution,
        key: tuple[str, ...],
        *,
        map_: MapPlan | None = None,
        aggregate: AggregatePlan | None = None,
        passthrough: PassthroughPlan | None = None,
        limit: int | None = None,
    ) -> QueryPlan:
        return QueryPlan(
            strategy=strategy,
            reason=reason,
            inputs=resolution.inputs,
            sql=tree.sql(dialect="spark"),
            map=map_,
            aggregate=aggregate,
            passthrough=passthrough,
            key=key,
            emit=self._emit(),
            ordered=_is_ordered(tree),
            limit=limit,
            warnings=tuple(self.warnings),
        )

    def _emit(self) -> Emit:
        """When a result is given: as said, else a window once it is over, and everything else at every change."""
        if self.query.emit is not None:
            return self.query.emit
        return Emit.FINAL if self._is_windowed() else Emit.CHANGES

    def _is_windowed(self) -> bool:
        select = outermost_select(self.query.tree)
        return select is not None and any(map(is_window_call, group_expressions(select, None)))

    def _unknown_options(self, resolution: Resolution) -> list[SqlError]:
        known = list(self.catalog.option_names(None))
        topics = [entry.source for entry in resolution.inputs if entry.source is not None]
        for reference in (*self.query.sources, *topics):
            known += self.catalog.option_names(reference)
        aliases = {source.alias.lower() for frame in resolution.frames.values() for source in frame.sources}
        found: list[SqlError] = []
        for option in self.options:
            name = option.name.lower()
            first, _, rest = name.partition(".")
            if covers(known, name) or (first in aliases and covers(known, rest)):
                continue
            found.append(OptionError.unknown(option.name, known=set(known), **pointer(option.place, self.text)))
        return found

    def _unread_streams(self, resolution: Resolution) -> list[SqlError]:
        """Problems for streams in a CTE that nothing reads: the query would be one over tables but for them."""
        return [
            ValidationError(
                f'stream "{entry.target.name}" stands in a WITH clause that nothing reads',
                hint="remove the unused WITH item",
                code="unused-stream",
                **pointer(resolution.tree.args["with_"] if resolution.tree.args.get("with_") else Place(), self.text),
            )
            for entry in resolution.inputs
            if entry.target.kind is RelationKind.STREAM
        ]

    def _older_versions(self, resolution: Resolution) -> list[SqlError]:
        """Problems for … AS OF where the result is kept up to date: an older version never changes."""
        return [
            ValidationError(
                f'an older version of table "{entry.target.name}" can\'t be followed',
                hint=f"FROM {entry.target.name}; or the SELECT with AS OF by itself",
                **pointer(resolution.tree, self.text),
            )
            for entry in resolution.inputs
            if entry.version is not None
        ]

    def _duplicate_names(self, resolution: Resolution) -> list[SqlError]:
        seen: dict[str, str] = {}
        found: list[SqlError] = []
        for name in resolution.outputs.names:
            if name.lower() in seen:
                found.append(self._duplicate(name, resolution))
            seen[name.lower()] = name
        return found

    def _duplicate(self, name: str, resolution: Resolution) -> SqlError:
        select = outermost_select(resolution.tree)
        node: exp.Expr = resolution.tree
        hint = f"give one of them another name: … AS {name}_2"
        scope = scope_of(select) if select is not None else None
        if select is not None and scope is not None:
            holders = [source.alias for source in resolution.frames[scope].having(name) if source.alias]
            if len(holders) > 1:
                hint = f"write {holders[1]}.{name} AS {holders[1]}_{name}"
            items = [
                item for item in select.expressions if not item.is_star and item.alias_or_name.lower() == name.lower()
            ]
            node = items[-1] if items else select.expressions[0]
        return ValidationError(
            f'two columns of the result have the name "{name}"',
            hint=hint,
            code="duplicate-column",
            width=len(name),
            **pointer(node, self.text),
        )

    def _warn(self, message: str, node: exp.Expr, *, code: str, detail: str | None = None, hint: str) -> None:
        place = pointer(node, self.text)
        self.warnings.append(ValidationError(message, detail=detail, hint=hint, code=f"warning-{code}", **place))

    def _warn_of_final(self, resolution: Resolution) -> None:
        bounded = all(entry.target.kind is RelationKind.BOUNDED for entry in resolution.inputs)
        if self.query.emit is Emit.FINAL and not self._is_windowed() and not bounded:
            self._warn(
                "EMIT FINAL has no window and no bounded source to become final",
                resolution.tree,
                code="emit-final",
                hint="EMIT CHANGES gives every change",
            )

    def _warn_of_global(self, select: exp.Select) -> None:
        if not select.args.get("group"):
            self._warn(
                "an aggregate without GROUP BY over an endless stream is never final",
                select.expressions[0],
                code="global-aggregate",
                hint="GROUP BY a column or window(ts, '5 minutes') bounds it",
            )

    def _warn_of_kept_rows(self, tree: exp.Expr, resolution: Resolution, *, forgets: bool) -> None:
        """Say so when the rows of two joined streams are kept for ever."""
        joined = _joined_streams(tree, resolution)
        if forgets or joined is None or any(entry.target.schema is None for entry in resolution.inputs):
            return
        given = any(option.name.lower() == WATERMARK for option in self.options)
        self._warn(
            "all rows of the joined streams are kept: nothing says when one can go",
            joined,
            code="endless-state",
            detail="rows go where two streams and nothing else are joined, on equal columns and on timestamps that are "
            "no further apart than an interval, with a watermark and without ORDER BY … LIMIT",
            hint="WITH ('watermark' = '10s')" if not given else "join the two streams in a table of their own",
        )

    def _warn_of_scans(self, plan: MapPlan, tree: exp.Expr, resolution: Resolution) -> None:
        if any(entry.target.schema is None for entry in resolution.inputs):
            return
        select = outermost_select(tree)
        if not plan.why_not or select is None or not select.args.get("joins"):
            return
        joined = {input_of(item) for item in from_items(select)} - {plan.driving}
        if not joined <= {narrowing.input for narrowing in plan.narrowings}:
            self._warn(
                "the join reads its tables in full for every batch: it has no lookup by key or index",
                select.args["joins"][0],
                code="scan-join",
                detail=plan.why_not,
                hint="join on equality with columns of the table, of the same type",
            )


def _only_in_subqueries(tree: exp.Expr, resolution: Resolution) -> frozenset[str]:
    select = outermost_select(tree)
    if select is None:
        return frozenset()
    nested = {relation for query in nested_queries(select) for relation in streams_in(query)}
    driving = {relation for item in from_items(select) for relation in streams_in(item)}
    return frozenset(resolution.input(relation).target.name for relation in nested - driving)


def _joined_streams(tree: exp.Expr, resolution: Resolution) -> exp.Expr | None:
    """The second of two streams in one FROM whose rows are kept."""
    kept = {entry.relation for entry in resolution.inputs if entry.target.kept}
    for select in tree.find_all(exp.Select):
        reading = [
            item for item in from_items(select) if any(input_of(table) in kept for table in item.find_all(exp.Table))
        ]
        if len(reading) > 1:
            return reading[1]
    return None


def _raise_if_any(problems: Sequence[SqlError]) -> None:
    if problems:
        raise SqlError.all_of(sorted(problems, key=lambda problem: (problem.line, problem.column)))


def _is_ordered(tree: exp.Expr) -> bool:
    """Whether the outermost query has an ORDER BY, inside or outside of its parentheses."""
    while isinstance(tree, exp.Subquery) and not tree.args.get("order"):
        tree = tree.this
    return bool(tree.args.get("order"))


def _with_rewritten_items_named(resolution: Resolution) -> exp.Expr:
    """A copy in which the items that rules change have names written down: Spark would name them by the new text."""

    def is_changed(node: exp.Expr) -> bool:
        return is_rewritten(node) or rounded_type(node, resolution) is not None

    copied = resolution.tree.copy()
    select = outermost_select(copied)
    if select is not None:
        items = [named(item) if any(map(is_changed, item.walk())) else item for item in select.expressions]
        select.set("expressions", items)
    return copied


def _take_limit(tree: exp.Expr) -> int | None:
    """Take a literal LIMIT off the outermost SELECT over a stream: rows come until then."""
    select = outermost_select(tree)
    if select is None or is_aggregated(select) or select.args.get("order") or select.args.get("offset"):
        return None
    limit = select.args.get("limit")
    value = limit.expression if isinstance(limit, exp.Limit) else None
    if not isinstance(value, exp.Literal) or value.is_string or not str(value.this).isdigit():
        return None
    select.set("limit", None)
    return int(str(value.this))


def _why_refresh(inputs: Sequence[Input]) -> str:
    if not inputs:
        return "nothing is read"
    described = ", ".join(f'"{entry.target.name}" is a {entry.target.kind}' for entry in inputs)
    return f"no stream is read: {described}"
