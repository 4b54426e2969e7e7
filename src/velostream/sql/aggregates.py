"""The plan of a GROUP BY over a stream: a feed, the bare aggregate in Spark's state, and what is on top of it.

The feed gives the columns the aggregate reads as `c0…cn`. Where the SELECT is one row per group under the group's own
names, the bare aggregate is the result. Otherwise it yields group values `g0…gn` and aggregates `a0…an`, and the
projection, HAVING, ORDER BY and LIMIT become a query over that table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from velostream.errors import NotExecutableError, SqlError, ValidationError
from velostream.sql.canonical import Form, canonical
from velostream.sql.determinism import check_clock
from velostream.sql.functions import (
    AGGREGATE_WRAPPERS,
    aggregate_calls,
    function_name,
    is_aggregate_call,
    is_distinct_aggregate,
    is_generator,
    is_time_function,
    unwrapped,
)
from velostream.sql.grouping import bare_item, group_expressions, grouping_construct
from velostream.sql.maps import plan_map, relations_in
from velostream.sql.naming import alias, identifier, output_name
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import without_parentheses
from velostream.sql.plan import AggregatePlan, Input, WindowState
from velostream.sql.pointing import pointer
from velostream.sql.python_aggregates import python_aggregates_in
from velostream.sql.scope import Frame, Origin, origin_of, set_origin
from velostream.sql.shape import nested_queries, queries_in, window_functions
from velostream.sql.statements import Emit, OptionValue
from velostream.sql.trees import with_children
from velostream.sql.window_calls import END, field_of, window_field
from velostream.sql.windows import GroupedWindow, by_start, grouped_window, window_options

FEED = "feed"
GROUPS = "groups"

_ON_TOP = ("having", "order", "sort", "cluster", "distribute", "limit", "offset", "distinct", "qualify", "windows")
_ARGUMENT_HOLDERS = (exp.Filter, exp.Where, exp.WithinGroup, exp.Order, exp.Ordered, exp.Distinct, exp.IgnoreNulls)


def plan_aggregate(
    select: exp.Select,
    *,
    frame: Frame,
    frames: Mapping[int, Frame],
    inputs: Sequence[Input],
    declared_key: tuple[str, ...],
    options: Sequence[OptionValue],
    emit: Emit,
    text: str,
) -> AggregatePlan:
    """Cut an aggregating SELECT over a stream in two. Raises `SqlError` for all that Spark's state can't hold."""
    window = grouped_window(select, frame)
    if window is not None:
        select = by_start(select, window, frame)
    cutter = Cutter(select, frame=frame, text=text, window=window)
    if cutter.problems:
        raise SqlError.all_of(cutter.problems)
    direct_key = cutter.direct_key(declared_key)
    bare = cutter.direct() if direct_key is not None else cutter.bare()
    final = None if direct_key is not None else cutter.final()
    if final is not None and (clocks := check_clock(final, options=options, text=text)):
        raise SqlError.all_of(clocks)
    state = None if window is None else _window_state(cutter, window, bare, emit=emit, options=options, text=text)
    feed = plan_map(cutter.feed(), frames=frames, inputs=inputs)
    group_key = tuple(f"g{number}" for number in range(len(cutter.groups)))
    known = {entry.relation for entry in inputs}
    return AggregatePlan(
        feed=feed,
        sql=bare.sql(dialect="spark"),
        key=group_key if direct_key is None else direct_key,
        final=None if final is None else final.sql(dialect="spark"),
        final_inputs=tuple(sorted(relations_in(final) & known)) if final is not None else (),
        by_group=cutter.is_by_group,
        window=state,
    )


def _window_state(
    cutter: Cutter,
    window: GroupedWindow,
    bare: exp.Select,
    *,
    emit: Emit,
    options: Sequence[OptionValue],
    text: str,
) -> WindowState:
    said = window_options(options, text=text)
    return WindowState(
        time=cutter.fed_name(window.event_time),
        end=None if window.is_session else cutter.fed_name(field_of(window.call, END)),
        gap=window.size if window.is_session else None,
        tracked=cutter.tracked(bare, window).sql(dialect="spark"),
        watermark=said.watermark,
        late=said.late,
        emit=emit,
        reads=tuple(_written(part, window) for part in cutter.fed),
    )


def _written(part: exp.Expr, window: GroupedWindow) -> str:
    if canonical(part) == canonical(window.event_time):
        return "_event_time"
    field = window_field(part)
    return part.sql(dialect="spark") if field is None else f"_window_{field}"


@dataclass(frozen=True)
class _Item:
    """One output: its expression (lateral aliases put in) and its name."""

    expression: exp.Expr
    name: str


class Cutter:
    """An aggregating SELECT on its way to be cut: what it groups by, its aggregate calls, what is on top of them.

    Nothing but `problems` may be asked for when there are some. Of a SELECT with a `window` (grouped `by_start`) the
    aggregate is computed as a batch, so that it may be any one.
    """

    def __init__(self, select: exp.Select, *, frame: Frame, text: str, window: GroupedWindow | None = None) -> None:
        self.select = select
        self.frame = frame
        self.text = text
        self.window = window
        self.problems: list[SqlError] = []
        self.items = self._items()
        self.groups = [self._inlined(group) for group in group_expressions(select, frame)]
        self.group_forms = [canonical(group) for group in self.groups]
        self.aggregates: list[exp.Expr] = []
        self.aggregate_forms: list[Form] = []
        self.fed: list[exp.Expr] = []
        self.fed_forms: list[Form] = []
        self._validate()
        if not self.problems:
            self.projected = [alias(self._over_groups(item.expression), item.name) for item in self.items]
            self.on_top = self._clauses_over_groups()

    def direct_key(self, declared: tuple[str, ...]) -> tuple[str, ...] | None:
        """Output names of the group columns if the bare aggregate is the whole result."""
        if not self.groups or any(self.select.args.get(clause) for clause in _ON_TOP):
            return None
        if next(nested_queries(self.select), None) or next(window_functions(self.select), None):
            return None
        if any(is_time_function(part) for item in self.items for part in item.expression.walk()):
            return None
        forms = [canonical(item.expression) for item in self.items]
        names: list[str] = []
        for group in self.group_forms:
            if group not in forms:
                return None
            names.append(self.items[forms.index(group)].name)
        same = {name.lower() for name in declared} == {name.lower() for name in names}
        return tuple(names) if same or not declared else None

    def direct(self) -> exp.Select:
        """The bare aggregate under the user's own names."""
        return self._aggregate([alias(self._over_feed(item.expression), item.name) for item in self.items])

    def bare(self) -> exp.Select:
        """The bare aggregate as `g0…gn`, `a0…an`."""
        groups = [_as(self._over_feed(group), f"g{number}") for number, group in enumerate(self.groups)]
        calls = [_as(self._over_feed(call), f"a{number}") for number, call in enumerate(self.aggregates)]
        return self._aggregate(groups + calls)

    def final(self) -> exp.Select:
        """What is on top of the bare aggregate."""
        final = exp.Select(expressions=self.projected, from_=exp.From(this=_relation(GROUPS)))
        for clause, value in self.on_top.items():
            final.set("where" if clause == "having" else clause, value)
        _attach_ctes(final, self.select)
        return final

    @property
    def is_by_group(self) -> bool:
        """Whether what is on top of a group looks at that group alone."""
        across = any(self.select.args.get(clause) for clause in _ON_TOP if clause != "having")
        return (
            not across and not next(window_functions(self.select), None) and not next(nested_queries(self.select), None)
        )

    def tracked(self, bare: exp.Select, window: GroupedWindow) -> exp.Select:
        """The bare aggregate with the end of each window, whether a new row touched it and, of sessions, its rows."""
        row, new = exp.column("_row"), exp.column("_new")
        end = field_of(window.call, END)
        tracked = bare.copy()
        if window.is_session:
            ends = self._over_feed(end)
            tracked.append("expressions", _as(ends, "_end"))
        else:
            tracked.append("expressions", _as(exp.Max(this=exp.column(self.fed_name(end))), "_end"))
        tracked.append("expressions", _as(exp.Anonymous(this="bool_or", expressions=[new]), "_touched"))
        if window.is_session:
            tracked.append("expressions", _as(exp.Anonymous(this="collect_list", expressions=[row]), "_rows"))
        return tracked

    def fed_name(self, expression: exp.Expr) -> str:
        """The column of the feed that holds an expression."""
        return f"c{self._feed_number(expression)}"

    def feed(self) -> exp.Select:
        """The stateless SELECT of everything the aggregate reads; to be asked for last."""
        expressions = self.fed or [exp.Literal.number(1)]
        return self.reading([_as(part.copy(), f"c{number}") for number, part in enumerate(expressions)])

    def reading(self, items: Sequence[exp.Expr]) -> exp.Select:
        """A SELECT of other items over what the aggregate reads: its FROM, joins and WHERE."""
        feed = exp.Select(expressions=list(items))
        for clause in ("from_", "joins", "laterals", "where", "hint"):
            value = self.select.args.get(clause)
            if value is not None:
                feed.set(clause, [part.copy() for part in value] if isinstance(value, list) else value.copy())
        feed.meta.update(self.select.meta)
        _attach_ctes(feed, self.select)
        return feed

    def _aggregate(self, items: Sequence[exp.Expr]) -> exp.Select:
        statement = exp.Select(expressions=list(items), from_=exp.From(this=_relation(FEED)))
        if self.groups:
            groups = [without_parentheses(group.this) if self._is_session(group) else group for group in self.groups]
            statement.set("group", exp.Group(expressions=[self._over_feed(group) for group in groups]))
        return statement

    def _is_session(self, node: exp.Expr) -> bool:
        """Whether a node is a field of the session that is grouped by: Spark must see the session itself."""
        return self.window is not None and self.window.is_session and window_field(node) is not None

    def _items(self) -> list[_Item]:
        found: list[_Item] = []
        for item in self.select.expressions:
            if item.is_star:
                found += self._expanded(item)
            elif isinstance(item, exp.Aliases) or is_generator(bare_item(item)):
                self._refuse("a generator beside an aggregate", item, hint="explode in a LATERAL VIEW of the FROM")
            else:
                found.append(_Item(self._inlined(bare_item(item)), output_name(item)))
        return found

    def _expanded(self, item: exp.Expr) -> list[_Item]:
        columns = expand_star(item, self.frame)
        if columns is None:
            self._refuse("* beside an aggregate", item, hint="name the columns")
        found: list[_Item] = []
        for column in columns or ():
            reference = exp.Column(this=identifier(column.name))
            if column.source is not None:
                reference.set("table", identifier(column.source))
                set_origin(reference, Origin(self.frame.scope, column.source, column.name))
            found.append(_Item(reference, column.name))
        return found

    def _inlined(self, expression: exp.Expr, depth: int = 0) -> exp.Expr:
        """A copy with the names of other select items replaced by what they stand for."""
        labels = {str(item.alias).lower(): item.this for item in self.select.expressions if isinstance(item, exp.Alias)}

        def replaced(node: exp.Expr) -> exp.Expr:
            if not isinstance(node, exp.Column) or node.table or origin_of(node) is not None:
                return node
            name = str(node.name).lower()
            known = self.frame.having(name) or name in self.frame.merged or not self.frame.complete
            if name not in labels or known or depth > len(labels):
                return node
            return exp.paren(self._inlined(labels[name], depth + 1), copy=False)

        return expression.copy().transform(replaced, copy=False)

    def _validate(self) -> None:
        for cte in self.select.args["with_"].expressions if self.select.args.get("with_") else ():
            if str(cte.alias).lower() == GROUPS:
                self._refuse(f'a WITH item of the name "{GROUPS}"', cte, hint="give it another name")
        construct = grouping_construct(self.select)
        if construct is not None:
            self._refuse(f"GROUP BY {construct}", self.select.args["group"], hint=self._materialise())
        for group in self.groups:
            if aggregate_calls(group):
                self._invalid(
                    "GROUP BY can't contain an aggregate", group, hint="group by columns or expressions of them"
                )
            if function_name(group) == "session_window" and self.window is None:
                self._refuse("session_window", group, hint=self._materialise())
        clauses = [*self.select.expressions, self.select.args.get("having"), self.select.args.get("order")]
        if self.window is None:
            for call in (call for clause in clauses for call in python_aggregates_in(clause)):
                self._refuse(f'aggregate "{call.name}" in Python', call, hint=self._materialise())
        for call in (call for clause in clauses for call in aggregate_calls(clause)):
            if is_distinct_aggregate(call) and self.window is None:
                self._refuse(call.sql(dialect="spark"), call, hint=self._distinct_hint(call))
            elif any(inner is not call and is_aggregate_call(inner) for inner in _inside(call)):
                self._invalid("an aggregate can't contain another one", call, hint="aggregate in two steps")

    def _distinct_hint(self, call: exp.Expr) -> str:
        approximate = "approx_count_distinct is close and keeps up, or " if function_name(call) == "count" else ""
        return approximate + self._materialise()

    def _materialise(self) -> str:
        return "make the stream a table first: CREATE TABLE t AS SELECT * FROM …; then aggregate t"

    def _refuse(self, construct: str, node: exp.Expr, *, hint: str) -> None:
        message = f"{construct} over a stream can't be executed by this version"
        self.problems.append(NotExecutableError(message, hint=hint, **pointer(node, self.text)))

    def _invalid(self, message: str, node: exp.Expr, *, hint: str) -> None:
        self.problems.append(ValidationError(message, hint=hint, **pointer(node, self.text)))

    def _over_feed(self, expression: exp.Expr) -> exp.Expr:
        """A copy that reads the feed: every column, and every argument with a subquery in it, is one of `c0…cn`.

        So is a group without a column: a number in GROUP BY would be an ordinal.
        """

        def read(node: exp.Expr) -> exp.Expr:
            if window_field(node) is not None and not self._is_session(node):
                return _fed_column(self._feed_number(node))
            if isinstance(node, exp.Column) and not node.is_star:
                return self._fed(node)
            if node.find(exp.Column) is None and canonical(node) in self.group_forms:
                return _fed_column(self._feed_number(node))
            holds_query = next(queries_in(node), None) is not None
            if holds_query and not isinstance(node, _ARGUMENT_HOLDERS) and not is_aggregate_call(node):
                return _fed_column(self._feed_number(node))
            return with_children(node, read)

        return read(expression)

    def _fed(self, column: exp.Column) -> exp.Expr:
        """A column of the feed; a field of a grouped struct is read from that group, as Spark wants it."""
        grouped = self._grouped_prefix(column)
        if grouped is None:
            return _fed_column(self._feed_number(column))
        number, fields = grouped
        return _field(self._over_feed(self.groups[number]), fields)

    def _feed_number(self, expression: exp.Expr) -> int:
        form = canonical(expression)
        if form not in self.fed_forms:
            self.fed_forms.append(form)
            self.fed.append(expression)
        return self.fed_forms.index(form)

    def _over_groups(self, expression: exp.Expr) -> exp.Expr:
        """A copy that reads the bare aggregate: group expressions as `g0…gn`, aggregates as `a0…an`."""

        def read(node: exp.Expr, *, nested: bool, windowed: bool = False) -> exp.Expr:
            form = canonical(node)
            if form in self.group_forms:
                return _group_column(f"g{self.group_forms.index(form)}")
            if not nested and not windowed and (is_aggregate_call(node) or self._is_session(node)):
                return _group_column(f"a{self._aggregate_number(node, form)}")
            if isinstance(node, exp.Column):
                return self._ungrouped(node)
            within = nested or isinstance(node, exp.Query)
            opens = isinstance(node, exp.Window) or (windowed and isinstance(node, AGGREGATE_WRAPPERS))
            return with_children(node, lambda child: read(child, nested=within, windowed=opens and child is node.this))

        return read(expression, nested=False)

    def _aggregate_number(self, call: exp.Expr, form: Form) -> int:
        if form not in self.aggregate_forms:
            self.aggregate_forms.append(form)
            self.aggregates.append(call)
        return self.aggregate_forms.index(form)

    def _ungrouped(self, column: exp.Column) -> exp.Expr:
        """A column that is no group expression itself: a field of one, a column of a subquery, or a mistake."""
        origin = origin_of(column)
        if origin is None or origin.scope != self.frame.scope:
            return column.copy()
        grouped = self._grouped_prefix(column)
        if grouped is not None:
            number, fields = grouped
            return _field(_group_column(f"g{number}"), fields)
        self._invalid(
            f'column "{column.name}" is neither grouped nor aggregated',
            column,
            hint=f"add it to GROUP BY, or take any_value({column.name})",
        )
        return column.copy()

    def _grouped_prefix(self, column: exp.Column) -> tuple[int, tuple[str, ...]] | None:
        """Which group is a struct that the column is a field of, and the names down to the field."""
        origin = origin_of(column)
        if origin is None:
            return None
        for kept in range(len(origin.fields) - 1, -1, -1):
            whole = column.copy()
            set_origin(whole, replace(origin, fields=origin.fields[:kept]))
            form = canonical(whole)
            if form in self.group_forms:
                return self.group_forms.index(form), origin.fields[kept:]
        return None

    def _clauses_over_groups(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for clause in _ON_TOP:
            value = self.select.args.get(clause)
            if value is None:
                continue
            if clause == "having":
                found[clause] = exp.Where(this=self._over_groups(self._outputs_inlined(value.this)))
            elif isinstance(value, list):
                found[clause] = [self._over_groups(part) for part in value]
            else:
                found[clause] = self._over_groups(value)
        return found

    def _outputs_inlined(self, expression: exp.Expr) -> exp.Expr:
        """A copy of HAVING with output names replaced by their expressions, which WHERE would not know."""
        outputs = {item.name.lower(): item.expression for item in self.items}

        def replaced(node: exp.Expr) -> exp.Expr:
            bare = isinstance(node, exp.Column) and not node.table and origin_of(node) is None
            found = outputs.get(str(node.name).lower()) if bare else None
            return node if found is None else exp.paren(found)

        return expression.copy().transform(replaced, copy=False)


def _inside(call: exp.Expr) -> Sequence[exp.Expr]:
    """The parts of an aggregate call's arguments, without its own function and wrappers."""
    core = unwrapped(call)
    return [part for part in core.walk(prune=lambda n: isinstance(n, exp.Query)) if part is not core]


def _attach_ctes(target: exp.Select, origin: exp.Select) -> None:
    """Give a new SELECT those CTEs of the original one that it names, and those that they name."""
    clause = origin.args.get("with_")
    if clause is None:
        return
    wanted = {name.lower() for name in relations_in(target)}
    kept: list[exp.Expr] = []
    for cte in reversed(clause.expressions):
        if str(cte.alias).lower() in wanted:
            kept.insert(0, cte.copy())
            wanted |= {name.lower() for name in relations_in(cte.this)}
    if kept:
        target.set("with_", exp.With(expressions=kept, recursive=clause.args.get("recursive")))


def _as(expression: exp.Expr, name: str) -> exp.Alias:
    return exp.Alias(this=expression, alias=exp.Identifier(this=name, quoted=False))


def _fed_column(number: int) -> exp.Column:
    return exp.Column(this=exp.Identifier(this=f"c{number}", quoted=False))


def _group_column(name: str) -> exp.Column:
    return exp.column(name, table=GROUPS)


def _field(value: exp.Expr, names: Sequence[str]) -> exp.Expr:
    for name in names:
        value = exp.Dot(this=value, expression=identifier(name))
    return value


def _relation(name: str) -> exp.Table:
    return exp.Table(this=exp.Identifier(this=name, quoted=False))
