"""What the errors of database drivers mean where they have no codes that we know."""

from __future__ import annotations

import re

from velostream.errors import Category


def category_of(error: BaseException, *, disconnected: bool) -> Category:
    """By the class that PEP 249 names, else by the text. `disconnected` is what SQLAlchemy knows of it."""
    # Not every module that SQLAlchemy gives has the classes themselves.
    kinds = {base.__name__ for base in type(error).__mro__}
    if "IntegrityError" in kinds or "DataError" in kinds:
        return Category.DATA
    if disconnected:
        return Category.NETWORK
    found = (category for pattern, category in _TEXTS if re.search(pattern, str(error), re.IGNORECASE))
    return next(found, Category.UNKNOWN)


_TEXTS = (
    (r"conflict|deadlock|serializ|lock timeout|is locked", Category.CONCURRENCY),
    (r"password|authenticat|login|access denied|permission", Category.AUTHENTICATION),
    (r"does not exist|unknown database|cannot open|unable to open|no such", Category.MISSING),
    (r"connect|network|timed? ?out|refused|unreachable|gone away", Category.NETWORK),
    (r"syntax error|parser error|binder error", Category.CONFIGURATION),
)
"""What a text of a driver without codes means, the first that fits."""
