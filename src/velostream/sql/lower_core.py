"""What all lowering shares: names, places, types, casts, and the rule about operations that can fail."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from sqlglot import exp

from velostream.errors import ResolveError, ValidationError
from velostream.model.expression import Call, Case, Cast, ColumnRef, Expression, Literal
from velostream.model.schema import Schema
from velostream.sql.coercion import is_integer, is_total, may_overflow, type_of
from velostream.sql.constants import CastError, NotConstant, cast_value
from velostream.sql.places import place_of


class NotLowerable(Exception):  # noqa: N818 - not an error: Spark evaluates it instead
    """An expression without a lowered form; `reason` is for EXPLAIN."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LoweringCore(ABC):
    """One expression on its way from a tree to plain data. Used once, by one thread."""

    def __init__(self, schema: Schema, *, text: str, qualifiers: Collection[str] | None) -> None:
        self.schema = schema
        self.text = text
        self.qualifiers = None if qualifiers is None else {name.lower() for name in qualifiers}
        self.guards = 0
        """How many AND, OR, CASE … may spare rows what is lowered now."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        self.guards += 1
        try:
            yield
        finally:
            self.guards -= 1

    @abstractmethod
    def lower(self, node: exp.Expr) -> Expression:
        """The lowered form of a node; `NotLowerable`, or a `SqlError`."""

    def type(self, expression: Expression) -> pa.DataType:
        return type_of(expression, self.schema)

    def cast(self, value: Expression, target: pa.DataType, node: exp.Expr) -> Expression:
        source = self.type(value)
        if source == target:
            return value
        if isinstance(value, Literal):
            if pa.types.is_nested(source) or pa.types.is_nested(target):
                raise NotLowerable("Spark casts nested values")
            try:
                return Literal(cast_value(value.value, source, target), target)
            except CastError as error:
                raise self.refused(node, error) from error
            except NotConstant as error:
                raise NotLowerable("Spark casts this constant") from error
        if not is_total(source, target):
            raise NotLowerable("Spark casts this column")
        return Cast(value, target)

    def resolve(self, column: exp.Column) -> ColumnRef | None:
        """The column meant; None for a field inside of one."""
        first = column.parts[0]
        if len(column.parts) == 1:
            found = self.schema.find(first.name)
            if found is None:
                raise ResolveError.unknown("column", first.name, known=self.schema.names, **self.place(first))
            return ColumnRef(found.name)
        if self.qualifiers is None or first.name.lower() in self.qualifiers:
            found = self.schema.find(column.parts[1].name)
            if found is not None:
                return ColumnRef(found.name) if len(column.parts) == 2 else None
        inside = self.schema.find(first.name)
        if inside is not None and pa.types.is_nested(inside.type):
            return None
        if self.qualifiers is not None and first.name.lower() not in self.qualifiers:
            raise ResolveError.unknown("table", first.name, known=self.qualifiers, **self.place(first))
        raise ResolveError.unknown(
            "column", column.parts[1].name, known=self.schema.names, **self.place(column.parts[1])
        )

    def check_columns(self, tree: exp.Expr) -> None:
        """Refuse unknown columns, in parts that Spark evaluates too; names inside subqueries aren't ours to know."""
        if tree.find(exp.Query, exp.Lambda) is not None:
            return
        for column in tree.find_all(exp.Column):
            if not isinstance(column.this, exp.Star):
                self.resolve(column)

    def check_failing(self, expression: Expression, *, guarded: bool = False) -> None:
        """Refuse an operation that can fail for a row that Spark might not evaluate it for.

        Spark skips what AND, OR, CASE and COALESCE have decided already, and the second operand of a row whose first
        is NULL; a division evaluates its divisor first.
        """
        match expression:
            case ColumnRef() | Literal():
                return
            case Cast(value, _):
                parts: Sequence[Expression] = (value,)
            case Case(branches, otherwise):
                parts = [part for branch in branches for part in branch] + ([] if otherwise is None else [otherwise])
            case Call(name, arguments):
                if guarded and self._can_fail(name, arguments):
                    raise NotLowerable(f"{name} can fail and stands behind a condition")
                parts = arguments[::-1] if name in ("/", "%") else arguments
        first, *later = parts
        self.check_failing(first, guarded=guarded)
        for part in later:
            self.check_failing(part, guarded=guarded or not isinstance(first, Literal))

    def _can_fail(self, name: str, arguments: Sequence[Expression]) -> bool:
        if name in ("/", "%"):
            return True
        if name in ("neg", "abs"):
            return is_integer(self.type(arguments[0]))
        return name in ("+", "-", "*") and may_overflow(name, *map(self.type, arguments))

    def refused(self, node: exp.Expr, error: CastError) -> Exception:
        """What a constant that can't be computed means here."""
        if self.guards:
            return NotLowerable(str(error))
        return ValidationError(str(error), code="invalid-value", **self.place(node))

    def place(self, node: exp.Expr) -> dict[str, Any]:
        """Where an error points to."""
        place = place_of(node)
        return {"line": place.line, "column": place.column, "text": self.text or None}
