"""Rows that a lookup does not find: the policy of each join of a stream and a table, by `join.missing`.

A policy other than the join's own turns it into one that keeps the stream's row; the key column of the table, which is
NULL exactly where no row was found, then tells what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from sqlglot import exp

from velostream.errors import OptionError, ResolveError, SqlError, ValidationError, VelostreamError
from velostream.model.duration import parse_duration
from velostream.sql.naming import identifier, named
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.plan import Input, MissingPolicy, MissingRows
from velostream.sql.pointing import pointer
from velostream.sql.scope import Frame, Origin, input_of, origin_of, set_origin
from velostream.sql.shape import driving_index, from_items, queries_in
from velostream.sql.statements import OptionValue
from velostream.sql.trees import with_children

OPTION = "join.missing"
_DEFAULT = f"{OPTION}.default."
_META = "velostream_missing"
_PASSES = "_passes"


@dataclass(frozen=True)
class _Missing:
    """A join with a policy."""

    alias: str
    """Of the table."""
    found_by: exp.Expr
    """The column of the table that is NULL exactly where no row was found."""
    asked_by: exp.Expr
    """What it is compared with: where that is NULL there is nothing to find."""
    rows: MissingRows


def apply_policies(
    select: exp.Select, *, frame: Frame, inputs: Sequence[Input], options: Sequence[OptionValue], text: str
) -> list[SqlError]:
    """Let the joins of a streaming SELECT follow the statement's policies, in place; gives what is wrong with them."""
    given = [option for option in options if _is_policy(option.name)]
    if not given:
        return []
    reader = _Policies(given, frame=frame, inputs=inputs, text=text)
    found: list[_Missing] = []
    position = driving_index(select)
    items = from_items(select)
    joins: list[exp.Join] = list(select.args.get("joins") or ())
    for number, join in enumerate(joins, start=1):
        if position is None or number < position:
            continue
        swapped = number == position
        table = items[0] if swapped else join.this
        one = reader.of_join(join, table, swapped=swapped)
        if one is not None:
            found.append(one)
    problems = reader.problems or reader.unused()
    if not problems and found:
        _fill_defaults(select, frame=frame, found=found, values=reader.defaults)
        select.meta[_META] = tuple(found)
    return problems


def policies_without_lookup(options: Sequence[OptionValue], *, text: str) -> list[SqlError]:
    """Problems for policies of a query that follows no stream, where a join is plain SQL."""
    return [_misplaced(option, text) for option in options if _is_policy(option.name)]


def watched(select: exp.Select | None) -> tuple[exp.Select, tuple[MissingRows, ...]] | None:
    """A SELECT that gives its rows with, at the end, what each lookup found, and whether WHERE holds.

    What it found is 0 for a row, 1 for none, 2 where the key is NULL, so that there can't be one. Rows without a match
    are given whatever WHERE says of the table. None where no join has a policy.
    """
    found: tuple[_Missing, ...] = select.meta.get(_META, ()) if select is not None else ()
    if select is None or not found:
        return None
    copied = select.copy()
    absent: list[exp.Expr] = [exp.Is(this=one.found_by.copy(), expression=exp.Null()) for one in found]
    condition = copied.args.get("where")
    passes: exp.Expr = exp.true()
    if condition is not None:
        passes = exp.Coalesce(this=exp.paren(condition.this.copy(), copy=False), expressions=[exp.false()])
        aliases = {one.alias.lower() for one in found}
        kept = [_or_missing(part, aliases, absent) for part in conjuncts(condition.this)]
        copied.set("where", exp.Where(this=exp.and_(*kept, copy=False)))
    columns = [exp.Alias(this=_finding(one), alias=identifier(f"_m{n}")) for n, one in enumerate(found)]
    items = [named(item) for item in copied.expressions]
    copied.set("expressions", [*items, *columns, exp.Alias(this=passes, alias=identifier(_PASSES))])
    return copied, tuple(one.rows for one in found)


def _finding(one: _Missing) -> exp.Expr:
    there = exp.Not(this=exp.Is(this=one.found_by.copy(), expression=exp.Null()))
    hopeless = exp.Is(this=exp.paren(one.asked_by.copy(), copy=False), expression=exp.Null())
    cases = [(there, 0), (hopeless, 2)]
    ifs = [exp.If(this=condition, true=exp.Literal.number(number)) for condition, number in cases]
    return exp.Case(ifs=ifs, default=exp.Literal.number(1))


