"""One column reference to what it means, or to the error that says why it means nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from velostream.errors import ResolveError, SqlError, did_you_mean
from velostream.sql.functions import SESSION_WORDS, TIME_UNITS
from velostream.sql.pointing import pointer
from velostream.sql.scope import Frame, Origin, Source, set_origin

_PREFERS_OUTPUTS = ("order", "sort", "having", "qualify")
_SEES_LABELS = ("expressions", "group", "cluster", "distribute", "windows")


class ColumnResolver:
    """Resolves columns frame by frame, from the innermost outwards, as Spark does.

    Lenient by rule: a reference is wrong only if every frame it could mean is fully known and none has it.
    """

    def __init__(self, *, problems: list[SqlError], text: str, extra: Sequence[str] = ()) -> None:
        self._problems = problems
        self._text = text
        self._extra = frozenset(extra)

    def resolve(self, column: exp.Column, *, frame: Frame, clause: str) -> None:
        """Note what a column means, or a problem."""
        parts = [part for part in column.parts if isinstance(part, exp.Identifier)]
        names = tuple(str(part.name) for part in parts)
        if column.is_star:
            self._star(column, names, frame=frame)
        elif not names or _is_lambda_variable(column, names[0]):
            return
        elif len(names) == 1:
            self._unqualified(column, names, frame=frame, clause=clause)
        else:
            self._qualified(column, parts, frame=frame, clause=clause)

    def _star(self, column: exp.Column, names: tuple[str, ...], *, frame: Frame) -> None:
        if not names:
            return
        for visible in _outwards(frame):
            if visible.source(names[-1]) or visible.having(names[0]) or not visible.complete:
                return
            source = visible.source(names[0])
            if source is not None:
                if source.columns.find(names[1]) is None and source.columns.complete:
                    place = pointer(column.parts[1], self._text)
                    known = source.columns.names
                    self._problems.append(ResolveError.unknown("column", names[1], known=known, **place))
                return
        self._unknown_alias(column.parts[0], names[0], frame=frame)

    def _unqualified(self, column: exp.Column, names: tuple[str, ...], *, frame: Frame, clause: str) -> None:
        name = names[0]
        if clause in _PREFERS_OUTPUTS and frame.outputs.find(name) is not None:
            return
        for visible in _outwards(frame):
            if self._found_in(column, names, visible, hidden=clause == "on"):
                return
            if visible is frame and _is_output(frame, name, clause=clause):
                return
            if not visible.complete:
                return
        if name.lower() in SESSION_WORDS or name.lower() in self._extra or _is_time_unit(column):
            return
        known = {name for visible in _outwards(frame) for name in visible.names()}
        if clause in _PREFERS_OUTPUTS:
            known |= set(frame.outputs.names)
        self._problems.append(ResolveError.unknown("column", name, known=known, **pointer(column.this, self._text)))

    def _found_in(self, column: exp.Column, names: tuple[str, ...], frame: Frame, *, hidden: bool) -> bool:
        """Whether a frame answers to the first of the names as a column; ambiguity is an answer with a problem."""
        name, fields = names[0], names[1:]
        merged = frame.merged.get(name.lower())
        if merged is not None:
            if merged.source is not None:
                set_origin(column, Origin(frame.scope, merged.source, merged.name, fields))
            return True
        sources = frame.having(name, hidden=hidden) or frame.having(name, hidden=True)
        if not sources:
            return False
        if len(sources) == 1:
            self._note(column, frame, sources[0], name, fields)
        elif len({source.alias.lower() for source in sources}) > 1:
            self._ambiguous(column, name, sources)
        return True

    def _qualified(self, column: exp.Column, parts: list[exp.Identifier], *, frame: Frame, clause: str) -> None:
        names = tuple(str(part.name) for part in parts)
        missing_in: Source | None = None
        for visible in _outwards(frame):
            source = visible.source(names[0])
            if source is not None:
                if not source.columns.complete and source.columns.find(names[1]) is None:
                    return
                if source.columns.find(names[1]) is not None:
                    self._note(column, visible, source, names[1], names[2:])
                    return
                missing_in = missing_in or source
            if self._found_in(column, names, visible, hidden=clause == "on"):
                return
            if not visible.complete and missing_in is None:
                return
            if len(names) > 2 and visible.source(names[1]) is not None:
                return
        if _is_output(frame, names[0], clause=clause):
            return
        if missing_in is not None:
            place = pointer(parts[1], self._text)
            self._problems.append(ResolveError.unknown("column", names[1], known=missing_in.columns.names, **place))
        else:
            self._unknown_alias(parts[0], names[0], frame=frame)

    def _unknown_alias(self, part: exp.Expr, name: str, *, frame: Frame) -> None:
        known = {alias for visible in _outwards(frame) for alias in visible.aliases() if alias}
        self._problems.append(
            ResolveError(
                f'alias "{name}" does not exist',
                detail=f"known aliases: {', '.join(sorted(known)) or 'none'}",
                hint=did_you_mean(name, sorted(known)),
                code="unknown-alias",
                width=len(name),
                **pointer(part, self._text),
            )
        )

    def _ambiguous(self, column: exp.Column, name: str, sources: Sequence[Source]) -> None:
        choices = " or ".join(f"{source.alias}.{source.columns.find(name)}" for source in sources)
        self._problems.append(
            ResolveError(
                f'column "{name}" is ambiguous',
                detail="it is in " + " and ".join(f'"{source.alias}"' for source in sources),
                hint=f"write {choices}",
                code="ambiguous-column",
                width=len(name),
                **pointer(column.this, self._text),
            )
        )

    def _note(self, column: exp.Column, frame: Frame, source: Source, name: str, fields: tuple[str, ...]) -> None:
        stored = source.columns.find(name) or name
        set_origin(column, Origin(frame.scope, source.alias, stored, fields))


def _is_output(frame: Frame, name: str, *, clause: str) -> bool:
    """Whether a name may mean a select item where no source has it."""
    if clause in _SEES_LABELS:
        return name.lower() in frame.labels
    if clause not in _PREFERS_OUTPUTS:
        return False
    return frame.outputs.find(name) is not None or (not frame.sources and not frame.outputs.complete)


def _outwards(frame: Frame) -> Iterator[Frame]:
    visible: Frame | None = frame
    while visible is not None:
        yield visible
        visible = visible.outer


def _is_time_unit(column: exp.Column) -> bool:
    """Whether a word is the unit of a call such as `timestampdiff(MONTH, a, b)`."""
    call = column.parent
    return isinstance(call, exp.Func) and str(column.name).upper() in TIME_UNITS and call.expressions[:1] == [column]


def _is_lambda_variable(column: exp.Column, name: str) -> bool:
    enclosing = column.find_ancestor(exp.Lambda)
    while enclosing is not None:
        if any(str(variable.name).lower() == name.lower() for variable in enclosing.expressions):
            return True
        enclosing = enclosing.find_ancestor(exp.Lambda)
    return False
