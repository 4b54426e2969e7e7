"""What EXPLAIN and VALIDATE say of a statement."""

from __future__ import annotations

from collections.abc import Iterator

from velostream.errors import OptionError, ResolveError, SqlError, did_you_mean
from velostream.model.duration import render_duration
from velostream.sql.explain_changes import change_problems, changes_by_rows
from velostream.sql.explain_delta import (
    LATE_ROWS,
    delta_rows,
    delta_sql_rows,
    delta_state,
    expiry_rows,
    grouped_rows,
    grouped_sql_rows,
    grouped_state,
)
from velostream.sql.option_names import covers
from velostream.sql.plan import (
    AggregatePlan,
    Catalog,
    Input,
    LateData,
    Lookup,
    MapPlan,
    MissingPolicy,
    MissingRows,
    Narrowing,
    PassthroughPlan,
    QueryPlan,
    RelationKind,
    WindowState,
)
from velostream.sql.planner import plan_query
from velostream.sql.pointing import pointer
from velostream.sql.statements import (
    Create,
    Delete,
    Explain,
    Insert,
    Merge,
    Name,
    ObjectKind,
    OptionValue,
    Query,
    Select,
    Statement,
    Update,
    Validate,
)


def explain_rows(plan: QueryPlan, *, extended: bool) -> list[tuple[str, str]]:
    """The plan as rows of property and value; `extended` adds the SQL texts that run."""
    rows = [("strategy", str(plan.strategy)), ("why", plan.reason)]
    rows += [row for entry in plan.inputs for row in _input_rows(entry)]
    inputs = {entry.relation: entry for entry in plan.inputs}
    if plan.map is not None:
        rows += _map_rows(plan.map, inputs)
    if plan.aggregate is not None:
        rows += _aggregate_rows(plan.aggregate, inputs)
    if plan.delta is not None:
        rows += delta_rows(plan.delta, plan.inputs)
        rows += expiry_rows(plan.delta, plan.inputs)
    if plan.passthrough is not None:
        rows += _passthrough_rows(plan.passthrough)
    rows.append(("key", ", ".join(plan.key) or "none: a bag of rows"))
    rows.append(("state", _state(plan)))
    rows.append(("emit", str(plan.emit)))
    if plan.limit is not None:
        rows.append(("limit", f"ends after {plan.limit} rows"))
    rows += [("warning", f"{warning.message}; {warning.hint}") for warning in plan.warnings]
    if extended:
        rows += _sql_rows(plan)
    return rows


def _input_rows(entry: Input) -> Iterator[tuple[str, str]]:
    """An input, and those of a part of the query itself."""
    if entry.part is None:
        yield _input_row(entry)
        return
    yield (f"input {entry.relation}", f"a part of the query, kept as a view of its own: {entry.part.reason}")
    for inner in entry.part.inputs:
        for name, value in _input_rows(inner):
            yield (f"{name} of {entry.relation}", value)


def _input_row(entry: Input) -> tuple[str, str]:
    target = entry.target
    rows = f", {target.rows} rows" if target.rows is not None else ""
    why = f" ({target.reason})" if target.reason else ""
    waiting = ", columns not known yet" if target.schema is None else ""
    return (f"input {entry.relation}", f'{target.kind} "{target.name}"{rows}{waiting}{why}')


def _map_rows(plan: MapPlan, inputs: dict[str, Input]) -> Iterator[tuple[str, str]]:
    yield ("driven by", f'{inputs[plan.driving].target.kind} "{inputs[plan.driving].target.name}"')
    for lookup in plan.stages.lookups if plan.stages is not None else ():
        yield ("lookup", _lookup_text(lookup, inputs[lookup.input]))
    for missing in plan.missing:
        yield ("missing rows", _missing_text(missing))
    if plan.why_not:
        yield ("general path", f"Spark joins each batch with snapshots of the tables: {plan.why_not}")
        narrowed = {narrowing.input: narrowing for narrowing in plan.narrowings}
        known = all(entry.target.schema is not None for entry in inputs.values())
        for relation, entry in inputs.items():
            if known and relation != plan.driving:
                yield ("reading", _reading_text(entry, narrowed.get(relation)))