def _or_missing(part: exp.Expr, aliases: set[str], absent: Sequence[exp.Expr]) -> exp.Expr:
    """A condition on the stream alone as it is; one that reads a table also holds where its row was not found."""
    sources = {origin.source.lower() for column in part.find_all(exp.Column) if (origin := origin_of(column))}
    if not sources & aliases and next(queries_in(part), None) is None:
        return exp.paren(part.copy(), copy=False)
    return exp.paren(exp.or_(part.copy(), *(one.copy() for one in absent), copy=False), copy=False)


def _is_policy(name: str) -> bool:
    lower = name.lower()
    return lower == OPTION or lower.startswith(f"{OPTION}.") or f".{OPTION}" in lower


class _Policies:
    def __init__(self, given: Sequence[OptionValue], *, frame: Frame, inputs: Sequence[Input], text: str) -> None:
        self.given = {option.name.lower(): option for option in given}
        self.frame = frame
        self.inputs = {entry.relation: entry for entry in inputs}
        self.text = text
        self.problems: list[SqlError] = []
        self.defaults: dict[tuple[str, str], exp.Expr] = {}
        """By alias and column, in lower case."""
        self._used: set[str] = set()

    def of_join(self, join: exp.Join, table: exp.Expr, *, swapped: bool) -> _Missing | None:
        alias = str(table.alias_or_name)
        policy = self._policy(alias)
        if policy is None or str(join.args.get("kind") or "").upper() in ("SEMI", "ANTI", "CROSS"):
            return None
        equality = self._equality(join, alias)
        if equality is None:
            self._refuse(
                self._option(alias, "") or next(iter(self.given.values())),
                f'"{alias}" is not joined by an equality with one of its columns',
            )
            return None
        side = str(join.args.get("side") or "").upper()
        outer = bool(side)
        drops = policy is MissingPolicy.SKIP or (policy in (MissingPolicy.RETRY, MissingPolicy.FAIL) and not outer)
        if not outer:
            join.set("side", "RIGHT" if swapped else "LEFT")
            if str(join.args.get("kind") or "").upper() == "INNER":
                join.set("kind", None)
        relation = input_of(table)
        name = self.inputs[relation].target.name if relation in self.inputs else alias
        rows = MissingRows(name, policy, drops=drops)
        if policy is MissingPolicy.DEFAULTS:
            self._read_defaults(alias, relation)
        if policy is MissingPolicy.RETRY:
            rows = self._with_retry(rows, alias)
        return _Missing(alias, *equality, rows)

    def unused(self) -> list[SqlError]:
        """Problems for options that no join of a stream and a table has asked for."""
        return [_misplaced(option, self.text) for name, option in self.given.items() if name not in self._used]

    def _policy(self, alias: str) -> MissingPolicy | None:
        option = self._option(alias, "")
        if option is None:
            return None
        try:
            return MissingPolicy(option.value.lower())
        except ValueError:
            expected = "one of " + ", ".join(MissingPolicy)
            self.problems.append(
                OptionError.value(option.name, option.value, expected=expected, **pointer(option.place, self.text))
            )
            return None

    def _option(self, alias: str, rest: str) -> OptionValue | None:
        """The option of one table, else that of the statement."""
        names = (f"{alias.lower()}.{OPTION}{rest}", f"{OPTION}{rest}")
        found = next((self.given[name] for name in names if name in self.given), None)
        self._used |= {name for name in names if name in self.given}
        return found

    def _equality(self, join: exp.Join, alias: str) -> tuple[exp.Expr, exp.Expr] | None:
        """A column of the table that is compared for equality, and what with."""
        for part in join.args.get("using") or ():
            name = str(part.name)
            # A stream whose columns are not known yet may have it.
            holders = [one for one in self.frame.sources if one.columns.find(name) or not one.columns.complete]
            other = next((one.alias for one in holders if one.alias.lower() != alias.lower()), alias)
            return self._column(alias, name), self._column(other, name)
        for condition in conjuncts(join.args.get("on")):
            if not isinstance(condition, exp.EQ):
                continue
            for side, other in ((condition.this, condition.expression), (condition.expression, condition.this)):
                column = without_parentheses(side)
                origin = origin_of(column) if isinstance(column, exp.Column) else None
                if origin is not None and origin.source.lower() == alias.lower() and not origin.fields:
                    return column.copy(), other.copy()
        return None

    def _column(self, alias: str, name: str) -> exp.Column:
        source = self.frame.source(alias)
        stored = (source.columns.find(name) if source is not None else None) or name
        column = exp.Column(this=identifier(stored), table=identifier(alias))
        set_origin(column, Origin(self.frame.scope, alias, stored))
        return column

    def _read_defaults(self, alias: str, relation: str | None) -> None:
        schema = self.inputs[relation].target.schema if relation in self.inputs else None
        for name, option in self.given.items():
            own = f"{alias.lower()}.{_DEFAULT}"
            prefix = own if name.startswith(own) else _DEFAULT if name.startswith(_DEFAULT) else None
            if prefix is None or schema is None:
                continue
            asked = name.removeprefix(prefix)
            column = schema.find(asked)
            if column is None and prefix == own:
                place = pointer(option.place, self.text)
                self.problems.append(ResolveError.unknown("column", asked, known=schema.names, **place))
            if column is None:
                continue
            self._used.add(name)
            key = (alias.lower(), column.name.lower())
            if prefix == own or key not in self.defaults:
                kind = exp.DataType.build(column.sql_type, dialect="spark")
                self.defaults[key] = exp.Cast(this=exp.Literal.string(option.value), to=kind)

    def _with_retry(self, rows: MissingRows, alias: str) -> MissingRows:
        most = self._option(alias, ".retry.max")
        delay = self._option(alias, ".retry.delay")
        multiplier = self._option(alias, ".retry.multiplier")
        if most is not None and not most.value.isdigit():
            self._refuse(most, "expected a whole number")
            most = None
        factor = _number(multiplier)
        if factor is None:
            self._refuse(multiplier, "expected a number of at least 1")
        try:
            wait = parse_duration(delay.value) if delay is not None else rows.retry_delay
        except VelostreamError:
            self._refuse(delay, "expected a duration such as 500ms")
            wait = timedelta(0)
        retries = rows.retry_max if most is None else int(most.value)
        return replace(rows, retry_max=retries, retry_delay=wait, retry_multiplier=factor or 1.0)

    def _refuse(self, option: OptionValue | None, reason: str) -> None:
        if option is not None:
            self.problems.append(
                ValidationError(
                    f'option "{option.name}" can\'t be "{option.value}": {reason}', **pointer(option.place, self.text)
                )
            )


