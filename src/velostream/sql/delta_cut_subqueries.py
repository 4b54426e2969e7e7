"""Subqueries taken out of a query: values that are the same for all rows, and NOT IN to the letter of its NULLs."""

from __future__ import annotations

from sqlglot import exp

from velostream.sql.delta_pieces import VALUE, Cut, Pieces, from_piece, is_piece, value_of
from velostream.sql.delta_places import Places, has_one_row, is_one_row
from velostream.sql.functions import is_aggregate_call
from velostream.sql.grouping import bare_item
from velostream.sql.naming import alias, identifier, plain_column
from velostream.sql.parentheses import conjuncts, without_parentheses
from velostream.sql.resolve import Resolution
from velostream.sql.scope import origin_of, scope_of
from velostream.sql.shape import from_items, is_aggregated, nested_queries, outermost_select

_PLAIN = ("kind", "expressions", "from_", "joins", "where", "hint")


def cut_scalars(tree: exp.Expr, resolution: Resolution) -> Cut | None:
    """Every subquery that has one value for all rows is a piece of one row."""
    select = outermost_select(tree)
    if select is None:
        return None
    pieces = Pieces(tree)
    for nested in list(nested_queries(select)):
        inner = nested.this if isinstance(nested, exp.Subquery) else nested
        if not isinstance(inner, exp.Select) or not _is_alone(inner) or is_one_row(inner, resolution):
            continue
        if isinstance(nested.parent, exp.Exists):
            counted = inner.copy()
            counted.set("expressions", [alias(exp.GT(this=_count(), expression=exp.Literal.number(0)), VALUE)])
            if _is_plain(inner):
                nested.parent.replace(value_of(pieces.add(counted)))
        elif _is_scalar(nested) and _has_one_value(inner):
            results = _Results(bare_item(inner.expressions[0]))
            inner.set("expressions", results.items)
            inner.set("order", None)
            read = exp.Select(expressions=[results.over], from_=from_piece(pieces.add(inner.copy())))
            nested.replace(exp.Subquery(this=read))
    return pieces.cut(tree)


class _Results:
    """The aggregates of an expression, and the expression over their results `a0…`, whose types are plain to see.

    `largest`: over the largest of the results, which are those of one row or none.
    """

    def __init__(self, expression: exp.Expr, *, largest: bool = False) -> None:
        self.items: list[exp.Expr] = []
        self._largest = largest
        self.over = expression.copy().transform(self._read)

    def _read(self, node: exp.Expr) -> exp.Expr:
        if not is_aggregate_call(node):
            return node
        name = f"a{len(self.items)}"
        self.items.append(alias(node.copy(), name))
        return exp.Max(this=plain_column(name)) if self._largest else plain_column(name)


def cut_exclusions(tree: exp.Expr, resolution: Resolution) -> Cut | None:
    """`x NOT IN (subquery)` that every row must fulfil: no member equals x, and no NULL makes that unknown."""
    select = outermost_select(tree)
    where = select.args.get("where") if select is not None else None
    if select is None or where is None:
        return None
    pieces = Pieces(tree)
    places = Places(resolution)
    for condition in conjuncts(where.this):
        inside = without_parentheses(condition.this) if isinstance(condition, exp.Not) else None
        if not isinstance(inside, exp.In) or not isinstance(inside.args.get("query"), exp.Query):
            continue
        query = inside.args["query"]
        members = query.this if isinstance(query, exp.Subquery) else query
        if not isinstance(members, exp.Select) or not _is_alone(members) or len(members.expressions) != 1:
            continue
        if members.expressions[0].is_star or next(nested_queries(members), None) is not None:
            continue
        if any(_is_vague(column) for column in inside.find_all(exp.Column)):
            continue
        if not _is_plain(members):
            return _with_named_members(tree, members, pieces)
        apart = _with_own_names(members)
        excluded = _excluded(_qualified(inside.this), apart, places, pieces, outer_joined=_joins_outer(select))
        condition.replace(excluded)
        return Cut(tree, tuple(pieces.found))
    return None


def cut_lookups(tree: exp.Expr, resolution: Resolution) -> Cut | None:
    """An aggregate of the rows that equal the outer one in some columns is looked up among those of all such values."""
    select = outermost_select(tree)
    if select is None:
        return None
    pieces = Pieces(tree)
    for nested in list(nested_queries(select)):
        inner = nested.this if isinstance(nested, exp.Subquery) else nested
        if not isinstance(inner, exp.Select) or any(is_piece(item, resolution) for item in from_items(inner)):
            continue
        if _is_scalar(nested) and _has_one_value(inner) and not _is_alone(inner):
            found = _looked_up(inner, pieces)
            if found is not None:
                nested.replace(exp.Subquery(this=found))
    return pieces.cut(tree)


