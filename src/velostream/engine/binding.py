"""A planned query bound to what it reads: catalog entries, folded sources, streams, bounded sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from velostream.engine.planning import Lens
from velostream.engine.relations import quoted, run_sql, schema_of
from velostream.errors import ValidationError, present
from velostream.model.schema import Schema
from velostream.sources.base import Offset, SourceSpec
from velostream.sql.aggregates import FEED, GROUPS
from velostream.sql.plan import Input, MapPlan, QueryPlan, RelationKind, Strategy
from velostream.sql.planner import plan_query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from velostream.engine.catalog import Entry
    from velostream.engine.context import EngineContext
    from velostream.engine.sourcing import SourceBook
    from velostream.sources.base import Source
    from velostream.sql.statements import OptionValue, Query


MAINTAIN = "velostream.maintain"
"""Setting of a connection; `refresh` computes all views over tables again, to compare with."""


class _OtherTypesError(Exception):
    """Spark's analyser finds other types for a part of a query than the planner did."""


class NoSchemaYetError(ValidationError):
    """A source has nothing to discover columns from; a continuous statement waits for its first rows."""

    def __init__(self, name: str) -> None:
        super().__init__(f'"{name}" has no columns yet', hint="declare them, or try again once it has rows")
        self.name = name

    @property
    def reason(self) -> str:
        """Why a statement waits."""
        return f'"{self.name}" has no rows to take columns from yet'


class FunctionNotRegisteredError(NoSchemaYetError):
    """A function that an earlier run of the program registered and this one has not yet: statements wait for it."""

    def __init__(self, name: str) -> None:
        ValidationError.__init__(
            self,
            f'function "{name}" is not registered',
            detail="an earlier run of the program has registered it",
            hint=f'con.create_function("{name}", fn, returns="…")',
            code="unknown-function",
        )
        self.name = name

    @property
    def reason(self) -> str:
        return f"{self.message}: {self.hint}"


@dataclass(frozen=True)
class BoundInput:
    """One input of a plan: an entry of the catalog, or a source still to be attached."""

    relation: str
    kind: RelationKind
    schema: Schema
    entry: Entry | None = None
    spec: SourceSpec | None = None
    version: int | datetime | None = None
    """The version of the entry's table to read, or when it was that of the table; None: the newest."""
    start: Offset | None = None
    """Where reading of the source begins, if that was settled when the statement was made."""
    kept: bool = False
    """A stream whose rows are kept as a table."""
    part: BoundQuery | None = None
    """What keeps it up to date, where it is a part of the query itself."""
    grows: bool = False
    """A source whose columns are added to the result when they come."""
    may_grow: bool = False
    """Nothing was said about that, so it can be read together with those that get the columns."""
    opened: Source | None = None
    """The source, if it was asked for its columns just now; for one reader, who closes it."""

    @property
    def reading(self) -> SourceSpec:
        """The source as it is to be read."""
        spec = present(self.spec)
        return spec.adding() if self.grows else spec

    @property
    def readings(self) -> Sequence[SourceSpec]:
        """The source as it is to be read, and as others may do with whom that can be shared: those get columns that
        come later, or have them left out.
        """
        spec = self.reading
        return [spec, spec.adding(), spec.ignoring()] if self.may_grow and not self.grows else [spec]


@dataclass(frozen=True)
class BoundQuery:
    """A plan with its inputs and the columns of each of its parts."""

    plan: QueryPlan
    inputs: tuple[BoundInput, ...]
    schema: Schema
    """Columns of the result, with the key."""
    feed_schema: Schema | None = None
    groups_schema: Schema | None = None
    final: str | None = None
    """Of an aggregate: SQL over `groups` that gives the result; None when the groups are the result."""
    names: tuple[str, ...] | None = None
    """Names the result's columns take instead of the query's own, by position: those of an INSERT's target."""
    found: Mapping[str, Schema] | None = None
    """Discovered columns by source identity."""

    @property
    def grows(self) -> bool:
        """Whether the result gets the columns that its source gets."""
        return any(bound.grows for bound in self.inputs)

    def without_growth(self) -> BoundQuery:
        """The same query, for a result whose columns stay as they are."""
        return replace(self, inputs=tuple(replace(bound, grows=False) for bound in self.inputs))

    @property
    def driving(self) -> BoundInput | None:
        """The stream that drives the query, if one does."""
        return next((bound for bound in self.inputs if bound.kind is RelationKind.STREAM), None)

    def renamed(self, names: Sequence[str]) -> BoundQuery:
        """The same query with its result columns under other names, by position."""
        columns = tuple(replace(column, name=name) for column, name in zip(self.schema.columns, names, strict=True))
        return replace(self, schema=Schema(columns), names=tuple(names))

    @property
    def driving_source(self) -> tuple[SourceSpec, Schema]:
        """The source of the driving stream and its columns."""
        driving = present(self.driving)
        return present(driving.spec), driving.schema

    @property
    def is_bounded(self) -> bool:
        """Whether it reads bounded sources alone: computed once."""
        return all(bound.kind is RelationKind.BOUNDED for bound in self.inputs)


