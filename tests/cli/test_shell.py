"""The prompt, on a terminal of its own."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest


class Terminal:
    """A process on a pseudo-terminal: type into it and read what it shows."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True, close_fds=True
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, pattern: str, *, seconds: float = 60.0) -> str:
        """Wait until the pattern is shown; what was shown before and with it, which is then forgotten."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.shown)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.shown!r}"
            self._read()
        before = self.shown[: found.end()]
        self.shown = self.shown[found.end() :]
        return before

    def interrupt(self) -> None:
        os.kill(self.process.pid, signal.SIGINT)

    def rest(self) -> str:
        """What has been shown since."""
        with suppress(OSError):
            while True:
                self.shown += os.read(self._master, 65536).decode()
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> None:
        try:
            self.shown += os.read(self._master, 65536).decode()
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:
            assert self.process.poll() is None, f"ended: {self.shown!r}"


@pytest.fixture
def open_terminal(environment: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*arguments: str) -> Terminal:
        command = [sys.executable, "-m", "velostream", *arguments]
        terminal = Terminal(command, environment | {"TERM": "dumb", "COLUMNS": "120"})
        opened.append(terminal)
        return terminal

    yield open_one
    for terminal in opened:
        terminal.close()


PROMPT = "velostream> "


def test_a_session_goes_on_after_an_error(open_terminal):
    terminal = open_terminal("sql")
    terminal.expect(PROMPT)
    terminal.type("CREATE TABLE t (id BIGINT PRIMARY KEY,\n")
    terminal.expect(r"\.\.\. ")
    terminal.type("price DECIMAL(10,2));\n")
    terminal.expect('table "t" created')
    terminal.expect(PROMPT)
    terminal.type("SELECT pric FROM t;\n")
    assert "^^^^" in terminal.expect('did you mean "price"')
    terminal.expect(PROMPT)
    terminal.type("INSERT INTO t VALUES (7, 1.50); SELECT price FROM t;\n")
    terminal.expect("1 row")
    terminal.expect(r"1\.50")
    terminal.expect(r"\(1 row\)")
    terminal.expect(PROMPT)
    terminal.type("\\d\n")
    terminal.expect("table")
    terminal.expect(PROMPT)
    terminal.type("\\d t\n")
    terminal.expect(r"DECIMAL\(10,\s?2\)")
    terminal.expect(PROMPT)
    terminal.type("exit\n")
    assert terminal.process.wait(timeout=30) == 0


def test_ctrl_c_drops_what_is_typed_and_keeps_the_session(open_terminal):
    terminal = open_terminal("sql")
    terminal.expect(PROMPT)
    terminal.type("SELECT nonsense\n")
    terminal.expect(r"\.\.\. ")
    terminal.interrupt()
    terminal.expect(PROMPT)
    terminal.type("CREATE TABLE t (id BIGINT);\n")
    terminal.expect('table "t" created')
    terminal.expect(PROMPT)
    terminal.type("\\q\n")
    assert terminal.process.wait(timeout=30) == 0


def test_ctrl_c_cancels_the_statement_and_keeps_the_session(open_terminal):
    terminal = open_terminal("sql")
    terminal.expect(PROMPT)
    terminal.type("CREATE STREAM s (id BIGINT) WITH ('source' = 'memory://s'); CREATE TABLE kept (id BIGINT);\n")
    terminal.expect('table "kept" created')
    terminal.expect(PROMPT)
    terminal.type("SELECT * FROM s;\n")
    terminal.expect(r"--+\r\n", seconds=120)
    terminal.interrupt()
    terminal.expect("cancelled")
    terminal.expect(PROMPT)
    terminal.type("INSERT INTO kept VALUES (41), (42); SELECT COUNT(*) AS n FROM kept;\n")
    terminal.expect("2 rows")
    terminal.expect(r"\(1 row\)")
    terminal.expect(PROMPT)
    terminal.type("exit\n")
    assert terminal.process.wait(timeout=60) == 0


def test_ctrl_c_ends_a_command_that_never_would(open_terminal):
    text = "CREATE STREAM s (id BIGINT) WITH ('source' = 'memory://s'); SELECT * FROM s"
    terminal = open_terminal("sql", "-c", text)
    terminal.expect(r"--+\r\n", seconds=120)
    terminal.interrupt()
    assert terminal.process.wait(timeout=30) == 130
    assert "Traceback" not in terminal.rest()


def test_typed_lines_are_there_in_the_next_session(open_terminal, environment):
    terminal = open_terminal("sql")
    terminal.expect(PROMPT)
    terminal.type("SHOW TABLES;\n")
    terminal.expect(PROMPT)
    terminal.type("exit\n")
    assert terminal.process.wait(timeout=30) == 0
    history = os.path.join(environment["XDG_STATE_HOME"], "velostream", "history")  # noqa: PTH118
    with open(history, encoding="utf-8") as file:  # noqa: PTH123
        assert "SHOW TABLES;" in file.read()


def test_a_transaction_spans_statements(open_terminal):  # B50
    terminal = open_terminal("sql")
    terminal.expect(PROMPT)
    terminal.type("CREATE TABLE t (id BIGINT); BEGIN; INSERT INTO t VALUES (41), (42);\n")
    terminal.expect("2 rows")
    terminal.expect(PROMPT)
    terminal.type("SELECT id FROM t;\n")
    terminal.expect(r"\(2 rows\)")
    terminal.expect(PROMPT)
    terminal.type("ROLLBACK; SELECT id FROM t;\n")
    terminal.expect("rolled back")
    terminal.expect(r"\(0 rows\)")
    terminal.expect(PROMPT)
    terminal.type("\\q\n")
    assert terminal.process.wait(timeout=30) == 0
