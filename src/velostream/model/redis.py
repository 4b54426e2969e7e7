"""What tables and sources in Redis share: how keys are found by their beginning, and what the driver's errors mean."""

from __future__ import annotations

from velostream.errors import Category


def keys_beginning_with(prefix: str) -> str:
    """The pattern for all keys that begin so."""
    return "".join(f"\\{character}" if character in "*?[]\\^-" else character for character in prefix) + "*"


def category_of(error: BaseException) -> Category:
    """What kind of trouble an error is: by the driver's class, by the server's word where the class says nothing."""
    import redis

    text = str(error)
    if isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError):
        return Category.AUTHENTICATION
    if text.startswith(
        ("WRONGPASS", "NOAUTH", "NOPERM", "ERR AUTH", "invalid username-password", "ERR invalid password")
    ):
        return Category.AUTHENTICATION
    if "DB index is out of range" in text or "invalid DB index" in text or text.startswith(("READONLY", "WRONGTYPE")):
        return Category.CONFIGURATION
    if isinstance(error, redis.ConnectionError | redis.TimeoutError):
        return Category.NETWORK
    if isinstance(error, redis.exceptions.OutOfMemoryError) or text.startswith("OOM"):
        return Category.STATE
    if isinstance(error, redis.DataError):
        return Category.DATA
    return Category.UNKNOWN