def _reading_text(entry: Input, narrowing: Narrowing | None) -> str:
    if narrowing is None:
        return f'table "{entry.target.name}" by scan: nothing says which of its rows a batch needs'
    columns = ", ".join(narrowing.columns)
    return f'table "{entry.target.name}" by index on ({columns}): the rows with values of the batch, if it is a big one'


def _missing_text(missing: MissingRows) -> str:
    delay = render_duration(missing.retry_delay)
    what = {
        MissingPolicy.NULLS: "NULLs",
        MissingPolicy.SKIP: "the row is left out",
        MissingPolicy.DEFAULTS: "the defaults",
        MissingPolicy.RETRY: f"looked up again {missing.retry_max} times, first after {delay}",
        MissingPolicy.FAIL: "the query fails",
    }
    return f'no row of table "{missing.table}": {what[missing.policy]}'


def _lookup_text(lookup: Lookup, entry: Input) -> str:
    kind = lookup.subquery or ("LEFT JOIN" if lookup.outer else "JOIN")
    whose = "subquery" if lookup.subquery else "join"
    columns = ", ".join(pair.column for pair in lookup.keys)
    driving = ", ".join(pair.driving for pair in lookup.keys)
    if entry.target.store:
        how = f"in {entry.target.store} by ({columns}): one request for the distinct keys of each batch"
    elif lookup.access == "key":
        how = f"by key ({columns}), an index lookup: the {whose}'s equalities are the table's key"
    else:
        how = f"by index on ({columns}), made for this query: the {whose}'s equalities are not the table's key"
    if lookup.as_of is not None:
        which = "latest" if lookup.as_of.is_latest else "earliest"
        how += f"; of these the {which} {lookup.as_of.column} as of {lookup.as_of.driving}"
    if lookup.any_row:
        how += "; any row of these is enough" + (" that fulfils the rest" if lookup.condition is not None else "")
    return f'{kind} table "{entry.target.name}" {how}; driven by {driving}'


def _aggregate_rows(plan: AggregatePlan, inputs: dict[str, Input]) -> Iterator[tuple[str, str]]:
    yield from _map_rows(plan.feed, inputs)
    if plan.window is not None:
        yield ("window", _window_text(plan.window))
    if plan.streamed is not None:
        yield from grouped_rows(plan.streamed.grouped, rows="the rows of a batch")
        return
    yield ("groups", f"one per ({', '.join(plan.key)})" if plan.key else "a single one")
    if plan.final is not None:
        tables = "".join(f' and table "{inputs[name].target.name}"' for name in plan.final_inputs)
        yield ("on top", f"HAVING, projection, ORDER BY and LIMIT are a view over the groups{tables}")


def _window_text(window: WindowState) -> str:
    kind = (
        "of fixed length" if window.gap is None else f"sessions, ended by {render_duration(window.gap)} without a row"
    )
    over = f"over when the newest event time is {render_duration(window.watermark)} past the end"
    return f"{kind}; {over}; rows after that are {LATE_ROWS[window.late]}"


def _passthrough_rows(plan: PassthroughPlan) -> Iterator[tuple[str, str]]:
    how = {
        "key": "by key, an index lookup: the condition fixes all key columns",
        "index": "by index: the condition fixes all columns of an index",
        "scan": "by scan: " + ("no condition" if plan.condition is None else "the condition fixes no key and no index"),
    }
    yield ("access", f'table "{plan.table}" {how[plan.access]}')


def _state(plan: QueryPlan) -> str:
    if plan.aggregate is not None and plan.aggregate.window is not None:
        bounded = plan.aggregate.window.late is not LateData.UPDATE
        return "the rows of windows that are not over" if bounded else "all rows, for late ones change windows"
    if plan.aggregate is not None and plan.aggregate.streamed is not None:
        return grouped_state(plan.aggregate.streamed.grouped)
    if plan.aggregate is not None:
        return f"the groups, in Spark's state store: {plan.aggregate.why_not}"
    if plan.map is not None:
        return "none"
    if plan.delta is not None:
        return delta_state(plan.delta)
    if plan.passthrough is not None:
        return "none: answered from the table's newest version"
    if any(entry.target.kind is not RelationKind.BOUNDED for entry in plan.inputs):
        return "none: computed over snapshots, the difference is committed"
    return "none: computed once"


