"""ASOF JOIN through the lookup stage gives what Spark gives for the lateral subquery it stands for."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from velostream.engine.lookup import ReplicatedTable, run_stages
from velostream.engine.relations import arrow_result, run_sql
from velostream.model.change import Mode, Write
from velostream.model.schema import Schema
from velostream.sql.plan import AsOf, KeyPair, Lookup, Stages
from velostream.tables.memory import CommitSequence

RATES = Schema.of(("id", "BIGINT"), ("k", "STRING"), ("valid_from", "TIMESTAMP"), ("note", "STRING"), key=["id"])
EVENTS = Schema.of(("n", "BIGINT"), ("k", "STRING"), ("ts", "TIMESTAMP"))
SEED = 7


def moments(choose, count):
    start = datetime(2024, 1, 1, tzinfo=UTC)
    return [start + timedelta(minutes=choose.randrange(0, 200)) for _ in range(count)]


def rates(choose, *, first):
    """Versions of a few things, never two of one thing from the same moment; some without a key or a time."""
    versions = sorted({(choose.choice("abc"), moment) for moment in moments(choose, 60)})
    rows = [{"id": first + n, "k": k, "valid_from": at, "note": f"{k} {at}"} for n, (k, at) in enumerate(versions)]
    rows += [{"id": first + 900, "k": None, "valid_from": moments(choose, 1)[0], "note": "no key"}]
    rows += [{"id": first + 901, "k": "a", "valid_from": None, "note": "no time"}]
    return pa.Table.from_pylist(rows, schema=RATES.arrow)


def events(choose, count):
    times = [*moments(choose, count - 2), None, None]
    rows = [{"n": n, "k": choose.choice(["a", "b", "c", "d", None]), "ts": at} for n, at in enumerate(times)]
    return pa.Table.from_pylist(rows, schema=EVENTS.arrow)


@pytest.mark.parametrize("outer", [False, True], ids=["inner", "left"])
def test_the_nearest_version_is_sparks(session, relations, publisher, outer):
    choose = random.Random(SEED)
    table = CommitSequence().create_table("t", name="t", schema=RATES)
    batch = events(choose, 120)
    for first, (comparison, latest, inclusive) in enumerate(
        [(">=", True, True), (">", True, False), ("<=", False, True), ("<", False, False)]
    ):
        table.commit(Write(Mode.REPLACE, rates(choose, first=first * 1000)))
        at = table.version
        as_of = AsOf("`ts`", "valid_from", latest, inclusive)
        lookup = Lookup("t", outer, (KeyPair("`k`", "k"),), ("note",), "t_", "index", as_of)
        published = ReplicatedTable(RATES, publisher.publish(table, columns=("k",), at=at))
        frame = relations.frame_of_rows(session, batch, EVENTS)
        stages = Stages((lookup,), "SELECT stage.n, stage.t_note AS note FROM stage")
        found = arrow_result(run_stages(session, frame, stages, tables={"t_": published}))
        expected = arrow_result(
            run_sql(
                session,
                f"SELECT s.n, r.note FROM s {'LEFT' if outer else ''} JOIN LATERAL (SELECT * FROM t "
                f"WHERE t.k = s.k AND s.ts {comparison} t.valid_from "
                f"ORDER BY t.valid_from {'DESC' if latest else 'ASC'} LIMIT 1) AS r ON TRUE",
                {"s": frame, "t": relations.frame(session, "t", table.snapshot(at))},
            )
        )
        assert Counter(map(str, found.to_pylist())) == Counter(map(str, expected.to_pylist()))
        assert found.num_rows
