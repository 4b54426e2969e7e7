"""A process killed while it commits: what it had acknowledged is there, and nothing of what it hadn't is half there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence

_COMMITTING = """
import sys
from pathlib import Path

import pyarrow as pa

from velostream.model.change import Epoch, Mode, Write
from velostream.model.schema import Schema
from velostream.tables.memory import CommitSequence, Part, store

store._SMALLEST_LOG_TO_MERGE = 30_000
sequence = CommitSequence.open(Path(sys.argv[1]))
schema = Schema.of(("id", "BIGINT"), ("step", "BIGINT"), key=["id"])
keyed = sequence.create_table("keyed", name="keyed", schema=schema)
bag = sequence.create_table("bag", name="bag", schema=Schema(schema.columns))
last = sequence.writer("w")
step = 0 if last is None else last.epoch + 1
while True:
    rows = pa.table({"id": [step % 50, step % 7 + 100], "step": [step, step]})
    writes = [(keyed, Write(Mode.UPSERT, rows)), (bag, Write(Mode.APPEND, rows.slice(0, 1)))]
    sequence.commit(Part(writes, Epoch("w", step), position=step))
    print(step, flush=True)
    step += 1
"""


def test_acknowledged_commits_survive_a_kill_and_no_other_is_half_there(tmp_path: Path):  # B55
    seed = random.Random(11)
    acknowledged = -1
    for _ in range(4):
        wanted = acknowledged + seed.randint(20, 120)
        with subprocess.Popen(
            [sys.executable, "-c", _COMMITTING, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout:
                acknowledged = int(line)
                if acknowledged >= wanted:
                    process.send_signal(signal.SIGKILL)
                    break
            for line in process.stdout:
                acknowledged = int(line) if line.endswith("\n") else acknowledged
        sequence = CommitSequence.open(tmp_path)
        step = sequence.writer("w").epoch
        assert step in (acknowledged, acknowledged + 1)
        assert sequence.writer("w").position == step
        assert sequence.table("bag").snapshot().scan().column("step").to_pylist() == list(range(step + 1))
        expected = {done % 50: done for done in range(step + 1)} | {done % 7 + 100: done for done in range(step + 1)}
        keyed = sequence.table("keyed").snapshot()
        assert {row["id"]: row["step"] for row in keyed.scan().to_pylist()} == expected
        assert keyed.get(step % 50)["step"] == step
        assert sequence.table("keyed").schema == Schema.of(("id", "BIGINT"), ("step", "BIGINT"), key=["id"])
        sequence.close()
        acknowledged = step
    assert (tmp_path / "base.json").exists()
