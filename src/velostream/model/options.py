"""Options of sources, tables and queries: what is known, what it means, how its value is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from velostream.errors import OptionError, VelostreamError
from velostream.model.duration import parse_duration

COPIED = "copied"
"""Set by planning where a table merely copies a source: the source's columns that are the table's key, maybe none.
A kind that declares this option may take a record for the newest value of its key."""
EVOLUTION = "schema.evolution"
"""What becomes of fields that are no columns. Where a statement says nothing they are left out, unless it copies the
source: then the engine has them added."""
SYSTEM_COLUMNS = "system.columns"
"""Set by planning: names with a leading underscore that the query uses. A kind that declares this option adds those of
them that are columns of its own, beside what its records hold."""


class OptionType(StrEnum):
    TEXT = "text"
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    DURATION = "duration"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Option:
    """One option a kind understands. `name` ending in `.*` stands for every name with that prefix."""

    name: str
    summary: str
    type: OptionType = OptionType.TEXT
    default: str | None = None
    choices: tuple[str, ...] = ()

    def covers(self, name: str) -> bool:
        return name == self.name or (self.name.endswith(".*") and name.startswith(self.name[:-1]))


class Options(Mapping[str, str]):
    """Checked option values with typed access; a name that isn't set answers with its default."""

    def __init__(self, values: Mapping[str, str], known: Iterable[Option]) -> None:
        self._values = {name.lower(): str(value) for name, value in values.items()}
        self._known = tuple(known)
        for name, value in self._values.items():
            option = self._option(name)
            if option is None:
                raise OptionError.unknown(name, known=(o.name for o in self._known))
            check_value(option, name, value)

    def _option(self, name: str) -> Option | None:
        return next((option for option in self._known if option.covers(name)), None)

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def text(self, name: str) -> str | None:
        option = self._option(name)
        value = self._values.get(name, option.default if option else None)
        return None if value is None else expand_environment(value)

    def boolean(self, name: str) -> bool:
        return (self.text(name) or "false").lower() in _TRUE

    def integer(self, name: str) -> int | None:
        value = self.text(name)
        return None if value is None else int(value.replace("_", ""))

    def duration(self, name: str) -> timedelta | None:
        value = self.text(name)
        return None if value is None else parse_duration(value)


_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*)(?:(?P<operator>:-|:\?)(?P<rest>[^}]*))?\}")


def check_value(option: Option, name: str, value: str) -> None:
    """Raise `OptionError` unless the value is one the option can take."""
    if "${" in value:
        return
    match option.type:
        case OptionType.BOOLEAN:
            if value.lower() not in _TRUE + _FALSE:
                raise OptionError.value(name, value, expected="true or false")
        case OptionType.INTEGER:
            if not re.fullmatch(r"\d[\d_]*", value.strip()):
                raise OptionError.value(name, value, expected="a whole number")
        case OptionType.NUMBER:
            try:
                float(value)
            except ValueError as error:
                raise OptionError.value(name, value, expected="a number") from error
        case OptionType.DURATION:
            try:
                parse_duration(value)
            except VelostreamError as error:
                raise OptionError.value(name, value, expected="a duration such as 500ms, 30s, 5m, 1h") from error
        case OptionType.CHOICE:
            if value.lower() not in option.choices:
                raise OptionError.value(name, value, expected="one of " + ", ".join(option.choices))
        case OptionType.TEXT:
            pass


def expand_environment(text: str) -> str:
    """Put environment values in for `${VAR}`, `${VAR:-default}` and `${VAR:?message}`."""

    def value(match: re.Match[str]) -> str:
        name, operator, rest = match["name"], match["operator"], match["rest"]
        found = os.environ.get(name)
        if found:
            return found
        if operator == ":-":
            return rest
        if found is not None and operator is None:
            return found
        raise OptionError(
            f'environment variable "{name}" is not set',
            detail=rest if operator == ":?" else None,
            hint=f"export {name}=…, or write ${{{name}:-default}}",
            code="missing-variable",
        )

    return _VARIABLE.sub(value, text)
