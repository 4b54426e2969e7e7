"""A script that may have run before on the same state directory: what it did then is continued, not repeated."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from velostream.engine.catalog import CHANGERS
from velostream.engine.changing import query_sql
from velostream.engine.definitions import canonical
from velostream.engine.session import Session, passwords_masked
from velostream.errors import StateError
from velostream.model.change import Epoch
from velostream.sql.parse import parse_script
from velostream.sql.render import render
from velostream.sql.statements import (
    Create,
    Delete,
    Insert,
    Merge,
    Statement,
    Transaction,
    TransactionAction,
    Truncate,
    Update,
)

if TYPE_CHECKING:
    from velostream.engine.context import EngineContext
    from velostream.engine.execute import Executor
    from velostream.engine.result import Result

_CHANGES = (Update, Delete, Merge, Truncate)


class ScriptRunner:
    """Runs scripts of one connection."""

    def __init__(self, context: EngineContext, executor: Executor) -> None:
        self._context = context
        self._executor = executor

    def run(self, text: str) -> list[Result]:
        """Execute a script from its beginning.

        Statements equal to the catalog's are left as they are, and so is what the script itself changed; a CREATE that
        has become another one is an error.
        """
        with passwords_masked():
            return self._run_all(text)

    def _run_all(self, text: str) -> list[Result]:
        results: list[Result] = []
        seen: Counter[str] = Counter()
        for block in _blocks(parse_script(text)):
            said = "; ".join(render(statement) for statement in block)
            mark = hashlib.sha256(said.encode()).hexdigest()
            epoch = Epoch(f"script.{mark}.{seen[said]}", 0)
            seen[said] += 1
            if not self._is_known(block) and self._context.sequence.writer(epoch.writer) is None:
                results += self._run(block, epoch, text)
        return results

    def _run(self, block: Sequence[Statement], epoch: Epoch, text: str) -> list[Result]:
        session = Session(self._executor)
        if len(block) == 1 and isinstance(block[0], _CHANGES) and self._is_transactional(block[0]):
            return [self._change_once(block[0], epoch)]
        try:
            results = [session.execute(statement, epoch=_epoch_for(statement, epoch)) for statement in block]
        except BaseException:
            session.rollback()
            raise
        session.check_ended(text)
        return results

    def _change_once(self, statement: Statement, epoch: Epoch) -> Result:
        """One UPDATE or its like, committed together with the mark that it was done."""
        transaction = self._executor.begin()
        try:
            result = self._executor.execute(statement, transaction=transaction)
            if transaction.gathered:
                return self._executor.execute(statement)
            transaction.commit(epoch)
        finally:
            transaction.rollback()
        return result

    def _is_transactional(self, statement: Statement) -> bool:
        name = getattr(statement, "table", None)
        entry = None if name is None else self._context.catalog.find(name.text)
        return entry is not None and entry.is_table and self._context.table_of(entry).capabilities.transactions

    def _is_known(self, block: Sequence[Statement]) -> bool:
        """Whether the catalog has it: what was created, or a query that follows a stream."""
        changes = [statement for statement in block if isinstance(statement, Insert | Update | Delete | Merge)]
        if changes:
            sql = query_sql(changes, transaction=len(block) > 1)
            return any(entry.kind in CHANGERS and entry.sql == sql for entry in self._context.catalog)
        statement = block[0]
        if not isinstance(statement, Create):
            return False
        entry = self._context.catalog.find(statement.name.text)
        if entry is None:
            return False
        if entry.sql == canonical(statement):
            return True
        if statement.or_replace or statement.if_not_exists:
            return False
        raise StateError(
            f'{entry.kind} "{entry.name}" was created by a different statement',
            detail=f"then: {entry.sql}",
            hint=f"CREATE OR REPLACE {statement.what} replaces it and builds it anew",
            code="statement-changed",
        )


def _blocks(statements: Sequence[Statement]) -> Iterator[list[Statement]]:
    """Statements by themselves, and transactions whole."""
    block: list[Statement] = []
    for statement in statements:
        block.append(statement)
        action = statement.action if isinstance(statement, Transaction) else None
        begun = isinstance(block[0], Transaction) and block[0].action is TransactionAction.BEGIN
        if not begun or action in (TransactionAction.COMMIT, TransactionAction.ROLLBACK):
            yield block
            block = []
    if block:
        yield block


def _epoch_for(statement: Statement, epoch: Epoch) -> Epoch | None:
    """What is done once: an INSERT by itself, and a transaction when it is committed."""
    return epoch if isinstance(statement, Insert | Transaction) else None
