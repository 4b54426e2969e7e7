"""Addresses of sources and sinks: a URI, its parameters, and the path a file URI stands for."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

_PARAMETERS = re.compile(r"\?(?=[\w.\-]+=)")
_PARAMETER = re.compile(r"""([\w.\-]+)=("(?:[^"]|"")*"|'(?:[^']|'')*'|[^&]*)(?:&|\Z)""")
_FILE_SCHEME = re.compile(r"file:(?://(?:localhost(?=/))?)?")


def split_parameters(uri: str) -> tuple[str, dict[str, str]]:
    """The bare address and its parameters, names in lower case. A `?` without `name=` behind it is a wildcard."""
    start = _PARAMETERS.search(uri)
    if start is None:
        return uri, {}
    parameters: dict[str, str] = {}
    for name, value in _PARAMETER.findall(uri, start.end()):
        quoted = value[:1] in ("'", '"') and len(value) > 1
        parameters[name.lower()] = value[1:-1].replace(value[0] * 2, value[0]) if quoted else unquote(value)
    return uri[: start.start()], parameters


def file_path(uri: str) -> str:
    """The path of `file:///p`, `file://./p`, `file:p` or a plain path; `%xx` is undone in URIs, `~` is the home folder.

    A slash at the end is kept: it says that the path is a folder.
    """
    scheme = _FILE_SCHEME.match(uri)
    path = unquote(uri[scheme.end() :]) if scheme else uri
    expanded = str(Path(path).expanduser())
    return f"{expanded}/" if path.endswith("/") and not expanded.endswith("/") else expanded
