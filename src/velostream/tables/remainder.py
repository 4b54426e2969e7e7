"""The part of a condition that a store leaves to us, evaluated over the rows it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from velostream.model.expression import Call, Expression, columns_of
from velostream.model.schema import Schema
from velostream.model.types import render_type
from velostream.tables.memory.evaluate import CannotCompile, Compiled, column_of, compile_expression


@dataclass(frozen=True, slots=True)
class Remainder:
    """A compiled condition and the columns to read for it, which are never none."""

    condition: Expression
    columns: tuple[str, ...]
    _compiled: Compiled

    @classmethod
    def of(cls, parts: Sequence[Expression], schema: Schema) -> Remainder | None:
        """The conjunction of conditions; None for none. Raises `CannotCompile` for what only Spark evaluates."""
        if not parts:
            return None
        condition = conjunction(parts)
        compiled = compile_expression(condition, schema)
        if not (pa.types.is_boolean(compiled.type) or pa.types.is_null(compiled.type)):
            raise CannotCompile(f"a condition is BOOLEAN, not {render_type(compiled.type)}")
        columns = tuple(sorted({schema.column(name).name for name in columns_of(condition)}))
        # Arrow doesn't count rows without columns.
        return cls(condition, columns or schema.names[:1], compiled)

    def kept(self, rows: pa.Table) -> pa.Table:
        """The rows for which the condition is true."""
        return rows.filter(column_of(self._compiled.run(rows), rows.num_rows, pa.bool_()))


def conjunction(parts: Sequence[Expression]) -> Expression:
    """All of them, as a balanced tree: a condition may have thousands."""
    while len(parts) > 1:
        pairs: list[Expression] = [Call("and", pair) for pair in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    return parts[0]
