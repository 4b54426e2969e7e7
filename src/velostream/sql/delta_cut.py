"""A query taken apart: what of it can be kept up to date as a view of its own, and what is left to do over that.

Every cut gives a query that reads its pieces by name; one gives what the other gives. So a query of any depth comes
down to pieces that follow changes by one plan each.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from velostream.sql.aggregates import GROUPS, Cutter
from velostream.sql.delta_cut_subqueries import cut_exclusions, cut_lookups, cut_members, cut_scalars
from velostream.sql.delta_pieces import Cut, Pieces, from_piece, is_piece, piece_table
from velostream.sql.functions import aggregate_calls
from velostream.sql.grouping import bare_item, group_expressions
from velostream.sql.naming import alias, output_name, plain_column
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import without_parentheses
from velostream.sql.resolve import Resolution
from velostream.sql.scope import Origin, input_of, origin_of, scope_of, set_origin
from velostream.sql.shape import from_items, is_aggregated, nested_queries, outermost_select, window_functions

_ITEM_EXTRAS = ("pivots", "sample", "joins", "laterals", "limit", "offset", "order", "with_")
_OF_VALUES = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)
_READING = ("from_", "joins", "laterals", "where", "hint")


def cut_query(tree: exp.Expr, resolution: Resolution) -> Cut | None:
    """The query with something taken out of it; None when there is nothing to take."""
    for cut in _CUTS:
        found = cut(tree.copy(), resolution)
        if found is not None:
            return found
    return None


def _common_tables(tree: exp.Expr, _: Resolution) -> Cut | None:
    """Every item of a WITH clause is a piece."""
    clause = tree.args.get("with_")
    if clause is None or clause.args.get("recursive") or len(list(tree.find_all(exp.With))) > 1:
        return None
    pieces = Pieces(tree)
    tree.set("with_", None)
    names: dict[str, str] = {}
    for item in clause.expressions:
        if item.args["alias"].args.get("columns"):
            return None
        body = _renamed_tables(item.this, names)
        names[str(item.alias).lower()] = pieces.add(body)
    return pieces.cut(_renamed_tables(tree, names))


def _renamed_tables(tree: exp.Expr, names: dict[str, str]) -> exp.Expr:
    for table in list(tree.find_all(exp.Table)):
        name = str(table.name).lower()
        if input_of(table) is None and name in names and not table.args.get("db"):
            table.set("alias", table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(str(table.name))))
            table.set("this", exp.to_identifier(names[name]))
    return tree


def _relations(tree: exp.Expr, _: Resolution) -> Cut | None:
    """Every subquery of a FROM is a piece."""
    select = outermost_select(tree)
    if select is None:
        return None
    pieces = Pieces(tree)
    for item in from_items(select):
        written = item.args.get("alias")
        if not isinstance(item, exp.Subquery) or any(map(item.args.get, _ITEM_EXTRAS)):
            continue
        if isinstance(item.this, exp.Query) and (written is None or not written.args.get("columns")):
            name = pieces.add(item.this)
            item.replace(piece_table(name, name if written is None else str(written.name)))
    return pieces.cut(tree)


def _groups(tree: exp.Expr, resolution: Resolution) -> Cut | None:
    """The groups of a query with subqueries on top of them are a piece."""
    select = outermost_select(tree)
    scope = scope_of(select) if select is not None else None
    if select is None or scope is None or not is_aggregated(select):
        return None
    on_top = [*select.expressions, select.args.get("having"), select.args.get("order")]
    if not any(isinstance(part, exp.Query) for clause in on_top if clause is not None for part in clause.walk()):
        return None
    cutter = Cutter(select, frame=resolution.frames[scope], text="")
    if cutter.problems or any(group.find(exp.Column) is None for group in cutter.groups):
        return None
    groups = [alias(group.copy(), f"g{number}") for number, group in enumerate(cutter.groups)]
    calls = [alias(call.copy(), f"a{number}") for number, call in enumerate(cutter.aggregates)]
    bare = cutter.reading([*groups, *calls])
    if cutter.groups:
        bare.set("group", exp.Group(expressions=[group.copy() for group in cutter.groups]))
    final = cutter.final()
    if next(nested_queries(final), None) is None:
        # They stand within the aggregates, and would be in the piece as they are here.
        return None
    pieces = Pieces(tree)
    final.set("from_", exp.From(this=piece_table(pieces.add(bare), GROUPS)))
    return pieces.cut(final)


def _different_rows(tree: exp.Expr, resolution: Resolution) -> Cut | None:
    """Aggregates of the different values of one column: the different rows of groups and values are a piece."""
    select = outermost_select(tree)
    scope = scope_of(select) if select is not None else None
    if select is None or scope is None or next(nested_queries(_without_reading(select)), None) is not None:
        return None
    clauses = [*select.expressions, select.args.get("having"), select.args.get("order")]
    calls = [call for clause in clauses for call in aggregate_calls(clause)]
    plain = [call for call in calls if isinstance(call, _OF_VALUES) and isinstance(call.this, exp.Distinct)]
    values = [call.this.expressions for call in plain]
    if not calls or len(plain) < len(calls) or any(len(value) > 1 for value in values):
        return None
    groups = group_expressions(select, resolution.frames[scope])
    read = {origin_of(without_parentheses(part)) for part in (*groups, *(value[0] for value in values))}
    if None in read or len({origin_of(without_parentheses(value[0])) for value in values}) > 1:
        return None
    found = _rows(tree, resolution, whatever=True)
    if found is None:
        return None
    (piece,) = found.pieces
    if len(piece.tree.expressions) != len(read):
        return None
    piece.tree.set("distinct", exp.Distinct())
    for call in [part for part in found.tree.find_all(*_OF_VALUES) if isinstance(part.this, exp.Distinct)]:
        call.set("this", call.this.expressions[0])
    return found


def _rows(tree: exp.Expr, resolution: Resolution, *, whatever: bool = False) -> Cut | None:
    """The rows that a query groups, counts once or ranks are a piece, where they come from more than one table.

    `whatever`: from wherever they come.
    """
    select = outermost_select(tree)
    scope = scope_of(select) if select is not None else None
    if select is None or scope is None or select.args.get("with_"):
        return None
    where = select.args.get("where")
    filtered = where is not None and where.find(exp.Query) is not None
    if len(from_items(select)) < 2 and not filtered and not whatever:
        return None
    if not (is_aggregated(select) or select.args.get("distinct") or next(window_functions(select), None)):
        return None
    outputs: list[tuple[str, exp.Expr]] = []
    for item in select.expressions:
        found = _expanded(item, select, resolution) if item.is_star else [(output_name(item), bare_item(item))]
        if found is None or isinstance(item, exp.Aliases):
            return None
        outputs += found
    columns = _Columns(select, scope, outputs=[name for name, _ in outputs])
    items = [alias(columns.over(expression), name) for name, expression in outputs]
    rest = {
        clause: [columns.over(part) for part in value] if isinstance(value, list) else columns.over(value)
        for clause, value in select.args.items()
        if value and clause not in (*_READING, "expressions", "kind")
    }
    if not columns.known or not columns.read:
        return None
    piece = exp.Select(expressions=[alias(column, name) for name, column in columns.read.values()])
    for clause in _READING:
        value = select.args.get(clause)
        if value:
            piece.set(clause, [part.copy() for part in value] if isinstance(value, list) else value.copy())
    pieces = Pieces(tree)
    outer = exp.Select(expressions=items, from_=from_piece(pieces.add(piece)), **rest)
    return pieces.cut(outer)


class _Columns:
    """The columns that the clauses of a SELECT read of its FROM, each under a name of its own."""

    def __init__(self, select: exp.Select, scope: int, *, outputs: Sequence[str]) -> None:
        self._scope = scope
        self.known = next(nested_queries(_without_reading(select)), None) is None
        """Whether all that is read can be named."""
        self.read: dict[tuple[str, str], tuple[str, exp.Expr]] = {}
        self._prefix = "c"
        while any(name.lower().startswith(self._prefix) for name in outputs):
            # HAVING and ORDER BY would take the name for that of the output.
            self._prefix += "_"

    def over(self, node: object) -> exp.Expr:
        """A copy of a part of the query that reads the columns by their new names."""
        if not isinstance(node, exp.Expr):
            return node  # type: ignore[return-value]

        def replaced(part: exp.Expr) -> exp.Expr:
            origin = origin_of(part) if isinstance(part, exp.Column) else None
            if origin is None:
                return part
            if origin.scope != self._scope or origin.fields:
                self.known = False
                return part
            place = (origin.source.lower(), origin.column.lower())
            if place not in self.read:
                self.read[place] = (f"{self._prefix}{len(self.read)}", part.copy())
            return plain_column(self.read[place][0])

        return node.copy().transform(replaced, copy=False)


def _first_rows(tree: exp.Expr, resolution: Resolution) -> Cut | None:
    """OFFSET … LIMIT: the rows up to the last one wanted are a piece."""
    select = outermost_select(tree)
    offset = select.args.get("offset") if select is not None else None
    limit = select.args.get("limit") if select is not None else None
    numbers = [_number(part) for part in (offset, limit)]
    if select is None or None in numbers or any(item.is_star for item in select.expressions):
        return None
    if any(is_piece(item, resolution) for item in from_items(select)):
        return None
    names = [output_name(item) for item in select.expressions]
    ordered = select.args.get("order")
    if ordered is not None and any(_ordinal_or_name(part, names) is None for part in ordered.expressions):
        return None
    piece = select.copy()
    piece.set("expressions", [alias(bare_item(i), name) for i, name in zip(select.expressions, names, strict=True)])
    piece.set("offset", None)
    piece.set("limit", exp.Limit(expression=exp.Literal.number(sum(number or 0 for number in numbers))))
    pieces = Pieces(tree)
    outer = exp.Select(expressions=[plain_column(name) for name in names], from_=from_piece(pieces.add(piece)))
    outer.set("limit", limit)
    outer.set("offset", offset)
    if ordered is not None:
        parts = [_ordered(part, _ordinal_or_name(part, names) or "") for part in ordered.expressions]
        outer.set("order", exp.Order(expressions=parts))
    return pieces.cut(outer)


def _ordinal_or_name(part: exp.Expr, names: Sequence[str]) -> str | None:
    """The name of the selected column that ORDER BY orders by."""
    node = without_parentheses(part.this) if isinstance(part, exp.Ordered) else part
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdigit():
        return names[int(str(node.this)) - 1] if 1 <= int(str(node.this)) <= len(names) else None
    if not isinstance(node, exp.Column):
        return None
    return next((name for name in names if name.lower() == str(node.name).lower()), None)


def _ordered(part: exp.Expr, name: str) -> exp.Expr:
    copied = part.copy()
    copied.set("this", plain_column(name))
    return copied


def _expanded(item: exp.Expr, select: exp.Select, resolution: Resolution) -> list[tuple[str, exp.Expr]] | None:
    scope = scope_of(select)
    columns = None if scope is None else expand_star(item, resolution.frames[scope])
    if columns is None or scope is None or any(column.source is None for column in columns):
        return None
    found: list[tuple[str, exp.Expr]] = []
    for column in columns:
        reference = plain_column(column.name, table=column.source)
        set_origin(reference, Origin(scope, str(column.source), column.name))
        found.append((column.name, reference))
    return found


def _without_reading(select: exp.Select) -> exp.Select:
    copied = select.copy()
    for clause in _READING:
        copied.set(clause, None)
    return copied


def _number(clause: exp.Expr | None) -> int | None:
    value = clause.expression if isinstance(clause, exp.Limit | exp.Offset) else None
    plain = isinstance(value, exp.Literal) and not value.is_string and str(value.this).isdigit()
    return int(str(value.this)) if plain and value is not None else None


_CUTS = (
    _common_tables,
    _relations,
    cut_scalars,
    cut_exclusions,
    cut_lookups,
    cut_members,
    _groups,
    _different_rows,
    _rows,
    _first_rows,
)
