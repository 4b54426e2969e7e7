"""Conditions as a relational store runs them: what it answers as Spark would, and what is left to us.

Pushed down are comparisons of columns with constants and columns of one type, IN, IS NULL, AND, OR and NOT over them,
where the column's codec vouches for the store's answer. Everything else (arithmetic, functions, LIKE, casts) differs
from store to store in overflow, rounding, collation or case, and stays with us.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from velostream.model.expression import Call, ColumnRef, Expression, Literal, conjuncts
from velostream.tables.relational.dialect import Dialect
from velostream.tables.relational.layout import Layout, StoredColumn
from velostream.tables.remainder import Remainder

_CACHED = 1024
_MOST_CONJUNCTS = 200
_DEEPEST = 100
"""Stores limit how large and how deep a condition may be, some to a thousand levels."""
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
_EQUALITIES = ("=", "<>", "<=>")
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class RelationalCondition:
    """A condition compiled for one table. A `CompiledCondition`."""

    text: str
    """What the store evaluates, as the text after WHERE; empty when it is nothing."""
    parameters: tuple[Any, ...]
    access: str
    rest: Remainder | None
    """What the store can't evaluate as Spark does; we do, over the rows the store found."""

    @property
    def remainder(self) -> Expression | None:
        return None if self.rest is None else self.rest.condition

    @property
    def remainder_columns(self) -> tuple[str, ...]:
        """The columns that `kept` needs."""
        return () if self.rest is None else self.rest.columns

    def kept(self, rows: pa.Table) -> pa.Table:
        """The rows for which the remainder is true as well."""
        return rows if self.rest is None else self.rest.kept(rows)


EVERYTHING = RelationalCondition("", (), "scan", None)


class ConditionCompiler:
    """Compiles conditions over one table and keeps those used last. For any thread."""

    def __init__(self, dialect: Dialect, layout: Layout) -> None:
        self._dialect = dialect
        self._layout = layout
        self._known: OrderedDict[Expression, RelationalCondition] = OrderedDict()
        self._indexes: frozenset[tuple[str, ...]] = frozenset()
        self._lock = threading.Lock()

    @property
    def indexes(self) -> frozenset[tuple[str, ...]]:
        """Column sets by which rows are found without looking at all, beside the key."""
        return self._indexes

    @indexes.setter
    def indexes(self, indexes: frozenset[tuple[str, ...]]) -> None:
        with self._lock:
            self._indexes = indexes
            self._known.clear()

    def compile(self, condition: Expression | None) -> RelationalCondition:
        """Raises `NotFoundError` for an unknown column, and `CannotCompile` for what only Spark evaluates."""
        if condition is None:
            return EVERYTHING
        with self._lock:
            known = self._known.get(condition)
            if known is not None:
                self._known.move_to_end(condition)
                return known
        made = self._compile(condition)
        with self._lock:
            self._known[condition] = made
            if len(self._known) > _CACHED:
                self._known.popitem(last=False)
        return made

    def _compile(self, condition: Expression) -> RelationalCondition:
        schema = self._layout.schema
        # All of it must be known to us: a column that doesn't exist, or a wrong type, is an error wherever it stands.
        Remainder.of([condition], schema)
        rendering = _Rendering(self._dialect, self._layout)
        texts: list[str] = []
        left: list[Expression] = []
        tied: set[str] = set()
        for part in conjuncts(condition):
            text = rendering.tried(part) if len(texts) < _MOST_CONJUNCTS else None
            if text is None:
                left.append(part)
            else:
                texts.append(text)
                tied |= _tied_column(part, self._layout)
        return RelationalCondition(
            text=" AND ".join(f"({text})" for text in texts),
            parameters=tuple(rendering.parameters),
            access=self._access(tied),
            rest=Remainder.of(left, schema),
        )

    def _access(self, tied: set[str]) -> str:
        """How rows are found when these columns are tied to constants."""
        key = self._layout.schema.key
        if key and tied.issuperset(key):
            return "key"
        return "index" if any(tied.issuperset(columns) for columns in self._indexes) else "scan"


class _CannotPush(Exception):  # noqa: N818 - no fault of anybody's
    """An expression that the store might answer otherwise than Spark."""


