"""`enrich`: a CSV stream of trades joined to a live table of users, from the file to the result.

Everybody reads the same file with the same rows, and is checked by the number of rows and the exact sum of a column.
Where the result goes is each one's own: ours is committed to a table that can be queried, plain Spark brings it to the
driver, Flink and Pathway write CSV. What counts is the time from starting the query until the result is whole. No start
of interpreters, JVMs or libraries counts, and not the loading of our table of users, which is there before the query;
the others read the users as part of theirs. All stay up between the rounds, and run once before those that count.

A peer that can't be had is named in the end, with the reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import velostream
from benchmarks.harness import Case, Contender, Measurement, expect, measure
from benchmarks.peers.process import PEERS, PeerError, PeerProcess
from benchmarks.plain_spark import PlainSpark
from benchmarks.trades import FORMS, JOIN, Answer, ChangingWorkload, Workload
from velostream.errors import ServiceError

TRADES = 1_000_000
USERS = (10_000, 1_000_000)
PARTS = 5
ROUNDS = 3
OURS = "velostream"
STATIC = "plain Spark, static broadcast"
PER_BATCH = "plain Spark, broadcast per batch"
APPENDED = "WITH ('watch' = 'true', 'watch.mode' = 'append')"
FORM_LIMITS = {"EXISTS": 1.3, "IN": 1.3, "scalar subquery": 1.3, "three joins": 1.6}
"""How much longer than the join the other forms may take."""


def run(arguments: argparse.Namespace) -> list[Measurement]:
    measurements: list[Measurement] = []
    not_run: dict[str, str] = {}
    trades, rounds = arguments.rows or TRADES, min(arguments.rounds, ROUNDS)
    for users in USERS:
        with TemporaryDirectory(prefix="velostream-enrich-") as folder, velostream.connect() as connection:
            side = _Side(connection, Workload(Path(folder), trades=trades, users=users), Path(folder))
            measurements += side.joins(rounds, not_run)
            measurements += side.forms(rounds)
            measurements += side.changing(rounds)
    for ratio in _ratios(measurements):
        print(ratio)
    for peer, reason in not_run.items():
        print(f"{peer} was not run: {reason}")
    return measurements


class _Side:
    """One size of the users' table, and all who join it."""

    def __init__(self, connection: Any, work: Workload, folder: Path) -> None:
        self.connection = connection
        self.work = work
        self.folder = folder
        self.views = 0
        users = pq.read_table(work.users_path)
        columns = "user_id BIGINT PRIMARY KEY, name STRING, tier STRING, factor BIGINT"
        self._load("users", columns, users)
        self._load("nine_tenths", columns, users.filter(pa.array(np.arange(work.users) % 10 != 0)))
        self._load("limits", "user_id BIGINT PRIMARY KEY, level BIGINT", work.limits_table())
        self._load("market", "symbol STRING PRIMARY KEY, lot BIGINT", work.market_table())
        session = connection._context.spark.session()  # noqa: SLF001 - the same Spark for both
        self.spark = PlainSpark(session, folder / "spark")

    def joins(self, rounds: int, not_run: dict[str, str]) -> list[Measurement]:
        """The one join, by everybody; `not_run` takes up the peers that can't be had."""
        with ExitStack() as stack:
            contenders = [
                Contender(OURS, partial(self._view, FORMS[JOIN]), before=self._drop_views),
                Contender(STATIC, partial(self.spark.static_broadcast, self.work)),
            ]
            for peer in PEERS:
                folder = self.folder / peer.name.lower()
                try:
                    process = PeerProcess(peer, trades=self.work.path, users=self.work.users_text_path, folder=folder)
                except (ServiceError, PeerError, OSError) as error:
                    not_run[peer.name] = str(error)
                    continue
                stack.enter_context(process)
                contenders.append(Contender(peer.name, partial(_run_peer, process), before=process.clear))
            check = partial(_check, right=self.work.right[JOIN])
            return measure("enrich", Case(_join_case(self.work.users), self.work.trades, contenders, check, rounds))

    def forms(self, rounds: int) -> list[Measurement]:
        """Ours in all forms, the join once more among them: ratios within one run."""
        contenders = [
            Contender(form, partial(self._form, form, select), before=self._drop_views)
            for form, select in FORMS.items()
        ]
        case = Case(_form_case(self.work.users), self.work.trades, contenders, self._check_form, rounds)
        return measure("enrich", case)

    def changing(self, rounds: int) -> list[Measurement]:
        """The trades in parts, one percent of the users changed before each; the result must show it."""
        changing = ChangingWorkload(self.work, self.folder, parts=PARTS)
        before = pq.read_table(self.work.users_path)

        def prepare() -> None:
            self._drop_views()
            self.connection.table("users").upsert(before)

        contenders = [
            Contender(OURS, partial(self._changing_view, changing), before=prepare),
            Contender(PER_BATCH, partial(self.spark.broadcast_per_batch, changing)),
        ]
        check = partial(_check, right=changing.right)
        return measure("enrich", Case(_changing_case(self.work.users), self.work.trades, contenders, check, rounds))

    def _load(self, name: str, columns: str, rows: pa.Table) -> None:
        self.connection.execute(f"CREATE TABLE {name} ({columns})")
        self.connection.table(name).bulk_insert(rows)

    def _create(self, select: str, path: Path) -> str:
        self.views += 1
        name = f"enriched_{self.views}"
        self.connection.execute(f"CREATE TABLE {name} AS {select.format(trades=path.as_uri())} {APPENDED}")
        self.connection.drain(name, timeout=600)
        return name

    def _drop_views(self) -> None:
        for number in range(1, self.views + 1):
            self.connection.execute(f"DROP TABLE IF EXISTS enriched_{number}")

    def _answer(self, name: str) -> Answer:
        table = self.connection.table(name)
        return Answer(len(table), table.scalar("SUM(weighted)"))

    def _view(self, select: str) -> Answer:
        return self._answer(self._create(select, self.work.path))

    def _form(self, form: str, select: str) -> tuple[str, Answer]:
        return form, self._view(select)

    def _check_form(self, answer: tuple[str, Answer]) -> None:
        form, given = answer
        _check(given, right=self.work.right[form])

    def _changing_view(self, changing: ChangingWorkload) -> Answer:
        path = self.folder / f"growing_{self.views}.csv"
        users = self.connection.table("users")
        users.upsert(changing.changes[0])
        path.write_bytes(changing.header + changing.texts[0])
        name = self._create(FORMS[JOIN], path)
        for change, text in zip(changing.changes[1:], changing.texts[1:], strict=True):
            users.upsert(change)
            with path.open("ab") as file:
                file.write(text)
            self.connection.drain(name, timeout=600)
        return self._answer(name)