def _sql_rows(plan: QueryPlan) -> Iterator[tuple[str, str]]:
    yield ("sql", plan.sql)
    aggregate = plan.aggregate
    streamed = None if aggregate is None else aggregate.streamed
    stateless = plan.map if aggregate is None else aggregate.feed if streamed is None else streamed.feed
    if stateless is not None and stateless.stages is not None:
        yield ("sql over stage", stateless.stages.sql)
    if streamed is not None:
        yield from grouped_sql_rows(streamed.grouped)
    elif aggregate is not None:
        yield ("sql of feed", aggregate.feed.sql)
        yield ("sql over feed", aggregate.sql)
        if aggregate.final is not None:
            yield ("sql over groups", aggregate.final)
    if plan.delta is not None:
        yield from delta_sql_rows(plan.delta)


def validate_statement(statement: Statement, catalog: Catalog, text: str) -> list[SqlError]:
    """All that is wrong or doubtful with a statement, in the order of the text; nothing when it is fine.

    Warnings are the errors whose code begins with `warning`. Trouble with a source passes through as its `SourceError`.
    """
    found: list[SqlError] = []
    match statement:
        case Validate(inner) | Explain(inner, _):
            return validate_statement(inner, catalog, text)
        case Create(query=Query() as query, what=what, options=options):
            distinct = what is ObjectKind.TABLE
            found += _query_problems(query, options, catalog, text, continuous=True, distinct_names=distinct)
        case Create(what=ObjectKind.TABLE, options=options):
            known = catalog.option_names(None)
            found += [
                OptionError.unknown(option.name, known=known, **pointer(option.place, text))
                for option in options
                if not covers(known, option.name.lower())
            ]
        case Insert(target=Name() as name, columns=columns) if changes_by_rows(statement):
            found += _target_problems(name, columns, catalog, text) or change_problems(statement, catalog)
        case Update(table=name) | Delete(table=name) | Merge(table=name) if changes_by_rows(statement):
            found += _target_problems(name, (), catalog, text) or change_problems(statement, catalog)
        case Insert(target=target, query=query, options=options, columns=columns):
            found += _target_problems(target, columns, catalog, text)
            if query is not None:
                found += _query_problems(query, options, catalog, text, continuous=True, distinct_names=False)
        case Update(table=table, assignments=assignments):
            found += _target_problems(table, (), catalog, text)
            relation = catalog.relation(table.text)
            schema = relation.schema if relation is not None else None
            for assignment in assignments:
                name = assignment.column
                if schema is not None and schema.find(name.text) is None:
                    place = pointer(name.place, text)
                    found.append(ResolveError.unknown("column", name.text, known=schema.names, **place))
        case Delete(table=table):
            found += _target_problems(table, (), catalog, text)
        case Select(query=query, options=options):
            found += _query_problems(query, options, catalog, text, continuous=False, distinct_names=False)
        case _:
            pass
    return sorted(found, key=lambda problem: (problem.line, problem.column))


def _query_problems(
    query: Query,
    options: tuple[OptionValue, ...],
    catalog: Catalog,
    text: str,
    *,
    continuous: bool,
    distinct_names: bool,
) -> list[SqlError]:
    try:
        plan = plan_query(
            query, options=options, catalog=catalog, text=text, continuous=continuous, distinct_names=distinct_names
        )
    except SqlError as error:
        return list(error.problems)
    return list(plan.warnings)


def _target_problems(target: object, columns: tuple[str, ...], catalog: Catalog, text: str) -> list[SqlError]:
    if not isinstance(target, Name):
        return []
    relation = catalog.relation(target.text)
    place = pointer(target.place, text)
    if relation is None:
        return [ResolveError.unknown("table", target.text, known=catalog.names(), **place)]
    if relation.schema is None:
        return []
    return [
        ResolveError(
            f'column "{name}" of table "{relation.name}" does not exist',
            hint=did_you_mean(name, relation.schema.names),
            code="unknown-column",
            **place,
        )
        for name in columns
        if relation.schema.find(name) is None
    ]