class _Rendering:
    """Turns expressions into SQL text and the values to bind, which it collects."""

    def __init__(self, dialect: Dialect, layout: Layout) -> None:
        self._dialect = dialect
        self._layout = layout
        self.parameters: list[Any] = []

    def tried(self, conjunct: Expression) -> str | None:
        """The text of a conjunct; None, and nothing bound, when it can't be pushed down."""
        bound = len(self.parameters)
        try:
            return self._condition(conjunct, depth=0)
        except _CannotPush:
            del self.parameters[bound:]
            return None

    def _condition(self, expression: Expression, *, depth: int) -> str:
        if depth > _DEEPEST:
            raise _CannotPush
        top = depth == 0
        match expression:
            case Call("and" | "or" as operator, (left, right)):
                texts = [self._condition(side, depth=depth + 1) for side in (left, right)]
                return f"({f' {operator.upper()} '.join(texts)})"
            case Call("not", (inner,)):
                return f"(NOT {self._condition(inner, depth=depth + 1)})"
            case Call("is_null", (ColumnRef(name),)):
                return f"{self._name(self._column(name))} IS NULL"
            case Call("in", (ColumnRef(name), *items)):
                return self._membership(self._column(name), items, top=top)
            case Call(operator, (ColumnRef(one), ColumnRef(other))) if operator in _COMPARISONS:
                return self._columns_compared(operator, self._column(one), self._column(other))
            case Call(operator, (ColumnRef(name), Literal() as literal)) if operator in _COMPARISONS:
                return self._compared(operator, self._column(name), literal, top=top)
            case Call(operator, (Literal() as literal, ColumnRef(name))) if operator in _COMPARISONS:
                return self._compared(_MIRRORED.get(operator, operator), self._column(name), literal, top=top)
            case ColumnRef(name):
                column = self._column(name)
                if pa.types.is_boolean(column.codec.type):
                    return self._compared("=", column, Literal(True, pa.bool_()), top=False)
        raise _CannotPush

    def _column(self, name: str) -> StoredColumn:
        return self._layout.by_name[self._layout.schema.column(name).name]

    def _name(self, column: StoredColumn) -> str:
        return self._dialect.quote(column.stored_name)

    def _compared(self, operator: str, column: StoredColumn, literal: Literal, *, top: bool) -> str:
        if literal.value is None:
            if operator == "<=>":
                return f"{self._name(column)} IS NULL"
            raise _CannotPush
        template = _template(operator, column)
        left, right = template.format(self._name(column)), template.format(self._bound(column, literal))
        if operator == "<=>":
            return f"({left} = {right} AND {self._name(column)} IS NOT NULL)"
        if operator == "=" and top:
            return self._dialect.equality_condition(self._layout, column, left, [right])
        return f"{left} {operator} {right}"

    def _columns_compared(self, operator: str, one: StoredColumn, other: StoredColumn) -> str:
        template = _template(operator, one)
        if one.codec.type != other.codec.type or template != _template(operator, other):
            raise _CannotPush
        left, right = template.format(self._name(one)), template.format(self._name(other))
        return self._dialect.same(left, right) if operator == "<=>" else f"{left} {operator} {right}"

    def _membership(self, column: StoredColumn, items: Sequence[Expression], *, top: bool) -> str:
        literals = [item for item in items if isinstance(item, Literal) and item.value is not None]
        if not literals or len(literals) < len(items):
            raise _CannotPush
        template = _template("=", column)
        left = template.format(self._name(column))
        values = [template.format(self._bound(column, literal)) for literal in literals]
        if top:
            return self._dialect.equality_condition(self._layout, column, left, values)
        return f"{left} IN ({', '.join(values)})"

    def _bound(self, column: StoredColumn, literal: Literal) -> str:
        if literal.type != column.codec.type or len(self.parameters) == self._dialect.most_parameters:
            raise _CannotPush
        encoded = column.codec.encode_one(literal.value)
        if encoded is None:
            raise _CannotPush
        self.parameters.append(encoded)
        return self._dialect.marker(len(self.parameters) - 1)


def _template(operator: str, column: StoredColumn) -> str:
    template = column.codec.equality if operator in _EQUALITIES else column.codec.order
    if template is None:
        raise _CannotPush
    return template


def _tied_column(part: Expression, layout: Layout) -> set[str]:
    """The column that a pushed conjunct ties to constants."""
    match part:
        case (
            Call("=", (ColumnRef(name), Literal()))
            | Call("=", (Literal(), ColumnRef(name)))
            | Call("in", (ColumnRef(name), *_))
        ):
            return {layout.schema.column(name).name}
    return set()