def _run_peer(process: PeerProcess) -> Callable[[], Answer]:
    """Only the run is timed: what it has written is read by the check."""
    process.run()
    return process.answer


def _check(given: Answer | Callable[[], Answer], *, right: Answer) -> None:
    answer = given if isinstance(given, Answer) else given()
    expect(answer == right, f"gave {answer}, right is {right}")


def _join_case(users: int) -> str:
    return f"join, {users:,} users"


def _form_case(users: int) -> str:
    return f"forms, {users:,} users"


def _changing_case(users: int) -> str:
    return f"{PARTS} batches, 1 % of {users:,} users changed before each"


@dataclass(frozen=True)
class _Ratio:
    """A figure, and what it should be: at least that much, or where that is a limit, at most."""

    what: str
    value: float
    target: float | None = None
    is_limit: bool = False

    def __str__(self) -> str:
        if self.target is None:
            return f"{self.what}: {self.value:.2f} ×"
        met = self.value <= self.target if self.is_limit else self.value >= self.target
        bound = "within" if self.is_limit else "at least"
        return f"{self.what}: {self.value:.2f} × (target: {bound} {self.target} ×, {'met' if met else 'missed'})"


def _ratios(measurements: list[Measurement]) -> Iterator[_Ratio]:
    medians = {(one.case, one.contender): one.median for one in measurements}
    small, large = USERS
    targets = {(small, STATIC): 0.9, (small, "Flink"): 3.0, (small, "Pathway"): 2.0}
    for users in USERS:
        case = _join_case(users)
        for name in [name for of, name in medians if of == case and name != OURS]:
            ratio = medians[case, name] / medians[case, OURS]
            yield _Ratio(f"{case}, against {name}", ratio, targets.get((users, name)))
    grown = medians[_join_case(large), OURS] / medians[_join_case(small), OURS]
    yield _Ratio(f"join, time with {large:,} users against {small:,}", grown, 1.3, is_limit=True)
    for users in USERS:
        case = _changing_case(users)
        ratio = medians[case, PER_BATCH] / medians[case, OURS]
        yield _Ratio(f"{case}, against {PER_BATCH}", ratio, 3.0 if users == large else None)
    for users in USERS:
        case = _form_case(users)
        for form in [form for form in FORMS if form != JOIN]:
            ratio = medians[case, form] / medians[case, JOIN]
            yield _Ratio(f"{case}: time of {form} against the join", ratio, FORM_LIMITS.get(form), is_limit=True)
