"""clickhouse-connect for the kind `clickhouse`: connections with bound parameters, and what its errors mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from velostream.errors import Category
from velostream.model.clickhouse import Bound, ClickhouseServer, category_of, reason_of, typed
from velostream.tables.clickhouse_types import READ_FORMATS
from velostream.tables.relational.dialect import Failure, Trouble


class Connection:
    """A client in the form of PEP 249, as far as it is used. There are no transactions to commit."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def to(cls, server: ClickhouseServer) -> Connection:
        return cls(server.client())

    def cursor(self) -> Cursor:
        return Cursor(self._client)

    def commit(self) -> None:
        """Nothing is written."""

    def rollback(self) -> None:
        """Nothing was begun."""

    def close(self) -> None:
        self._client.close()


class Cursor:
    """One query, whose rows come in blocks as the server sends them."""

    rowcount = -1

    def __init__(self, client: Any) -> None:
        self._client = client
        self._held = ExitStack()
        self._blocks: Iterator[Sequence[Sequence[Any]]] = iter(())

    def execute(self, statement: str, parameters: Sequence[Bound] = ()) -> None:
        text, bound = typed(statement, parameters)
        stream = self._client.query_row_block_stream(text, parameters=bound, query_formats=READ_FORMATS)
        self._blocks = iter(self._held.enter_context(stream))

    def fetchmany(self, _size: int) -> Sequence[Sequence[Any]]:
        """The next block, whatever its size; an empty one at the end."""
        return next((block for block in self._blocks if block), ())

    def close(self) -> None:
        self._held.close()


def failure_of(error: BaseException, *, shown: Callable[[str], str]) -> Failure:
    """What an error of the driver means. `shown` takes secrets out of a text."""
    category = category_of(error)
    trouble = Trouble.TRANSIENT if category in (Category.NETWORK, Category.CONCURRENCY) else Trouble.OTHER
    return Failure(trouble, category, shown(reason_of(error)), connection_lost=category is Category.NETWORK)
