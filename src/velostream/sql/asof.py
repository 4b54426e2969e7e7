"""ASOF JOIN said in Spark's words: a lateral subquery that gives the one row whose version is the nearest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from velostream.errors import ValidationError
from velostream.sql.naming import identifier
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.plan import Catalog
from velostream.sql.pointing import pointer
from velostream.sql.statements import OptionValue, Query

_MADE = "velostream_asof"
_BACKWARDS = (exp.GTE, exp.GT)
_FORWARDS = (exp.LTE, exp.LT)
_MIRRORED = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.LT: exp.GT}


def spell_out_asof(query: Query, *, catalog: Catalog, options: Sequence[OptionValue], text: str) -> Query:
    """The query with every `ASOF JOIN t MATCH_CONDITION (s.ts >= t.valid_from) ON …` as a lateral join.

    Without MATCH_CONDITION the statement's event time meets the `version.column` of the table.
    """
    if not any(_is_asof(join) for join in query.tree.find_all(exp.Join)):
        return query
    tree = query.tree.copy()
    for select in list(tree.find_all(exp.Select)):
        for join in select.args.get("joins") or ():
            if _is_asof(join):
                _spell_out(join, select, catalog=catalog, options=options, text=text)
    return replace(query, tree=tree)


@dataclass(frozen=True)
class NearestRow:
    """What the lateral subquery of an ASOF JOIN consists of."""

    table: exp.Table
    conditions: tuple[exp.Expr, ...]
    descending: bool


def nearest_row(item: exp.Expr) -> NearestRow | None:
    """The parts of an item of FROM that `spell_out_asof` has made; None for any other."""
    if not item.meta.get(_MADE) or not isinstance(item.this, exp.Subquery):
        return None
    inner = item.this.this
    (order,) = inner.args["order"].expressions
    return NearestRow(inner.args["from_"].this, tuple(conjuncts(inner.args["where"].this)), bool(order.args["desc"]))


def _is_asof(join: exp.Join) -> bool:
    return str(join.args.get("method") or "").upper() == "ASOF" or bool(join.args.get("match_condition"))


def _spell_out(
    join: exp.Join, select: exp.Select, *, catalog: Catalog, options: Sequence[OptionValue], text: str
) -> None:
    table, side = join.this, str(join.args.get("side") or "").upper()
    if not isinstance(table, exp.Table) or side not in ("", "LEFT") or str(join.args.get("kind") or "").upper():
        raise ValidationError(
            "ASOF JOIN takes a table, inner or LEFT",
            hint="s ASOF LEFT JOIN t MATCH_CONDITION (s.ts >= t.valid_from) ON s.k = t.k",
            **pointer(join, text),
        )
    alias = str(table.alias_or_name)
    first = str(select.args["from_"].this.alias_or_name)
    match = join.args.get("match_condition") or _by_options(table, first, catalog=catalog, options=options, text=text)
    condition, version, descending = _nearest(without_parentheses(match), alias, text=text)
    on = [join.args["on"]] if join.args.get("on") is not None else []
    on += [
        exp.EQ(this=_column(alias, str(part.name)), expression=_column(first, str(part.name)))
        for part in join.args.get("using") or ()
    ]
    inner = exp.Select(
        expressions=[exp.Column(this=exp.Star(), table=identifier(alias))],
        from_=exp.From(this=table.copy()),
        where=exp.Where(this=exp.and_(*(part.copy() for part in on), condition, copy=False)),
        order=exp.Order(expressions=[exp.Ordered(this=version, desc=descending, nulls_first=False)]),
        limit=exp.Limit(expression=exp.Literal.number(1)),
    )
    lateral = exp.Lateral(
        this=exp.Subquery(this=inner), view=False, outer=False, alias=exp.TableAlias(this=identifier(alias))
    )
    lateral.meta[_MADE] = True
    for name in ("method", "match_condition", "using"):
        join.set(name, None)
    join.set("this", lateral)
    join.set("on", exp.true())


def _by_options(
    table: exp.Table, first: str, *, catalog: Catalog, options: Sequence[OptionValue], text: str
) -> exp.Expr:
    relation = catalog.relation(str(table.name))
    time = next((option.value for option in options if option.name.lower() == "event.time.field"), None)
    if relation is None or not relation.version_column or time is None:
        name = str(table.alias_or_name)
        raise ValidationError(
            f'ASOF JOIN with "{name}" does not say which version is meant',
            hint=f"MATCH_CONDITION ({first}.ts >= {name}.valid_from), or 'event.time.field' of this statement and "
            "'version.column' of the table",
            **pointer(table, text),
        )
    return exp.GTE(this=_column(first, time), expression=_column(str(table.alias_or_name), relation.version_column))


def _nearest(match: exp.Expr, alias: str, *, text: str) -> tuple[exp.Expr, exp.Expr, bool]:
    """The condition, the table's column in it, and whether the largest value is the nearest."""
    if isinstance(match, (*_BACKWARDS, *_FORWARDS)):
        for own, kind in ((match.expression, type(match)), (match.this, _MIRRORED[type(match)])):
            column = without_parentheses(own)
            if isinstance(column, exp.Column) and str(column.table).lower() == alias.lower():
                return match.copy(), column.copy(), kind in _BACKWARDS
    raise ValidationError(
        "MATCH_CONDITION compares a time with a column of the table",
        hint=f"MATCH_CONDITION (s.ts >= {alias}.valid_from)",
        **pointer(match, text),
    )


def _column(table: str, name: str) -> exp.Column:
    return exp.Column(this=identifier(name), table=identifier(table))
