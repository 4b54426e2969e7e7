"""UPDATE … FROM, DELETE … USING and UPSERT … ON as a query and expressions over pairs of rows.

The query gives the driving rows, whatever is asked of the source alone computed in them; a pair is a row of the changed
table beside a driving row. Conditions that tie a column of the table to a driving value are kept apart: by them rows
are looked up instead of compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from sqlglot import exp

from velostream.errors import NotExecutableError, ResolveError, ValidationError, present
from velostream.model.schema import Schema
from velostream.sql.parentheses import without_parentheses
from velostream.sql.pointing import pointer
from velostream.sql.scope import Columns
from velostream.sql.shape import is_aggregated, outermost_select
from velostream.sql.statements import Delete, Insert, Merge, Name, Query, SourceRef, Update

_MAY_SPARE = (exp.And, exp.Or, exp.Case, exp.If, exp.Coalesce, exp.Anonymous)
"""What may not evaluate all of its parts for every row; inside only columns are taken out, nothing that could fail."""


@dataclass(frozen=True)
class Equality:
    """A column of the changed table has to equal a driving value."""

    column: str
    driving: str


@dataclass(frozen=True)
class PairPlan:
    """A change of one table by the rows of a query."""

    query: Query
    """Gives the driving rows, columns by position."""
    driving: tuple[str, ...]
    """Names of the query's columns in a pair; the table's columns keep theirs."""
    equalities: tuple[Equality, ...] = ()
    condition: exp.Expr | None = None
    """What else must hold for a pair, over its columns."""
    assignments: Mapping[str, exp.Expr] = field(default_factory=dict)
    """New values by column of the table, over a pair's columns."""
    given: tuple[str, ...] = ()
    """Of an UPSERT: the table's columns that the first of the query's columns are for."""


class Side(Enum):
    TARGET = auto()
    SOURCE = auto()


def driving_query(statement: Insert | Update | Delete | Merge) -> Query:
    """What gives the rows that change the table, as it is written."""
    if isinstance(statement, Merge):
        return Query(exp.select("*").from_(statement.tree.args["using"].copy()), statement.sources)
    return present(statement.query if isinstance(statement, Insert) else statement.source)


def plan_pairs(statement: Insert | Update | Delete, *, target: Schema, source: Columns) -> PairPlan:
    """UPDATE … FROM, DELETE … USING or UPSERT … ON; `source` are the columns that its driving query gives."""
    match statement:
        case Insert():
            return plan_upsert(statement, target=target, source=source)
        case Update():
            return plan_update(statement, target=target, source=source)
        case Delete():
            return plan_delete(statement, target=target, source=source)


def plan_update(statement: Update, *, target: Schema, source: Columns) -> PairPlan:
    """UPDATE t SET … FROM s [WHERE …]; `source` are the columns that `*` means in the FROM."""
    split = PairSplit(target, statement.table.text, statement.alias, present(statement.source), source, statement.text)
    equalities, condition = split.condition(statement.where)
    assignments: dict[str, exp.Expr] = {}
    for assignment in statement.assignments:
        name = split.assigned(assignment.column.text, statement)
        if name in assignments:
            raise ValidationError(
                f'column "{name}" is set twice',
                code="duplicate-column",
                **pointer(assignment.column.place, statement.text),
            )
        assignments[name] = split.expression(assignment.value)
    return split.finished(statement.sources, equalities, condition, assignments)


def plan_delete(statement: Delete, *, target: Schema, source: Columns) -> PairPlan:
    """DELETE FROM t USING s [WHERE …]."""
    split = PairSplit(target, statement.table.text, statement.alias, present(statement.source), source, statement.text)
    equalities, condition = split.condition(statement.where)
    return split.finished(statement.sources, equalities, condition, {})


def plan_upsert(statement: Insert, *, target: Schema, source: Columns) -> PairPlan:
    """UPSERT INTO t [(columns)] SELECT … ON …: each row changes the rows that ON finds, or is added.

    `source` are the columns of the SELECT's result.
    """
    query = present(statement.query)
    table = statement.target.text if isinstance(statement.target, Name) else statement.target.uri
    names = [target.column(name).name for name in statement.columns] or list(target.names)
    if source.complete and len(source.names) != len(names):
        raise ValidationError(
            f'UPSERT gives {len(source.names)} columns and table "{table}" takes {len(names)}',
            detail=f"given: {', '.join(source.names)}; taken: {', '.join(names)}",
            text=statement.text,
        )
    split = _UpsertSplit(target, table, query, source, statement.text, names)
    equalities, condition = split.condition(statement.on)
    return split.finished_upsert(statement.sources, equalities, condition, names)


def conjuncts(condition: exp.Expr | None) -> Iterator[exp.Expr]:
    """The AND-ed parts of a condition."""
    if condition is None:
        return
    condition = without_parentheses(condition)
    if isinstance(condition, exp.And):
        yield from conjuncts(condition.this)
        yield from conjuncts(condition.expression)
    else:
        yield condition


