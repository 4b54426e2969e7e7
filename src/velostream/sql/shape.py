"""Whether a query over a stream can be run batch by batch, and how its joins read when the stream drives them.

A query distributes over its stream when the rows of two batches together give what each batch gives alone: one stream
in FROM, no construct that must see all rows. What doesn't is refused with what to write instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlglot import exp

from velostream.errors import NotExecutableError, SqlError, ValidationError
from velostream.sql.functions import aggregate_calls
from velostream.sql.pointing import pointer
from velostream.sql.scope import input_of, streams_in
from velostream.sql.stream_joins import ColumnTest, is_bounded

_SORTING = {"order": "ORDER BY", "sort": "SORT BY", "cluster": "CLUSTER BY", "distribute": "DISTRIBUTE BY"}
_CUTTING = {"limit": "LIMIT", "offset": "OFFSET"}
_NOT_EXPRESSIONS = ("with_", "from_", "joins", "laterals", "hint")


@dataclass
class Shape:
    """What looking at a streaming query found."""

    problems: list[SqlError] = field(default_factory=list)
    warnings: list[SqlError] = field(default_factory=list)


def outermost_select(tree: exp.Expr) -> exp.Select | None:
    """The SELECT a query consists of, out of its parentheses; None for a set operation or a bare VALUES."""
    while isinstance(tree, exp.Subquery) and not any(tree.args.get(clause) for clause in (*_SORTING, *_CUTTING)):
        tree = tree.this
    return tree if isinstance(tree, exp.Select) else None


def is_aggregated(select: exp.Select) -> bool:
    """Whether a SELECT makes one row of many: GROUP BY, HAVING, or an aggregate call of its own."""
    if select.args.get("group") or select.args.get("having"):
        return True
    clauses = [*select.expressions, select.args.get("order"), select.args.get("qualify")]
    return any(aggregate_calls(clause) for clause in clauses)


def nested_queries(select: exp.Select) -> Iterator[exp.Query]:
    """The subqueries in the expressions of a SELECT (not those of its FROM), the outermost of each."""
    for clause, value in select.args.items():
        if clause in _NOT_EXPRESSIONS:
            continue
        for part in value if isinstance(value, list) else [value]:
            yield from queries_in(part)
    for join in select.args.get("joins") or ():
        yield from queries_in(join.args.get("on"))


def queries_in(node: object) -> Iterator[exp.Query]:
    """The outermost queries inside an expression."""
    if isinstance(node, exp.Expr):
        for part in node.walk(prune=lambda n: isinstance(n, exp.Query)):
            if isinstance(part, exp.Query):
                yield part


def window_functions(select: exp.Select) -> Iterator[exp.Expr]:
    """The calls with OVER of a SELECT itself."""
    for clause in [*select.expressions, select.args.get("order"), select.args.get("qualify")]:
        if clause is not None:
            for part in clause.walk(prune=lambda n: isinstance(n, exp.Query)):
                if isinstance(part, exp.Window):
                    yield part


def from_items(select: exp.Select) -> list[exp.Expr]:
    """The relations of a FROM from left to right; the n-th but the first belongs to the join n - 1."""
    from_ = select.args.get("from_")
    first = [from_.this] if from_ is not None else []
    return first + [join.this for join in select.args.get("joins") or ()]


def driving_index(select: exp.Select) -> int | None:
    """Which relation of the FROM is the stream; None without one."""
    return next((index for index, item in enumerate(from_items(select)) if streams_in(item)), None)


def drive_by_stream(tree: exp.Expr, *, text: str, stream: str, is_time: ColumnTest) -> Shape:
    """Check a query that reads a stream and turn its outer joins to the side of the stream, in place.

    `stream` is the name hints use, `is_time` tells columns that hold event times. Aggregation is allowed in the
    outermost SELECT only.
    """
    checker = _Checker(text=text, stream=stream, is_time=is_time)
    checker.query(tree, outermost=True)
    return checker.shape


class _Checker:
    def __init__(self, *, text: str, stream: str, is_time: ColumnTest) -> None:
        self.text = text
        self.stream = stream
        self.is_time = is_time
        self.shape = Shape()

    def refuse(self, construct: str, node: exp.Expr, *, hint: str | None = None) -> None:
        self.shape.problems.append(
            NotExecutableError(
                f"{construct} over a stream can't be executed by this version",
                hint=hint or self.materialise(),
                **pointer(node, self.text),
            )
        )

    def materialise(self) -> str:
        return f"make it a table first: CREATE TABLE t AS SELECT * FROM {self.stream}; then query t"

    def query(self, node: exp.Expr, *, outermost: bool) -> None:
        clause = node.args.get("with_")
        for cte in clause.expressions if clause is not None else ():
            if streams_in(cte.this):
                self.query(cte.this, outermost=False)
        if isinstance(node, exp.Select):
            self.select(node, outermost=outermost)
        elif isinstance(node, exp.Subquery):
            self.whole_input_clauses(node)
            self.query(node.this, outermost=outermost)
        elif isinstance(node, exp.SetOperation):
            self.set_operation(node)

    def set_operation(self, node: exp.SetOperation) -> None:
        name = type(node).__name__.upper()
        if not isinstance(node, exp.Union) or node.args.get("distinct"):
            self.refuse(name, node)
            return
        self.whole_input_clauses(node)
        branches = (node.this, node.expression)
        for branch in branches:
            if streams_in(branch):
                self.query(branch, outermost=False)
            else:
                self.refuse(
                    "UNION ALL with a table", branch, hint="insert the table's rows with a statement of its own"
                )
        if len(streams_in(node)) > 1:
            hint = "write one INSERT INTO … SELECT per stream into the same table"
            self.refuse("UNION ALL of two streams", node.expression, hint=hint)

    def whole_input_clauses(self, node: exp.Expr) -> None:
        for clause, words in (_SORTING | _CUTTING).items():
            if node.args.get(clause):
                self.refuse(words, node.args[clause])

    def select(self, select: exp.Select, *, outermost: bool) -> None:
        aggregated = is_aggregated(select)
        if aggregated and not outermost:
            hint = "make the inner query a table first: CREATE TABLE g AS SELECT … GROUP BY …; then query g"
            self.refuse("an aggregate inside a subquery or CTE", select, hint=hint)
        if not aggregated:
            self.stateless(select)
        for nested in nested_queries(select):
            if streams_in(nested):
                self.refuse("a subquery", nested)
        for lateral in select.args.get("laterals") or ():
            if streams_in(lateral):
                self.refuse("LATERAL", lateral)
        streaming = [item for item in from_items(select) if streams_in(item)]
        if len(streaming) > 1:
            self.stream_join(select, streaming)
            return
        if streaming:
            self.driving(streaming[0])
            self.joins(select)

    def stream_join(self, select: exp.Select, streaming: list[exp.Expr]) -> None:
        """Two streams: a view over the rows of both if event times bound it, else rows would be kept in vain."""
        before = {str(select.args["from_"].this.alias_or_name).lower()}
        for join in select.args.get("joins") or ():
            if join.this in streaming and not is_bounded(join, select, before, is_time=self.is_time):
                self.unbounded_join(join.this)
                return
            before.add(str(join.this.alias_or_name).lower())
        hint = "CREATE TABLE … AS keeps the rows of both streams and gives every pair; or " + self.materialise()
        self.refuse("a join of two streams", streaming[1], hint=hint)

    def unbounded_join(self, item: exp.Expr) -> None:
        self.shape.problems.append(
            NotExecutableError(
                "a stream–stream join without a time bound would keep all rows of both for ever",
                detail="event times of both sides have to be compared, from below and from above",
                hint="JOIN … WITHIN 10m ON …, or make one side a table: "
                f"CREATE TABLE t AS SELECT * FROM {self.stream}; then join the other stream to t",
                code="unbounded-join",
                **pointer(item, self.text),
            )
        )

    def stateless(self, select: exp.Select) -> None:
        if select.args.get("distinct"):
            self.refuse("DISTINCT", select, hint="write GROUP BY with all selected columns, or " + self.materialise())
        self.whole_input_clauses(select)
        for window in window_functions(select):
            self.refuse("a window function", window)
            break

    def driving(self, item: exp.Expr) -> None:
        if item.args.get("pivots"):
            self.refuse("PIVOT", item)
        if item.args.get("joins") or (isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table)):
            self.refuse("a join in parentheses", item, hint="write the joins one after another without parentheses")
        elif isinstance(item, exp.Subquery):
            self.query(item, outermost=False)
        elif isinstance(item, exp.Lateral):
            self.refuse("LATERAL", item)

    def joins(self, select: exp.Select) -> None:
        position = driving_index(select) or 0
        for index, join in enumerate(select.args.get("joins") or (), start=1):
            if index < position:
                continue
            side = str(join.args.get("side") or "").upper()
            if index == position:
                if str(join.args.get("kind") or "").upper() in ("SEMI", "ANTI"):
                    self.refuse("a SEMI or ANTI JOIN with the stream on its right", join, hint="put the stream first")
                self.turn(join, {"LEFT": None, "FULL": "RIGHT"}, side, table=select.args["from_"].this)
            else:
                self.turn(join, {"RIGHT": None, "FULL": "LEFT"}, side, table=join.this)

    def turn(self, join: exp.Join, turned: dict[str, str | None], side: str, *, table: exp.Expr) -> None:
        """Let a join that would keep rows only the table has keep what the stream has."""
        if side not in turned or str(join.args.get("kind") or "").upper() in ("SEMI", "ANTI"):
            return
        join.set("side", turned[side])
        if turned[side] is None and str(join.args.get("kind") or "").upper() == "OUTER":
            join.set("kind", None)
        kept = "the matched rows" if turned[side] is None else "the stream's rows"
        self.shape.warnings.append(
            ValidationError(
                f"{side} JOIN of a stream and a table gives {kept} only",
                detail="rows the table has and the stream never matched can't be known: the stream has no end",
                hint="write "
                + ("JOIN" if turned[side] is None else "a join that keeps the stream's rows")
                + " to say so",
                code="warning-one-sided-join",
                **pointer(join if table is join.this else table, self.text),
            )
        )


def reads_input(item: exp.Expr) -> bool:
    """Whether an item of FROM is a table or source of the catalog by itself: no sample, pivot or nested join."""
    extras = ("joins", "pivots", "sample", "laterals", "version", "when")
    alias = item.args.get("alias")
    listed = alias.args.get("columns") if alias is not None else None
    return (
        isinstance(item, exp.Table)
        and input_of(item) is not None
        and not listed
        and not any(map(item.args.get, extras))
    )
