"""Velostream: SQL whose tables stay up to date.

`import velostream` is cheap: Spark, pyarrow and the engine are imported when the first connection is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from velostream import errors

if TYPE_CHECKING:
    from velostream.engine.connection import connect
    from velostream.model.expression import expr

__version__ = "0.1.0"

__all__ = ["__version__", "connect", "errors", "expr"]

_HOMES = {"connect": "velostream.engine.connection", "expr": "velostream.model.expression"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
