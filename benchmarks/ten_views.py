"""`ten_views`: lines appended to a watched file until they are in one view, and until they are in each of ten.

The file is read once whatever its views are (one shared ingest), so ten should cost no more than twice what one does:
filters and groups, in the default mode of `watch` (a changed file is compared with what was read) and with `append`.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.compute as pc

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure

LINES = 100_000
USERS = 1_000
MODES = {"watch": "watch = true", "append": "watch = true, 'watch.mode' = 'append'"}
SELECTS = {
    "groups": "SELECT user_id, COUNT(*) AS n, SUM(amount * {factor}) AS total FROM {source} GROUP BY user_id",
    "filters": "SELECT id, user_id, amount * {factor} AS amount FROM {source} WHERE user_id % 100 = {factor}",
}


def run(arguments: argparse.Namespace) -> list[Measurement]:
    measurements = []
    for mode, options in MODES.items():
        for kind, select in SELECTS.items():
            with TemporaryDirectory() as folder:
                rivals = [_Views(Path(folder), count, select, options) for count in (1, 10)]
                lines = arguments.rows or LINES
                contenders = [Contender(rival.name, rival.take, partial(rival.write_text, lines)) for rival in rivals]
                case = Case(f"{kind}, {mode}: {lines:,} lines", lines, contenders, _Views.check, arguments.rounds)
                of_case = measure("ten_views", case)
                for rival in rivals:
                    rival.connection.close()
            one, ten = of_case
            print(f"{case.name}: ten views take {ten.median / one.median:.2f} × the time of one (target: within 2 ×)")
            measurements += of_case
    return measurements


class _Views:
    """Some views over one file, in a connection of their own."""

    def __init__(self, folder: Path, count: int, select: str, options: str) -> None:
        self.name = "one view" if count == 1 else f"{count} views"
        self.path = folder / f"orders_{count}.csv"
        self.lines = 0
        self.write_text(USERS)
        self.path.write_text("id,user_id,amount\n" + self.text)
        self.connection = velostream.connect()
        source = f"'{self.path.as_uri()}' WITH ({options})"
        self.tables = []
        for number in range(1, count + 1):
            self.connection.execute(f"CREATE TABLE view_{number} AS {select.format(factor=number, source=source)}")
            self.tables.append(self.connection.table(f"view_{number}"))
        self._drain()

    def write_text(self, lines: int) -> None:
        """Make the lines of the next round."""
        numbers = range(self.lines, self.lines + lines)
        self.text = "".join(f"{number},{number % USERS},{number % 977}.25\n" for number in numbers)
        self.lines += lines

    def take(self) -> _Views:
        with self.path.open("a") as file:
            file.write(self.text)
        self._drain()
        return self

    def check(self) -> None:
        for table in self.tables:
            rows = table.arrow()
            if "n" in rows.column_names:
                expect(pc.sum(rows["n"]).as_py() == self.lines, f"{table.name} lacks lines")
            else:
                expect(rows.num_rows == self.lines * 10 // USERS, f"{table.name} has {rows.num_rows} rows")

    def _drain(self) -> None:
        for table in self.tables:
            self.connection.drain(table.name, timeout=120)