def _misplaced(option: OptionValue, text: str) -> SqlError:
    return OptionError(
        f'option "{option.name}" has no join to speak of',
        detail="it belongs to a statement in which a stream looks rows up in a table",
        hint="SELECT … FROM stream s JOIN t ON s.k = t.k WITH ('join.missing' = 'nulls')",
        **pointer(option.place, text),
    )


def _number(option: OptionValue | None) -> float | None:
    if option is None:
        return MissingRows.retry_multiplier
    try:
        number = float(option.value)
    except ValueError:
        return None
    return number if number >= 1 else None


def _fill_defaults(
    select: exp.Select, *, frame: Frame, found: Sequence[_Missing], values: dict[tuple[str, str], exp.Expr]
) -> None:
    """Let every use of a column with a default read it where no row was found."""
    if not values:
        return
    keys = {one.alias.lower(): one.found_by for one in found}

    def filled(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column):
            origin = origin_of(node)
            place = ("", "") if origin is None else (origin.source.lower(), origin.column.lower())
            if origin is None or place not in values or origin.scope != frame.scope or origin.fields:
                return node
            absent = exp.Is(this=keys[place[0]].copy(), expression=exp.Null())
            whole = exp.Case(ifs=[exp.If(this=absent, true=values[place].copy())], default=node.copy())
            return exp.paren(whole, copy=False)
        return with_children(node, filled)

    items = [part for item in select.expressions for part in _without_star(item, frame)]
    select.set("expressions", [filled(named(item)) for item in items])
    for clause in ("where", "group", "having", "order", "qualify"):
        value = select.args.get(clause)
        if value is not None:
            select.set(clause, filled(value))


def _without_star(item: exp.Expr, frame: Frame) -> Iterator[exp.Expr]:
    columns = expand_star(item, frame) if item.is_star else None
    if columns is None:
        yield item
        return
    for column in columns:
        reference = exp.Column(this=identifier(column.name))
        if column.source is not None:
            reference.set("table", identifier(column.source))
            set_origin(reference, Origin(frame.scope, column.source, column.name))
        yield exp.Alias(this=reference, alias=identifier(column.name))
