"""`SET key = value`: settings of a connection, for the statements that come after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from velostream.engine.binding import MAINTAIN
from velostream.engine.query import LOOKUP
from velostream.errors import OptionError

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext

_CHOICES: dict[str, tuple[str, ...]] = {
    MAINTAIN: ("delta", "refresh"),
    LOOKUP: ("fast", "staged", "narrowed", "general"),
}
_SPARK, _DATA_SOURCE = "spark.", "data_source."


def apply_setting(context: EngineContext, key: str, value: str) -> None:
    """Change a setting; it holds until the connection is closed, and for what is created from now on.

    Takes Spark's settings (`spark.…`) but those that the engine relies on, `data_source.<name>` with an address, and
    the settings of our own that `connect(config=…)` takes.
    """
    name = key.lower()
    if name.startswith(_SPARK):
        context.spark.set(key, value)
    elif name.startswith(_DATA_SOURCE) and name != _DATA_SOURCE:
        context.config[key] = value
    elif name in _CHOICES:
        if value.lower() not in _CHOICES[name]:
            raise OptionError(
                f'setting "{name}" can\'t be "{value}"',
                hint=f"one of {', '.join(_CHOICES[name])}",
                code="invalid-option",
            )
        context.config[name] = value.lower()
    else:
        raise OptionError.unknown(key, known=[*_CHOICES, "data_source.<name>", "spark.<name>"])
