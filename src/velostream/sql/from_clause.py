"""The FROM of one SELECT: its sources from left to right, what `*` means, what USING merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from velostream.sql.scope import Columns, Source, StarColumn


@dataclass
class FromClause:
    """The FROM of one SELECT while it is read, left to right."""

    sources: list[Source] = field(default_factory=list)
    star: list[StarColumn] | None = field(default_factory=list)
    merged: dict[str, StarColumn] = field(default_factory=dict)
    hidden: list[StarColumn] = field(default_factory=list)
    """Columns that USING took out of `*`, in the order Spark puts them in front of `t.*`."""

    @classmethod
    def of(cls, source: Source) -> FromClause:
        star = [StarColumn(source.alias, name) for name in source.columns.starred] if source.columns.complete else None
        return cls([source], star)

    def absorb(self, right: FromClause) -> None:
        """Put another part of the FROM to the right of this one."""
        self.sources += right.sources
        self.merged |= right.merged
        self.hidden += right.hidden
        self.star = None if self.star is None or right.star is None else self.star + right.star

    def hide(self, right: FromClause) -> None:
        """Put the right side of a SEMI or ANTI join, which gives no columns."""
        self.sources += [replace(source, hidden=True) for source in right.sources]

    def merge(self, names: Sequence[str], *, side: str, right: Sequence[Source]) -> None:
        """JOIN … USING: the named columns come first in `*`, once."""
        left = self.sources[: len(self.sources) - len(right)]
        left_keys = [
            self.merged.get(name.lower()) or _column_of(left, name) or StarColumn(None, name) for name in names
        ]
        right_keys = [_column_of(right, name) or StarColumn(None, name) for name in names]
        match side:
            case "RIGHT":
                shown, hidden = right_keys, left_keys
            case "FULL":
                shown, hidden = [StarColumn(None, name) for name in names], left_keys + right_keys
            case _:
                shown, hidden = left_keys, right_keys
        self.merged |= {column.name.lower(): column for column in shown}
        self.hidden = hidden + self.hidden
        if self.star is not None:
            lower = {name.lower() for name in names}
            self.star = shown + [column for column in self.star if column.name.lower() not in lower]


def _column_of(sources: Sequence[Source], name: str) -> StarColumn | None:
    for source in sources:
        stored = source.columns.find(name)
        if stored is not None:
            return StarColumn(source.alias, stored)
    return None


def renamed(columns: Columns, node: exp.Expr) -> Columns:
    """The columns under the names of an alias with a column list, `AS q(a, b)`."""
    alias = node.args.get("alias")
    listed = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    if not listed:
        return columns
    return Columns(tuple(str(part.name) for part in listed), complete=True)


def aliased(inner: FromClause, node: exp.Expr) -> Columns:
    """The columns of a join in parentheses that has an alias of its own."""
    if inner.star is None or node.args.get("pivots"):
        return renamed(Columns(), node)
    return renamed(Columns(tuple(column.name for column in inner.star), complete=True), node)


def joins_within(select: exp.Select) -> list[exp.Join]:
    """The joins of a FROM, those in parentheses or nested without them included, but not those of subqueries."""
    found: list[exp.Join] = []
    pending: list[exp.Expr] = [*(select.args.get("joins") or ())]
    if select.args.get("from_") is not None:
        pending.append(select.args["from_"].this)
    while pending:
        node = pending.pop(0)
        if isinstance(node, exp.Join):
            found.append(node)
            pending.append(node.this)
        elif isinstance(node, exp.Table) or (isinstance(node, exp.Subquery) and isinstance(node.this, exp.Table)):
            pending += node.args.get("joins") or []
            if isinstance(node, exp.Subquery):
                pending.append(node.this)
    return found
