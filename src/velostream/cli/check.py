"""`velostream validate` and `velostream explain`: a script looked at without being run."""

from __future__ import annotations

import sys

import velostream
from velostream.cli.output import OutputFormat, write_rows
from velostream.cli.splitting import split_script
from velostream.engine.rehearsal import Rehearsed, rehearse
from velostream.errors import render_text


def validate_script(text: str) -> int:
    """Print every error and warning of a script; gives the exit code, 1 when there is an error."""
    found = _rehearse(text)
    errors = _print_problems(found)
    if not errors:
        print("1 statement is valid" if len(found) == 1 else f"{len(found)} statements are valid")
    return 1 if errors else 0


def explain_script(text: str, *, extended: bool, form: OutputFormat) -> int:
    """Print the plan of every statement of a script; gives the exit code, 1 when one can't be planned."""
    found = _rehearse(text, extended=extended)
    rows = [
        (number, statement.kind if statement.name is None else f"{statement.kind} {statement.name}", key, value)
        for number, statement in enumerate(found, start=1)
        for key, value in statement.plan
    ]
    write_rows(["#", "statement", "property", "value"], rows, form=form)
    return 1 if _print_problems(found) else 0


def _rehearse(text: str, *, extended: bool = False) -> list[Rehearsed]:
    with velostream.connect() as connection:
        return rehearse(connection, split_script(text), extended=extended)


def _print_problems(found: list[Rehearsed]) -> int:
    """Print errors and warnings to standard error; gives the number of errors."""
    for statement in found:
        for problem in statement.problems:
            severity = "error" if problem in statement.errors else "warning"
            print(f"{severity}: {render_text(problem)}", file=sys.stderr)
    return sum(len(statement.errors) for statement in found)
