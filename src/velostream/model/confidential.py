"""What of statements, options and addresses may be shown: all but passwords and their like."""

from __future__ import annotations

import re
from collections.abc import Callable

_CONFIDENTIAL = r"(?:[\w.\-]*(?:password|secret|token|signature|authorization|cookie|[\w.\-]key)[\w.\-]*|sig)"
"""Names of options and URI parameters whose values are nobody's business."""
_HIDDEN = "***"
_REFERENCES = re.compile(r"(?:\$\{[^}]*\})+")
"""Names of environment variables, which are no secrets; what the variables hold never gets here."""
_PARAMETER = re.compile(rf"([?&;](?:{_CONFIDENTIAL})=)([^&]*)", re.IGNORECASE)
_USER_AND_PASSWORD = re.compile(r"(://[^:/?#]*:)(.*)@([^&]*)", re.DOTALL)
"""Greedy: a password with an @ in it is hidden whole, at the worst together with what follows it."""
_OPEN_PARAMETER = re.compile(rf"{_PARAMETER.pattern}\Z", re.IGNORECASE)
"""One whose value goes on after the last @."""
_STRING = r"'(?:[^'\\]|\\.|'')*'"
_QUOTED_NAME = r'"(?:[^"]|"")*"|`(?:[^`]|``)*`'
_BARE_URI = rf"://(?:[^\s'\"`]|(?<==)(?:{_STRING}|{_QUOTED_NAME}))*"
_ADDRESS = re.compile(f"{_STRING}|{_QUOTED_NAME}|{_BARE_URI}", re.DOTALL)
"""What of a statement may be the address of a store or a source."""
_OPTION = re.compile(rf"('(?:{_CONFIDENTIAL})'\s*=\s*)({_STRING})", re.IGNORECASE | re.DOTALL)


def is_confidential(name: str) -> bool:
    """Whether an option of that name holds a secret."""
    return re.fullmatch(_CONFIDENTIAL, name, re.IGNORECASE) is not None


def concealed(name: str, value: str) -> str:
    """The value of an option as anyone may see it. `${VAR}` stays."""
    if is_confidential(name):
        return _without(value, _dots)
    return _address(value, _dots)


def shown_address(uri: str) -> str:
    """An address without the passwords that stand in it. `${VAR}` stays."""
    return _address(uri, _dots)


def public(sql: str) -> str:
    """A statement without the passwords that stand in it. `${VAR}` stays."""
    return _statement(sql, _dots)


def masked(sql: str) -> str:
    """A statement with its passwords made unreadable and every other character where it was, for errors with places."""
    return _statement(sql, _mask)


_Hide = Callable[[str], str]


def _dots(_: str) -> str:
    return _HIDDEN


def _mask(text: str) -> str:
    return "*" * len(text)


def _statement(sql: str, hide: _Hide) -> str:
    without = _OPTION.sub(lambda found: f"{found[1]}'{_without(found[2][1:-1], hide)}'", sql)
    return _ADDRESS.sub(lambda found: _quoted_address(found[0], hide), without)


def _quoted_address(text: str, hide: _Hide) -> str:
    return _address(text, hide) if text.startswith("://") else text[0] + _address(text[1:-1], hide) + text[-1]


def _address(text: str, hide: _Hide) -> str:
    def without_password(found: re.Match[str]) -> str:
        before, password, after = found.groups()
        return f"{before}{_without(password, hide)}@{hide(after) if _OPEN_PARAMETER.search(password) else after}"

    text = _USER_AND_PASSWORD.sub(without_password, text)
    return _PARAMETER.sub(lambda found: found[1] + _without(found[2], hide), text)


def _without(value: str, hide: _Hide) -> str:
    return value if not value or _REFERENCES.fullmatch(value) else hide(value)
