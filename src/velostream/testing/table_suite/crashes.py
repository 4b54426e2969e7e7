"""A process killed while it commits, and a server stopped while commits run: nothing lost, nothing twice."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit, urlunsplit

from velostream.errors import Category, StoreError, VelostreamError
from velostream.model.change import Epoch, Mode
from velostream.tables.base import Table, TableWrites
from velostream.testing.table_cases import BAG, KEYED, in_threads, write
from velostream.testing.table_killed import WRITER, KilledWriter, epoch_found, epoch_write
from velostream.testing.table_suite.harness import TableHarness

_PATIENCE = 60.0


class Crashes(TableHarness):
    def test_a_killed_writer_loses_and_doubles_nothing(self) -> None:  # B55
        """SIGKILL while it commits; what is found is the state after an epoch that was whole, and a repeat mends it."""
        if self.lacks("epochs", "upsert", "durable"):
            return
        spec = self.new_spec(KEYED)
        acknowledged = KilledWriter(self._kind, [spec]).kill_after(commits=2, delay=0)
        table = self.open(spec)
        assert epoch_found(table) in (acknowledged, acknowledged + 1)
        for number in (acknowledged, acknowledged + 1):
            table.commit(epoch_write(number), Epoch(WRITER, number))
        assert epoch_found(table) == acknowledged + 1

    def test_a_killed_transaction_is_whole_or_not_there(self) -> None:  # B50, B55
        if self.lacks("epochs", "upsert", "durable", "transactions"):
            return
        specs = self.specs_together(KEYED, KEYED)
        acknowledged = KilledWriter(self._kind, specs).kill_after(commits=2, delay=0.004)
        tables = self.open_together(specs)
        found = {epoch_found(table) for table in tables}
        assert found in ({acknowledged}, {acknowledged + 1})
        for number in (acknowledged, acknowledged + 1):
            parts = [TableWrites(table, [epoch_write(number)]) for table in tables]
            tables[0].commit_together(parts, Epoch(WRITER, number))
        assert {epoch_found(table) for table in tables} == {acknowledged + 1}

    def test_a_server_stopped_while_commits_run_loses_and_doubles_nothing(self) -> None:  # B56
        server = self.store.server
        if server is None or self.lacks("epochs", "insert"):
            return
        table = self.make_table(BAG)
        under_way = threading.Event()
        commits = 30

        def work() -> None:
            for number in range(commits):
                self._persist(lambda number=number: table.commit(write(Mode.APPEND, (number, "x")), Epoch("q", number)))  # type: ignore[misc]
                if number == 5:
                    under_way.set()

        def interrupt() -> None:
            assert under_way.wait(_PATIENCE)
            with server().stopped():
                pass

        in_threads([work, interrupt])
        assert sorted(table.snapshot().scan().column("id").to_pylist()) == list(range(commits))

    def test_a_server_that_is_gone_is_said_to_be(self) -> None:
        server = self.store.server
        if server is None or self.lacks("epochs", "insert"):
            return
        table = self.make_table(KEYED)

        def append() -> None:
            table.commit(write(Mode.APPEND, (1, "a")), Epoch("q", 1))

        with server().stopped():
            for attempt in (append, lambda: table.snapshot().count(), lambda: self._new_object_of(table)):
                caught = _error_of(attempt)
                assert isinstance(caught, StoreError)
                assert caught.category.retriable
        self._persist(append)
        self._persist(append)
        assert table.snapshot().count() == 1

    def test_a_server_that_is_not_there_is_missed_at_once(self) -> None:  # B54
        """When the table is opened, with the address, but without the password."""
        if self.store.server is None:
            return
        address = urlsplit(self.new_spec(KEYED).options["url"])
        nobody = address._replace(netloc="somebody:open-sesame@127.0.0.1:1")
        caught = _error_of(lambda: self.make_table(KEYED, {"url": urlunsplit(nobody)}))
        assert isinstance(caught, StoreError)
        assert caught.category is Category.NETWORK
        assert "127.0.0.1:1" in str(caught)
        assert "sesame" not in f"{caught}{caught!r}{caught.args}"

    def _new_object_of(self, table: Table) -> None:
        self.open(self.spec_of(table))

    @staticmethod
    def _persist(commit: Callable[[], object]) -> None:
        """Try until it is done, as the engine does with a retriable error."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            error = _error_of(commit)
            if error is None:
                return
            assert error.category.retriable, error
            assert time.monotonic() < deadline, error


def _error_of(attempt: Callable[[], object]) -> VelostreamError | None:
    try:
        attempt()
    except VelostreamError as error:
        return error
    return None
