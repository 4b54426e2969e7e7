"""What of statements, options and addresses may be shown: all but passwords and their like."""

from __future__ import annotations

import re

_CONFIDENTIAL = r"[\w.\-]*(?:password|secret|token|signature|\.key|_key)[\w.\-]*"
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
        return _without(value)
    return _address(value)


def shown_address(uri: str) -> str:
    """An address without the passwords that stand in it. `${VAR}` stays."""
    return _address(uri)


def public(sql: str) -> str:
    """A statement without the passwords that stand in it. `${VAR}` stays."""
    without = _OPTION.sub(lambda found: f"{found[1]}'{_without(found[2][1:-1])}'", sql)
    return _ADDRESS.sub(_public_address, without)


def _public_address(found: re.Match[str]) -> str:
    text = found[0]
    return _address(text) if text.startswith("://") else text[0] + _address(text[1:-1]) + text[-1]


def _address(text: str) -> str:
    text = _USER_AND_PASSWORD.sub(_without_password, text)
    return _PARAMETER.sub(lambda found: found[1] + _without(found[2]), text)


def _without_password(found: re.Match[str]) -> str:
    before, password, after = found.groups()
    return f"{before}{_without(password)}@{_HIDDEN if _OPEN_PARAMETER.search(password) else after}"


def _without(value: str) -> str:
    return value if not value or _REFERENCES.fullmatch(value) else _HIDDEN
