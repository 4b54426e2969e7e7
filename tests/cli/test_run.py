"""`velostream run`: once, until a signal, and again on the same state directory."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time

import pytest

from velostream.cli.output import OutputFormat
from velostream.cli.run import run_script
from velostream.errors import VelostreamError


@pytest.fixture
def orders(tmp_path):
    path = tmp_path / "orders.csv"
    path.write_text("id,user_id,amount\n1,a,10.50\n2,b,3.25\n3,a,35.00\n")
    return path


def script_over(orders, *, more: str = "") -> str:
    return (
        f"CREATE TABLE spend AS SELECT user_id, COUNT(*) AS n, SUM(amount) AS total FROM file://{orders} "
        f"WITH ('watch' = 'true') GROUP BY user_id;\n{more}"
    )


SELECT = "SELECT * FROM spend WHERE user_id = 'a';"


@pytest.mark.usefixtures("spark_kept")
def test_once_reads_what_is_there_and_continues_the_next_time(orders, tmp_path, capsys):
    state = tmp_path / "state"
    text = script_over(orders)
    assert run_script(text, state=state, once=True, form=OutputFormat.CSV) == 0
    with orders.open("a") as file:
        file.write("4,a,0.01\n")
    assert run_script(text, state=state, once=True, form=OutputFormat.CSV) == 0
    assert run_script(text + SELECT, state=state, once=True, form=OutputFormat.CSV) == 0
    assert capsys.readouterr().out == "user_id,n,total\na,3,45.51\n"


@pytest.mark.usefixtures("spark_kept")
def test_a_changed_statement_is_refused_with_or_replace_as_the_hint(orders, tmp_path):
    state = tmp_path / "state"
    assert run_script(script_over(orders), state=state, once=True, form=OutputFormat.TABLE) == 0
    changed = script_over(orders).replace("SUM(amount)", "MAX(amount)")
    with pytest.raises(VelostreamError, match="different statement") as raised:
        run_script(changed, state=state, once=True, form=OutputFormat.TABLE)
    assert "OR REPLACE" in str(raised.value.hint)


@pytest.mark.usefixtures("spark_kept")
def test_once_refuses_a_select_that_never_ends(tmp_path):
    text = "CREATE STREAM s (id BIGINT) WITH ('source' = 'memory://s'); SELECT id FROM s;"
    with pytest.raises(VelostreamError, match="has no end"):
        run_script(text, state=None, once=True, form=OutputFormat.TABLE)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_run_cleanly_and_it_can_be_continued(end, orders, tmp_path, environment, velostream):  # B55
    state, script = tmp_path / "state", tmp_path / "app.sql"
    script.write_text(script_over(orders))
    process = subprocess.Popen(
        [sys.executable, "-m", "velostream", "run", str(script), "--state", str(state)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if re.match(r"\w+ spend: ready", line):
            break
    began = time.monotonic()
    process.send_signal(end)
    said.append(process.communicate(timeout=60)[1])
    assert process.returncode == 0, "".join(said)
    assert time.monotonic() - began < 20
    assert "Traceback" not in "".join(said)
    answer = velostream("sql", "--state", state, "-o", "csv", "-c", SELECT)
    assert answer.stdout == "user_id,n,total\na,2,45.50\n", answer.stderr


def test_a_script_that_fails_fails_the_command(velostream, tmp_path):
    script = tmp_path / "app.sql"
    script.write_text("CREATE TABLE t (id BIGINT PRIMARY KEY);\nINSERT INTO t VALUES (1);\nINSERT INTO t VALUES (1);\n")
    answer = velostream("run", script, "--once")
    assert answer.returncode == 1
    assert "exists already" in answer.stderr