class Binder:
    """Plans queries against the catalog and finds the columns of what they give, through Spark's analyser."""

    def __init__(self, context: EngineContext, book: SourceBook) -> None:
        self._context = context
        self._book = book

    def lens(
        self,
        pinned: Mapping[str, Schema] | None = None,
        *,
        options: tuple[OptionValue, ...] = (),
        text: str = "",
        starts: dict[str, Offset] | None = None,
    ) -> Lens:
        return Lens(self._context, self._book, dict(pinned or {}), options=options, text=text, starts=starts)

    def plan(
        self,
        query: Query,
        *,
        options: tuple[OptionValue, ...],
        text: str,
        continuous: bool,
        pinned: Mapping[str, Schema] | None = None,
        starts: dict[str, Offset] | None = None,
        distinct_names: bool | None = None,
    ) -> tuple[QueryPlan, Lens]:
        lens = self.lens(pinned, options=options, text=text, starts=starts)
        plan = plan_query(
            query, options=options, catalog=lens, text=text, continuous=continuous, distinct_names=distinct_names
        )
        return plan, lens

    def bind(
        self,
        query: Query,
        *,
        options: tuple[OptionValue, ...],
        text: str,
        continuous: bool,
        pinned: Mapping[str, Schema] | None = None,
        starts: dict[str, Offset] | None = None,
        distinct_names: bool | None = None,
    ) -> BoundQuery:
        """Plan and analyse; `NoSchemaYetError` while an input has no columns. For `starts` see `Lens`."""
        plan, lens = self.plan(
            query,
            options=options,
            text=text,
            continuous=continuous,
            pinned=pinned,
            starts=starts,
            distinct_names=distinct_names,
        )
        return self.bind_plan(plan, lens)

    def bind_plan(self, plan: QueryPlan, lens: Lens) -> BoundQuery:
        """Analyse a plan; one whose parts have other types in Spark than it was made for is used as a whole."""
        if plan.whole is None:
            return self._bound(plan, lens)
        if self._context.config.get(MAINTAIN) == "refresh":
            return self._bound(plan.whole, lens)
        try:
            return self._bound(plan, lens)
        except _OtherTypesError:
            return self._bound(plan.whole, lens)

    def _bound(self, plan: QueryPlan, lens: Lens) -> BoundQuery:
        missing = self._context.functions.missing_in(plan.sql)
        if missing is not None:
            raise FunctionNotRegisteredError(missing)
        inputs = []
        for one in plan.inputs:
            if one.part is not None:
                inputs.append(self._bound_part(one, one.part, lens))
                continue
            if one.target.schema is None:
                raise NoSchemaYetError(one.target.name)
            entry = spec = None
            if one.source is not None:
                spec = self._book.spec(one.source, one.options)
            else:
                entry = self._context.catalog.find(one.target.name)
                if entry is not None and (one.target.kind is not RelationKind.TABLE or one.target.kept):
                    spec = lens.stream_spec(entry)
            kind, schema, kept = one.target.kind, one.target.schema, one.target.kept
            if entry is not None and kind is RelationKind.TABLE and not kept:
                # Of a table that has got columns since, those are read that the statement was made with.
                entry = replace(entry, schema=schema)
            start = None if spec is None else lens.start_of(spec)
            opened = None
            if spec is not None and kind is RelationKind.BOUNDED:
                opened = lens.opened.pop(spec.identity(), None)
            inputs.append(
                BoundInput(
                    one.relation,
                    kind,
                    schema,
                    entry,
                    spec,
                    one.version,
                    start,
                    kept=kept,
                    grows=one.target.grows,
                    may_grow=one.target.may_grow,
                    opened=opened,
                )
            )
        schemas = {bound.relation: bound.schema for bound in inputs}
        session = self._context.spark.session()
        if plan.strategy is not Strategy.AGGREGATE:
            sql = plan.map.sql if plan.map is not None else plan.sql
            schema = output_schema(session, sql, schemas).with_key(plan.key)
            if plan.map is not None:
                plan = replace(plan, map=_typed(plan.map, schema))
            if plan.delta is None or plan.delta.grouped is None:
                return BoundQuery(plan, tuple(inputs), schema, found=lens.found)
            readers = plan.delta.driven.readers if plan.delta.driven is not None else ()
            read = schemas | {reader.relation: schemas[reader.input] for reader in readers}
            feed = output_schema(session, plan.delta.grouped.feed.sql, read)
            groups = output_schema(session, plan.delta.grouped.bare, {FEED: feed})
            return BoundQuery(plan, tuple(inputs), schema, feed, groups, found=lens.found)
        return self._bound_aggregate(BoundQuery(plan, tuple(inputs), Schema(()), found=lens.found))

    def _bound_part(self, one: Input, plan: QueryPlan, lens: Lens) -> BoundInput:
        part = self._bound(plan, lens)
        expected = present(one.target.schema)
        if [(c.name, c.type) for c in part.schema.columns] != [(c.name, c.type) for c in expected.columns]:
            raise _OtherTypesError
        return BoundInput(one.relation, RelationKind.TABLE, part.schema, part=part)

    def in_spark_state(self, bound: BoundQuery) -> BoundQuery:
        """An aggregate over a stream with its groups in Spark's state, though partial results could hold them."""
        aggregate = replace(present(bound.plan.aggregate), streamed=None)
        return self._bound_aggregate(replace(bound, plan=replace(bound.plan, aggregate=aggregate)))

    def _bound_aggregate(self, bound: BoundQuery) -> BoundQuery:
        plan, aggregate = bound.plan, present(bound.plan.aggregate)
        schemas = {one.relation: one.schema for one in bound.inputs}
        session = self._context.spark.session()
        if aggregate.streamed is not None:
            grouped = aggregate.streamed.grouped
            feed = output_schema(session, aggregate.streamed.feed.sql, schemas)
            groups = output_schema(session, grouped.bare, {FEED: feed})
            schema = output_schema(session, grouped.final.sql, {GROUPS: groups}).with_key(plan.key)
            streamed = replace(aggregate.streamed, feed=_typed(aggregate.streamed.feed, feed))
            plan = replace(plan, aggregate=replace(aggregate, streamed=streamed))
            return replace(bound, plan=plan, schema=schema, feed_schema=feed, groups_schema=groups)
        feed = output_schema(session, aggregate.feed.sql, schemas)
        groups = output_schema(session, aggregate.sql, {FEED: feed}).with_key(aggregate.key)
        final = aggregate.final
        if final is None and (tuple(plan.key) != tuple(aggregate.key) or not aggregate.key):
            final = f"SELECT * FROM {GROUPS}"
        beside = {name: schemas[name] for name in aggregate.final_inputs}
        result = groups if final is None else output_schema(session, final, beside | {GROUPS: groups})
        schema = result if final is None else result.with_key(plan.key)
        plan = replace(plan, aggregate=replace(aggregate, feed=_typed(aggregate.feed, feed)))
        return replace(bound, plan=plan, schema=schema, feed_schema=feed, groups_schema=groups, final=final)


def _typed(plan: MapPlan, found: Schema) -> MapPlan:
    return replace(plan, types=tuple(column.type for column in found.columns))


def output_schema(session: SparkSession, sql: str, relations: Mapping[str, Schema]) -> Schema:
    """The columns a SELECT gives over relations of these columns, by Spark's own analysis; executes nothing."""
    frames = {name: _empty_frame(session, schema) for name, schema in relations.items()}
    return schema_of(run_sql(session, sql, frames))


def _empty_frame(session: SparkSession, schema: Schema) -> DataFrame:
    """A relation of these columns without rows, made by SQL alone: createDataFrame would run through an RDD."""
    items = ", ".join(f"CAST(NULL AS {column.sql_type}) AS {quoted(column.name)}" for column in schema.columns)
    return session.sql(f"SELECT {items} WHERE FALSE")
