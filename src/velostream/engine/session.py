"""Statements said one after another, and the transaction they may stand in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from velostream.engine.result import Result
from velostream.errors import SqlError, ValidationError
from velostream.model.change import Epoch
from velostream.model.confidential import masked
from velostream.sql.parse import parse_script, parse_statement
from velostream.sql.statements import Statement, Transaction, TransactionAction

if TYPE_CHECKING:
    from velostream.engine.execute import Executor, Parameters
    from velostream.engine.handle import TableHandle
    from velostream.engine.transactions import Transaction as OpenTransaction


class Session:
    """One speaker: BEGIN holds for the statements that follow it here, and for no others. For one thread at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.transaction: OpenTransaction | None = None

    def execute(self, statement: Statement, parameters: Parameters = None, *, epoch: Epoch | None = None) -> Result:
        """Execute one statement, in the transaction that is open. With an epoch, what it inserts is inserted once."""
        if isinstance(statement, Transaction):
            return self._transaction(statement, epoch)
        transaction = self.transaction
        if transaction is None:
            return self._executor.execute(statement, parameters, epoch=epoch)
        with transaction.lock:
            return self._executor.execute(statement, parameters, transaction=transaction)

    def execute_text(self, sql: str, parameters: Parameters = None) -> Result:
        """Execute one statement, such that `Connection.interrupt` cancels it."""
        with self._executor.interruptible(), passwords_masked():
            return self.execute(parse_statement(sql), parameters)

    def execute_script(self, text: str) -> list[Result]:
        """Execute statements one after another; the first error ends it, and the transaction it stands in."""
        own = self.transaction is None
        try:
            with self._executor.interruptible(), passwords_masked():
                results = [self.execute(statement) for statement in parse_script(text)]
        except BaseException:
            if own:
                self.rollback()
            raise
        if own:
            self.check_ended(text)
        return results

    def check_ended(self, text: str) -> None:
        """Refuse a script that leaves its transaction open; nothing of that is applied."""
        if self.transaction is None:
            return
        self.rollback()
        raise ValidationError(
            "the script ends within a transaction",
            detail="nothing of the transaction was applied",
            hint="COMMIT or ROLLBACK ends it",
            code="open-transaction",
            text=text,
        )

    def rollback(self) -> None:
        """Roll back what is open, if anything is."""
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            transaction.rollback()

    def begin(self, **place: Any) -> OpenTransaction:
        """Open a transaction for what follows; `place` is where an error points to."""
        if self.transaction is not None:
            raise ValidationError(
                "a transaction is open already", hint="COMMIT or ROLLBACK ends it", code="open-transaction", **place
            )
        self.transaction = self._executor.begin()
        return self.transaction

    def _transaction(self, statement: Transaction, epoch: Epoch | None) -> Result:
        place: dict[str, Any] = {"line": statement.place.line, "column": statement.place.column, "text": statement.text}
        if statement.action is TransactionAction.BEGIN:
            self.begin(**place)
            return Result.done("transaction begun")
        transaction, self.transaction = self.transaction, None
        if transaction is None:
            raise ValidationError("no transaction is open", hint="BEGIN begins one", code="no-transaction", **place)
        if statement.action is TransactionAction.ROLLBACK:
            transaction.rollback()
            return Result.done("transaction rolled back")
        return self._executor.commit(transaction, epoch=epoch)


class TransactionHandle:
    """What `con.begin()` gives: statements and tables of one transaction.

    As a context manager it commits at the end, and rolls back when something is raised inside.
    """

    def __init__(self, session: Session, table: Callable[[str, OpenTransaction], TableHandle]) -> None:
        self._session = session
        self._transaction = session.begin()
        self._table = table

    @property
    def is_open(self) -> bool:
        return self._transaction.is_open

    def execute(self, sql: str, params: Parameters = None) -> Result:
        """Execute one statement of the transaction; what it writes is seen by the next one, and by nobody else yet."""
        self._transaction.check_open()
        return self._session.execute_text(sql, params)

    def execute_script(self, text: str) -> list[Result]:
        self._transaction.check_open()
        return self._session.execute_script(text)

    def table(self, name: str) -> TableHandle:
        """A table as the transaction sees and changes it."""
        self._transaction.check_open()
        return self._table(name, self._transaction)

    get_table = table

    def commit(self) -> None:
        """Apply everything at once; `TableError` of category `concurrency` when another transaction was first."""
        self._transaction.check_open()
        self._session.execute(Transaction(TransactionAction.COMMIT))

    def rollback(self) -> None:
        """Apply nothing. Does nothing when the transaction has ended."""
        self._session.rollback()

    def __enter__(self) -> Self:
        self._transaction.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.rollback()
        elif self._transaction.is_open:
            self.commit()

    def __repr__(self) -> str:
        return f"<transaction {'open' if self.is_open else 'ended'}>"


@contextmanager
def passwords_masked() -> Iterator[None]:
    """Within, errors in statements show their places without the passwords around them."""
    try:
        yield
    except SqlError as error:
        for problem in error.problems:
            problem.text = None if problem.text is None else masked(problem.text)
        raise
