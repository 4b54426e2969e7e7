"""Many threads at one table: nothing torn, nothing lost, nothing that goes back in time."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from velostream.errors import TableError
from velostream.model.change import Epoch, Mode
from velostream.testing.table_cases import BAG, KEYED, in_threads, run_together, write
from velostream.testing.table_suite.harness import TableHarness

_READERS = 8
_WRITERS = 2
_ROWS_OF_WRITER = 25


class Concurrency(TableHarness):
    def test_readers_see_one_version_while_others_write(self) -> None:  # B33
        """Each writer gives all its rows one number and counts on; a reader sees one number, and never a lower one."""
        if self.lacks("insert", "upsert"):
            return
        table = self.make_table(KEYED)
        table.commit(write(Mode.APPEND, *self._rows_of(0, 0), *self._rows_of(1, 0)))
        seen = [[0] * _WRITERS for _ in range(_READERS)]

        def read_once(reader: int) -> None:
            snapshot = table.snapshot()
            rows = snapshot.scan(columns=["id", "name"])
            assert rows.num_rows == _WRITERS * _ROWS_OF_WRITER
            names = dict(zip(rows.column("id").to_pylist(), rows.column("name").to_pylist(), strict=True))
            for writer in range(_WRITERS):
                own = {names[writer * _ROWS_OF_WRITER + number] for number in range(_ROWS_OF_WRITER)}
                assert len(own) == 1
                step = int(own.pop())
                assert step >= seen[reader][writer]
                seen[reader][writer] = step
                row = snapshot.get((writer + 1) * _ROWS_OF_WRITER - 1)
                assert row is not None
                assert int(row["name"]) == step or (self.lacks("versions") and int(row["name"]) > step)

        def write_once(writer: int, step: int) -> None:
            table.commit(write(Mode.UPSERT, *self._rows_of(writer, step)), Epoch(f"w{writer}", step))

        steps = run_together(read_once, write_once, readers=_READERS, writers=_WRITERS, steps=10)
        for writer, last in enumerate(steps):
            row = table.snapshot().get(writer * _ROWS_OF_WRITER)
            assert row is not None
            assert row["name"] == str(last)

    @staticmethod
    def _rows_of(writer: int, step: int) -> list[tuple[int, str]]:
        return [(writer * _ROWS_OF_WRITER + number, str(step)) for number in range(_ROWS_OF_WRITER)]

    def test_writers_lose_nothing(self) -> None:
        if self.lacks("insert"):
            return
        table = self.make_table(BAG)
        writers, each = 4, 10

        def append(writer: int) -> None:
            for number in range(each):
                table.commit(write(Mode.APPEND, (writer * each + number, "x")), Epoch(f"w{writer}", number))

        in_threads([lambda writer=writer: append(writer) for writer in range(writers)])  # type: ignore[misc]
        assert sorted(table.snapshot().scan().column("id").to_pylist()) == list(range(writers * each))

    def test_of_two_equal_inserts_one_succeeds(self) -> None:
        if self.lacks("insert"):
            return
        table = self.make_table(KEYED)
        outcomes: list[str] = []

        def append(writer: int) -> None:
            for number in range(5):
                try:
                    table.commit(write(Mode.APPEND, (number, str(writer))))
                except TableError as error:
                    outcomes.append(error.code)
                else:
                    outcomes.append("done")

        in_threads([lambda writer=writer: append(writer) for writer in range(3)])  # type: ignore[misc]
        assert sorted(outcomes) == ["done"] * 5 + ["duplicate-key"] * 10
        assert table.snapshot().count() == 5
