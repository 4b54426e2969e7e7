"""The types of the columns that paths begin with, as far as they are plain to see in a resolved query."""

from __future__ import annotations

import pyarrow as pa
from sqlglot import exp

from velostream.errors import ValidationError
from velostream.model.types import parse_type
from velostream.model.variant import is_variant
from velostream.sql.functions import function_name
from velostream.sql.keytypes import field_type
from velostream.sql.naming import output_name
from velostream.sql.outputs import expand_star
from velostream.sql.parentheses import without_parentheses
from velostream.sql.path_values import VALUE_TYPE, VARIANT, ValueType, Variant
from velostream.sql.resolve import Resolution
from velostream.sql.scope import Origin, Source, origin_of, scope_of
from velostream.sql.shape import from_items, outermost_select

_GIVES_VARIANT = frozenset(("parse_json", "try_parse_json", "to_variant_object", "variant_get", "try_variant_get"))
_MAX_DEPTH = 50
"""Queries within queries that a type is looked for in; a recursive CTE has no end."""


class ColumnTypes:
    """Finds the type of a column: of a relation by its schema, of a subquery or CTE by what it selects."""

    def __init__(self, resolution: Resolution) -> None:
        self._resolution = resolution
        self._selects = {
            scope: select for select in resolution.tree.find_all(exp.Select) if (scope := scope_of(select)) is not None
        }

    def of(self, origin: Origin, *, depth: int = 0) -> ValueType | None:
        """The type of a column, or of the field of it that is meant; None when only Spark can tell."""
        source = self._resolution.frames[origin.scope].source(origin.source)
        if source is None or depth > _MAX_DEPTH:
            return None
        found = self._column(source, origin, depth)
        if found is None or isinstance(found, Variant):
            return None if origin.fields else found
        inside = field_type(found, origin.fields) if origin.fields else found
        return VARIANT if inside is not None and is_variant(inside) else inside

    def _column(self, source: Source, origin: Origin, depth: int) -> ValueType | None:
        if source.input is not None:
            schema = self._resolution.input(source.input).target.schema
            column = None if schema is None else schema.find(origin.column)
            if column is None:
                return None
            return VARIANT if is_variant(column.type) else column.type
        select = self._selects.get(origin.scope)
        defined = None if select is None else self._definition(select, source.alias)
        return None if defined is None else self._selected(defined, origin.column, depth)

    def _definition(self, select: exp.Select, alias: str) -> exp.Select | None:
        """The SELECT behind a subquery or CTE of a FROM; None for anything that renames its columns."""
        for item in from_items(select):
            if str(item.alias_or_name).lower() != alias.lower():
                continue
            written = item.args.get("alias")
            if written is not None and written.args.get("columns"):
                return None
            if isinstance(item, exp.Subquery):
                return outermost_select(item.this)
            return self._common_table(item)
        return None

    def _common_table(self, item: exp.Expr) -> exp.Select | None:
        name = str(item.name).lower()
        around: exp.Expr | None = item
        while around is not None:
            clause = around.args.get("with_")
            for cte in clause.expressions if clause is not None else ():
                if str(cte.alias).lower() == name and not cte.args["alias"].args.get("columns"):
                    return outermost_select(cte.this)
            around = around.parent
        return None

    def _selected(self, select: exp.Select, name: str, depth: int) -> ValueType | None:
        scope = scope_of(select)
        for item in select.expressions:
            if item.is_star:
                columns = None if scope is None else expand_star(item, self._resolution.frames[scope])
                for column in columns or ():
                    if column.name.lower() == name.lower() and column.source is not None and scope is not None:
                        return self.of(Origin(scope, column.source, column.name), depth=depth + 1)
            elif output_name(item).lower() == name.lower():
                return self._expression(item.this if isinstance(item, exp.Alias) else item, depth)
        return None

    def _expression(self, node: exp.Expr, depth: int) -> ValueType | None:
        node = without_parentheses(node)
        known = node.meta_get(VALUE_TYPE)
        if isinstance(known, pa.DataType):
            return known
        if isinstance(node, exp.Column):
            origin = origin_of(node)
            return None if origin is None else self.of(origin, depth=depth + 1)
        if isinstance(node, exp.Cast):
            return written_type(node.to.sql(dialect="spark"))
        if function_name(node) in _GIVES_VARIANT:
            return _type_argument(node)
        if function_name(node) == "from_json" and len(node.expressions) > 1 and node.expressions[1].is_string:
            return _json_schema(str(node.expressions[1].this))
        return None


def _type_argument(call: exp.Expr) -> ValueType | None:
    """What a function that deals in VARIANTs gives: one of them, unless it is told a type."""
    if not function_name(call).endswith("variant_get") or len(call.expressions) < 3:
        return VARIANT
    return written_type(str(call.expressions[2].name))


def written_type(text: str) -> ValueType | None:
    """The type that a text names; None when it is none of ours."""
    if text.strip().upper() == "VARIANT":
        return VARIANT
    try:
        return parse_type(text)
    except ValidationError:
        return None


def _json_schema(text: str) -> ValueType | None:
    """The schema of `from_json`: a type, or the columns of a struct."""
    found = written_type(text)
    return found if found is not None else written_type(f"STRUCT<{text}>")