class PairSplit:
    """Takes expressions over both sides, the changed table and its source, apart. Used for one statement."""

    def __init__(self, target: Schema, table: str, alias: str | None, query: Query, source: Columns, text: str) -> None:
        self._target = target
        self._name = alias or table
        self._qualifier = self._name.lower()
        self._query = query
        self._source = source
        self._text = text
        self._aliases = {str(node.alias_or_name).lower() for node in query.tree.find_all(exp.Table, exp.Subquery)}
        self._items: dict[str, tuple[str, exp.Expr]] = {}
        """What is asked of the source, by its text: the name it has in a pair, and the expression."""
        self._filters: list[exp.Expr] = []
        self._prefix = "_driving_"
        while any(name.lower().startswith(self._prefix) for name in target.names):
            self._prefix = "_" + self._prefix

    def condition(self, where: exp.Expr | None) -> tuple[tuple[Equality, ...], exp.Expr | None]:
        """What a pair must fulfil; parts about the source alone become the query's own."""
        equalities: list[Equality] = []
        rest: list[exp.Expr] = []
        for part in conjuncts(where):
            sides = self._sides(part)
            if Side.TARGET not in sides and self._may_filter():
                self._filters.append(part.copy())
                continue
            equality = self._equality(part)
            if equality is not None and all(equality.column != known.column for known in equalities):
                equalities.append(equality)
            else:
                rest.append(self.expression(part))
        return tuple(equalities), exp.and_(*rest, copy=False) if rest else None

    def expression(self, tree: exp.Expr) -> exp.Expr:
        """An expression over the columns of a pair."""
        return self._split(tree, guarded=False)

    def assigned(self, name: str, statement: Update) -> str:
        """The stored name of a column that is set."""
        column = self._target.find(name)
        if column is None:
            place = next(a.column.place for a in statement.assignments if a.column.text == name)
            raise ResolveError.unknown("column", name, known=self._target.names, **pointer(place, self._text))
        return column.name

    def finished(
        self,
        sources: tuple[SourceRef, ...],
        equalities: tuple[Equality, ...],
        condition: exp.Expr | None,
        assignments: Mapping[str, exp.Expr],
    ) -> PairPlan:
        tree = self._query.tree.copy()
        items = [exp.alias_(expression, name) for name, expression in self._items.values()]
        tree.set("expressions", items or [exp.alias_(exp.Literal.number(1), self._fresh_name())])
        if self._filters:
            tree.set("where", exp.Where(this=exp.and_(*self._filters, copy=False)))
        query = replace(self._query, tree=tree, sources=(*self._query.sources, *sources))
        names = tuple(item.alias for item in tree.expressions)
        return PairPlan(query, names, equalities, condition, assignments)

    def _may_filter(self) -> bool:
        return True

    def _equality(self, part: exp.Expr) -> Equality | None:
        if not isinstance(part, exp.EQ):
            return None
        for one, other in ((part.this, part.expression), (part.expression, part.this)):
            column = without_parentheses(one)
            if isinstance(column, exp.Column) and self._sides(column) == {Side.TARGET}:
                found = self._target_column(column)
                if len(found.parts) == 1 and self._sides(other) == {Side.SOURCE}:
                    return Equality(str(found.name), self._driving(without_parentheses(other)))
        return None

    def _split(self, node: exp.Expr, *, guarded: bool) -> exp.Expr:
        sides = self._sides(node)
        if not sides:
            return node.copy()
        if isinstance(node, exp.Column) and sides == {Side.TARGET}:
            return self._target_column(node)
        is_whole = isinstance(node, exp.Column | exp.Query) or not guarded
        if sides == {Side.SOURCE} and is_whole:
            return exp.column(exp.to_identifier(self._driving(node), quoted=True))
        if isinstance(node, exp.Query) or (isinstance(node, exp.Exists | exp.In) and node.find(exp.Query)):
            raise NotExecutableError(
                "a subquery can't read columns of the table that is changed here",
                hint="join what it reads in the FROM or USING clause instead",
                **pointer(node, self._text),
            )
        copied = node.copy()
        guarded = guarded or isinstance(node, _MAY_SPARE)
        for child in list(copied.iter_expressions()):
            if self._sides(child):
                child.replace(self._split(child, guarded=guarded))
        return copied

    def _sides(self, node: exp.Expr) -> set[Side]:
        sides: set[Side] = set()
        for part in node.walk(prune=lambda n: isinstance(n, exp.Query | exp.Column)):
            if isinstance(part, exp.Column):
                sides.add(self._side(part))
            elif isinstance(part, exp.Query):
                sides.add(Side.SOURCE)
                own = {str(table.alias_or_name).lower() for table in part.find_all(exp.Table, exp.Subquery)}
                if self._qualifier not in own and any(
                    len(column.parts) > 1 and column.parts[0].name.lower() == self._qualifier
                    for column in part.find_all(exp.Column)
                ):
                    sides.add(Side.TARGET)
        return sides

    def _side(self, column: exp.Column) -> Side:
        first = str(column.parts[0].name)
        if len(column.parts) > 1:
            if first.lower() == self._qualifier:
                return Side.TARGET
            if first.lower() in self._aliases or self._source.find(first) is not None:
                return Side.SOURCE
            return Side.TARGET if self._target.find(first) is not None else Side.SOURCE
        if self._target.find(first) is None:
            return Side.SOURCE
        if self._source.find(first) is not None:
            raise ResolveError(
                f'column "{first}" is ambiguous',
                detail="both the changed table and its source have it",
                hint=f"write {self._name}.{first} for the changed table's",
                code="ambiguous-column",
                width=len(first),
                **pointer(column, self._text),
            )
        return Side.TARGET

    def _target_column(self, column: exp.Column) -> exp.Column:
        """The column as a pair has it: under its stored name, without a qualifier."""
        parts = list(column.parts)
        if len(parts) > 1 and str(parts[0].name).lower() == self._qualifier:
            parts = parts[1:]
        known = self._target.find(str(parts[0].name))
        if known is None:
            raise ResolveError.unknown(
                "column", str(parts[0].name), known=self._target.names, **pointer(parts[0], self._text)
            )
        identifiers = [exp.to_identifier(known.name, quoted=True), *(part.copy() for part in parts[1:])]
        made = exp.Column(**dict(zip(("this", "table", "db", "catalog"), reversed(identifiers), strict=False)))
        made.meta.update(column.meta)
        return made

    def _driving(self, expression: exp.Expr) -> str:
        """The name under which a pair has something asked of the source."""
        text = expression.sql(dialect="spark").lower()
        if text not in self._items:
            self._items[text] = (self._fresh_name(), expression.copy())
        return self._items[text][0]

    def _fresh_name(self) -> str:
        return f"{self._prefix}{len(self._items)}"


