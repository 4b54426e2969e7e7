"""Sources as a statement names them: URIs, paths and source functions, all brought to one form."""

from __future__ import annotations

import re
from functools import cache
from urllib.parse import unquote

from velostream import plugins
from velostream.sql.dialect import is_keyword
from velostream.sql.statements import OptionValue, Place, SourceRef

_FUNCTIONS: dict[str, str] = {
    "kafka_topic": "kafka",
    "kafka": "kafka",
    "file": "file",
    "postgres": "postgres",
    "postgresql": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "clickhouse": "clickhouse",
    "sql": "sql",
    "http": "http",
    "https": "http",
    "s3": "s3",
    "gs": "gs",
    "abfs": "abfs",
    "memory": "memory",
    "mongodb": "mongodb",
    "redis": "redis",
    "rate": "rate",
    "generator": "generator",
    "delta": "delta",
    "console": "console",
}
_NAMES = ("table", "collection", "stream")
"""Options that name what is read of a server."""
_KIND_OF_SCHEME = {
    "postgresql": "postgres",
    "mariadb": "mysql",
    "https": "http",
    "rediss": "redis",
    "s3a": "s3",
    "gcs": "gs",
    "abfss": "abfs",
    "az": "abfs",
}
_OF_FILES = ("file", "s3", "gs", "abfs")
"""Kinds whose last word ends with the suffix of a format."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.\-]*)(?:\+[A-Za-z0-9.\-]+)?://")
_PARAMETERS = re.compile(r"\?(?=[\w.\-]+=)")
_PARAMETER = re.compile(r"""([\w.\-]+)=("(?:[^"]|"")*"|'(?:[^']|'')*'|[^&]*)(?:&|\Z)""")
_WORD = re.compile(r"[^\W\d]\w*")


@cache
def source_functions() -> dict[str, str]:
    """Function names that may stand in FROM for a source, and the kind of each; plug-ins included."""
    plugged = {name: name for name in plugins.names(plugins.Group.SOURCES)}
    return plugged | _FUNCTIONS


def source_of(
    text: str, *, relation: str, options: tuple[OptionValue, ...] = (), place: Place | None = None
) -> SourceRef:
    """The source a URI or a path stands for. A path becomes a `file://` URI, relative ones included."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return SourceRef(relation, "file", f"file://{text}", options, place or Place())
    kind = scheme.group(1).lower()
    return SourceRef(relation, _KIND_OF_SCHEME.get(kind, kind), text, options, place or Place())


def source_of_function(
    name: str, argument: str, *, relation: str, options: tuple[OptionValue, ...], place: Place
) -> SourceRef:
    """The source a call such as `kafka_topic('orders')` stands for."""
    kind = source_functions()[name.lower()]
    uri = argument if _SCHEME.match(argument) else f"{kind}://{argument}"
    return SourceRef(relation, kind, uri, options, place)


def natural_alias(source: SourceRef) -> str | None:
    """The name columns of a source without an alias can be qualified by: its table, else the last word of its path.

    `memory://orders`, `kafka://host/orders`, `file:///d/orders.csv` and `postgres://h/db?table=orders` answer to
    `orders`; a pattern has no such name.
    """
    uri, parameters = uri_parameters(source.uri)
    table = next((option.value for option in source.options + parameters if option.name in _NAMES), None)
    last = table or uri.partition("://")[2].rstrip("/").rpartition("/")[2]
    if source.kind in _OF_FILES:
        last = last.partition(".")[0]
    return last if last and not set(last) & set("*?{}[]$@:,`") else None


def needs_quotes(name: str) -> bool:
    """Whether a name can stand in SQL only in quotes: for its characters, or because it is a word of SQL."""
    return _WORD.fullmatch(name) is None or is_keyword(name)


def uri_parameters(uri: str) -> tuple[str, tuple[OptionValue, ...]]:
    """A URI taken apart: the address, and its parameters as options (names in lower case, quotes and %xx undone).

    `${VAR}` references stay as they are, so that a value put in later may hold any character.
    """
    start = _PARAMETERS.search(uri)
    if start is None:
        return uri, ()
    options: list[OptionValue] = []
    for name, value in _PARAMETER.findall(uri, start.end()):
        if value[:1] in ("'", '"') and len(value) > 1:
            quote = value[0]
            text = value[1:-1].replace(quote * 2, quote)
        else:
            text = unquote(value)
        options.append(OptionValue(name.lower(), text))
    return uri[: start.start()], tuple(options)
