"""`velostream sql`: statements from -c, from a pipe, or typed at a prompt."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import velostream
from velostream.cli.interrupts import interruptible
from velostream.cli.output import OutputFormat, write_rows
from velostream.cli.splitting import is_blank, is_complete, split_script
from velostream.errors import VelostreamError, render_text

if TYPE_CHECKING:
    from velostream.engine.connection import Connection
    from velostream.engine.result import Result
    from velostream.engine.session import Session

_PROMPT = "velostream> "
_CONTINUED = "        ... "
_HISTORY_LENGTH = 2000

ENDLESS = -1
"""The row count of an answer that ends only when it is cancelled."""

_HELP = """\
Statements end with ; and may span lines. Ctrl-C cancels what is typed or running.
  \\d            tables and streams
  \\d NAME       columns of one
  \\q, exit      leave (so does Ctrl-D)\
"""


def execute_text(text: str, *, state: Path | None, form: OutputFormat) -> int:
    """Execute statements one after another and write their rows; the first error ends it. Gives the exit code."""
    statements = split_script(text)
    with velostream.connect(state) as connection:
        session = connection.session()
        for statement in statements:
            execute_one(connection, session, statement, form=form)
        session.check_ended(text)
    return 0


def execute_one(connection: Connection, session: Session, statement: str, *, form: OutputFormat) -> int | None:
    """Execute a statement and show its answer (see `show`); Ctrl-C cancels it and is raised."""
    return interruptible(lambda: show(session.execute_text(statement), form=form), on_interrupt=connection.interrupt)


def show(result: Result, *, form: OutputFormat) -> int | None:
    """Write a result: rows to standard output as they come, or what the statement did to standard error.

    Gives the number of rows written, or nothing for a statement that doesn't ask for rows.
    """
    with result:
        if result.message is None:
            return write_rows(result.columns, result, form=form, live=result.rowcount == ENDLESS)
        notice(result.message)
    return None


def notice(text: str) -> None:
    """A line for the person at the terminal, out of the way of data."""
    print(text, file=sys.stderr, flush=True)


def interact(*, state: Path | None, form: OutputFormat) -> int:
    """The prompt, until the end of input. An error is shown and the session goes on."""
    notice(f"velostream {velostream.__version__}, \\? for help")
    with velostream.connect(state) as connection, _History():
        session = _Session(connection, form)
        while True:
            try:
                text = _read_statement()
                if text is None or not session.perform(text):
                    return 0
            except KeyboardInterrupt:
                notice("")


class _Session:
    def __init__(self, connection: Connection, form: OutputFormat) -> None:
        self._connection = connection
        self._session = connection.session()
        self._form = form

    def perform(self, text: str) -> bool:
        """Do what was typed; false when that was to leave."""
        command = text.strip().rstrip(";").strip()
        if command.lower() in ("\\q", "exit", "quit"):
            return False
        if command.startswith("\\"):
            self._command(command)
            return True
        for statement in split_script(text):
            if not self._attempt(statement):
                break
        return True

    def _command(self, command: str) -> None:
        word, _, rest = command.partition(" ")
        name = rest.strip()
        if word == "\\d" and name:
            self._attempt(f"DESCRIBE {name}")
        elif word == "\\d":
            self._attempt("SHOW TABLES")
            self._attempt("SHOW STREAMS")
        else:
            notice(_HELP)

    def _attempt(self, statement: str) -> bool:
        """Execute one statement; whether it succeeded."""
        try:
            count = execute_one(self._connection, self._session, statement, form=self._form)
        except VelostreamError as error:
            notice(render_text(error))
            return False
        except KeyboardInterrupt:
            notice("cancelled")
            return False
        if count is not None and self._form is OutputFormat.TABLE:
            notice("(1 row)" if count == 1 else f"({count} rows)")
        return True


def _read_statement() -> str | None:
    """What is typed up to a `;`, or a command on a line of its own; nothing at the end of input."""
    lines: list[str] = []
    while True:
        try:
            lines.append(input(_CONTINUED if lines else _PROMPT))
        except EOFError:
            notice("")
            return None
        text = "\n".join(lines)
        if len(lines) == 1 and _is_command(text):
            return text
        if is_complete(text):
            return text
        if is_blank(text):
            lines.clear()


def _is_command(line: str) -> bool:
    stripped = line.strip()
    return stripped.startswith("\\") or stripped.lower().rstrip(";") in ("exit", "quit")


class _History:
    """Line editing, and the lines typed in earlier sessions."""

    def __enter__(self) -> None:
        with suppress(ImportError):
            import readline

            readline.set_history_length(_HISTORY_LENGTH)
            with suppress(OSError):
                readline.read_history_file(self._path)

    def __exit__(self, *_: object) -> None:
        with suppress(ImportError):
            import readline

            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(self._path)

    @property
    def _path(self) -> Path:
        base = os.environ.get("XDG_STATE_HOME", "").strip() or "~/.local/state"
        return Path(base).expanduser() / "velostream" / "history"