def _looked_up(inner: exp.Select, pieces: Pieces) -> exp.Select | None:
    scope = scope_of(inner)
    where = inner.args.get("where")
    item = bare_item(inner.expressions[0])
    if where is None or not _is_null_of_nothing(item) or next(nested_queries(inner), None) is not None:
        return None
    own = [condition for condition in conjuncts(where.this) if _is_within(condition, scope)]
    outer = [condition for condition in conjuncts(where.this) if not _is_within(condition, scope)]
    pairs = [_sides(condition, scope) for condition in outer]
    known = [pair for pair in pairs if pair is not None]
    keys = [key for key, _ in known]
    joins = inner.args.get("joins") or ()
    if len(known) < len(pairs) or not all(_is_within(part, scope) for part in (item, *joins)):
        return None
    if len({origin_of(key) for key in keys}) < len(keys):
        return None
    piece = inner.copy()
    named = [alias(key.copy(), f"k{number}") for number, key in enumerate(keys)]
    results = _Results(item, largest=True)
    piece.set("expressions", [*named, *results.items])
    piece.set("where", exp.Where(this=exp.and_(*own)) if own else None)
    piece.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    name = pieces.add(piece)
    equal = [
        exp.EQ(this=plain_column(f"k{number}", table=name), expression=_qualified(value))
        for number, (_, value) in enumerate(known)
    ]
    return exp.Select(
        expressions=[results.over],
        from_=from_piece(name),
        where=exp.Where(this=exp.and_(*equal)),
    )


def _sides(condition: exp.Expr, scope: int | None) -> tuple[exp.Expr, exp.Expr] | None:
    """The column of a subquery and that of the query around it which a condition says are equal."""
    if not isinstance(condition, exp.EQ):
        return None
    sides = [without_parentheses(side) for side in (condition.this, condition.expression)]
    if any(not isinstance(side, exp.Column) or _is_vague(side) for side in sides):
        return None
    inside = [side for side in sides if _is_within(side, scope)]
    outside = [side for side in sides if not _is_within(side, scope)]
    return (inside[0], outside[0]) if len(inside) == len(outside) else None


def _is_within(part: exp.Expr, scope: int | None) -> bool:
    """Whether all columns are those of one SELECT."""
    return all(
        (origin := origin_of(column)) is not None and origin.scope == scope for column in part.find_all(exp.Column)
    )


def _is_null_of_nothing(item: exp.Expr) -> bool:
    """Whether an expression of aggregates is NULL over no rows: arithmetic of aggregates that are."""
    if isinstance(item, exp.Sum | exp.Avg | exp.Min | exp.Max):
        return True
    if isinstance(item, exp.Paren | exp.Neg | exp.Cast):
        return _is_null_of_nothing(item.this)
    if isinstance(item, exp.Add | exp.Sub | exp.Mul | exp.Div):
        return any(_is_null_of_nothing(part) for part in (item.this, item.expression)) and all(
            isinstance(part, exp.Literal) or _is_null_of_nothing(part) for part in (item.this, item.expression)
        )
    return False


def cut_members(tree: exp.Expr, _: Resolution) -> Cut | None:
    """The members of `x IN (subquery)` are a piece, where they are more than rows of one table."""
    select = outermost_select(tree)
    where = select.args.get("where") if select is not None else None
    pieces = Pieces(tree)
    for condition in conjuncts(where.this) if where is not None else ():
        query = condition.args.get("query") if isinstance(condition, exp.In) else None
        members = query.this if isinstance(query, exp.Subquery) else query
        if not isinstance(members, exp.Select) or not _is_alone(members) or len(members.expressions) != 1:
            continue
        simple = _is_plain(members) and len(from_items(members)) == 1 and next(nested_queries(members), None) is None
        if members.expressions[0].is_star or simple:
            continue
        piece = members.copy()
        piece.set("expressions", [alias(bare_item(piece.expressions[0]), VALUE)])
        if _is_plain(members):
            piece.set("distinct", exp.Distinct())
        members.replace(exp.Select(expressions=[plain_column(VALUE)], from_=from_piece(pieces.add(piece))))
    return pieces.cut(tree)