class _UpsertSplit(PairSplit):
    """The items of the SELECT are driving values by themselves; what ON asks beyond them is added to it unseen."""

    def __init__(self, target: Schema, table: str, query: Query, source: Columns, text: str, names: list[str]) -> None:
        super().__init__(target, table, None, query, Columns(), text)
        self._outputs = source
        self._names = [f"{self._prefix}value_{number}" for number in range(len(names))]
        self._given = dict(zip(self._names, names, strict=True))
        select = outermost_select(query.tree)
        plain = select is not None and select is query.tree and not is_aggregated(select)
        self._select = select if plain and select is not None and not select.args.get("distinct") else None
        items = [] if self._select is None else self._select.expressions
        if len(items) == len(names) and not any(item.is_star for item in items):
            for name, item in zip(self._names, items, strict=True):
                self._items.setdefault(item.unalias().sql(dialect="spark").lower(), (name, item.unalias()))

    def finished_upsert(
        self,
        sources: tuple[SourceRef, ...],
        equalities: tuple[Equality, ...],
        condition: exp.Expr | None,
        names: list[str],
    ) -> PairPlan:
        added = [(name, expression) for name, expression in self._items.values() if name not in self._given]
        tree = self._query.tree.copy()
        if added:
            tree.set("expressions", [*tree.expressions, *(exp.alias_(expression, name) for name, expression in added)])
        query = replace(self._query, tree=tree, sources=(*self._query.sources, *sources))
        driving = (*self._names, *(name for name, _ in added))
        return PairPlan(query, driving, equalities, condition, given=tuple(names))

    def _may_filter(self) -> bool:
        """A row that ON holds for nothing of is added, so ON never drops rows."""
        return False

    def _side(self, column: exp.Column) -> Side:
        return Side.TARGET if str(column.parts[0].name).lower() == self._qualifier else Side.SOURCE

    def _driving(self, expression: exp.Expr) -> str:
        """An output of the SELECT by its name, else an expression over what the SELECT reads."""
        if isinstance(expression, exp.Column):
            outputs = [name.lower() for name in self._outputs.names]
            last = str(expression.parts[-1].name).lower()
            by_name = len(expression.parts) == 1 or self._select is None or _is_all_of_one(self._select)
            text = expression.sql(dialect="spark").lower()
            if by_name and text not in self._items and outputs.count(last) == 1:
                return self._names[outputs.index(last)]
        if self._select is None:
            raise NotExecutableError(
                "ON can only name columns of this SELECT's result",
                hint="select the column ON needs, or put the query into FROM (…)",
                **pointer(expression, self._text),
            )
        return super()._driving(expression)


def _is_all_of_one(select: exp.Select) -> bool:
    """Whether it is `SELECT * FROM s`, so that its results are the columns of `s`."""
    return [item.is_star for item in select.expressions] == [True] and not select.args.get("joins")