def _with_named_members(tree: exp.Expr, members: exp.Select, pieces: Pieces) -> Cut | None:
    """The subquery of NOT IN as a piece of its own, read by a plain one."""
    piece = members.copy()
    piece.set("expressions", [alias(bare_item(piece.expressions[0]), VALUE)])
    members.replace(exp.Select(expressions=[plain_column(VALUE)], from_=from_piece(pieces.add(piece))))
    return pieces.cut(tree)


def _is_vague(column: exp.Column) -> bool:
    """Whether a column is not plainly one of a relation."""
    origin = origin_of(column)
    return origin is None or bool(origin.fields)


def _with_own_names(select: exp.Select) -> exp.Select:
    """A copy of a subquery whose relations have names that the queries around it can't have, and columns of those."""
    copied = select.copy()
    names: dict[str, str] = {}
    for number, item in enumerate(from_items(copied)):
        names[str(item.alias_or_name).lower()] = name = f"member of {number}"
        item.set("alias", exp.TableAlias(this=identifier(name)))
    for column in copied.find_all(exp.Column):
        origin = origin_of(column)
        if origin is not None and not column.is_star:
            column.set("table", identifier(names[origin.source.lower()]))
    return copied


def _qualified(expression: exp.Expr) -> exp.Expr:
    """A copy whose columns say which relation they are of, to be understood inside a subquery, too."""
    copied = expression.copy()
    for column in copied.find_all(exp.Column):
        origin = origin_of(column)
        if origin is not None:
            column.set("table", identifier(origin.source))
    return copied


def _joins_outer(select: exp.Select) -> bool:
    """Whether a column that is NOT NULL may be NULL in a row of the joins."""
    return any(join.args.get("side") for join in select.args.get("joins") or ())


def _excluded(value: exp.Expr, members: exp.Select, places: Places, pieces: Pieces, *, outer_joined: bool) -> exp.Expr:
    member = bare_item(members.expressions[0])
    equal = exp.EQ(this=exp.paren(member.copy(), copy=False), expression=exp.paren(value.copy(), copy=False))
    where = members.args.get("where")
    inside = members.copy()
    inside.set("expressions", [exp.Literal.number(1)])
    inside.set("distinct", None)
    inside.set("where", exp.Where(this=exp.and_(where.this.copy(), equal) if where is not None else equal))
    conditions: list[exp.Expr] = [exp.Not(this=exp.Exists(this=inside))]
    value_known = not places.may_be_null(value) and not outer_joined
    member_known = not places.may_be_null(member) and not _joins_outer(members)
    if not (value_known and member_known):
        facts = members.copy()
        facts.set("distinct", None)
        facts.set("order", None)
        counted = exp.Count(this=member.copy())
        facts.set(
            "expressions",
            [
                alias(exp.EQ(this=_count(), expression=exp.Literal.number(0)), "nothing"),
                alias(exp.EQ(this=_count(), expression=counted), "complete"),
            ],
        )
        name = pieces.add(facts)
        is_known = exp.Not(this=exp.Is(this=exp.paren(value.copy(), copy=False), expression=exp.Null()))
        conditions.append(
            exp.paren(exp.or_(value_of(name, "nothing"), exp.and_(is_known, value_of(name, "complete"))), copy=False)
        )
    return exp.paren(exp.and_(*conditions), copy=False)


def _is_alone(select: exp.Select) -> bool:
    """Whether a subquery reads nothing of the queries around it."""
    scopes = {scope_of(inner) for inner in select.find_all(exp.Select)}
    return all(
        (origin := origin_of(column)) is not None and origin.scope in scopes for column in select.find_all(exp.Column)
    )


def _is_plain(select: exp.Select) -> bool:
    """Whether a SELECT only joins, filters and projects."""
    return not is_aggregated(select) and not any(v for clause, v in select.args.items() if clause not in _PLAIN)


def _is_scalar(nested: exp.Query) -> bool:
    return isinstance(nested, exp.Subquery) and not isinstance(nested.parent, exp.In | exp.Exists | exp.Any | exp.All)


def _has_one_value(select: exp.Select) -> bool:
    """Whether a SELECT gives one row and one column whatever it reads."""
    return has_one_row(select) and len(select.expressions) == 1


def _count() -> exp.Count:
    return exp.Count(this=exp.Star())
