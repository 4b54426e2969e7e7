"""The commands and their options. What a command does is in the module of its name, imported when it is called."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import velostream
from velostream.cli.output import OutputFormat
from velostream.errors import Category, VelostreamError, render_text

app = typer.Typer(
    name="velostream",
    help="SQL whose tables stay up to date.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ScriptFile = Annotated[Path, typer.Argument(metavar="APP.SQL", help="A file of SQL statements; - is standard input.")]
StateDirectory = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", help="Keep tables and positions here and resume from it.")
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How rows are written.")]


def main() -> NoReturn:
    """Run a command. Exit code 0 means that everything succeeded; errors are on standard error."""
    try:
        app(standalone_mode=True)
    except VelostreamError as error:
        print(render_text(error), file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone (`| head`). Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(0)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"velostream {velostream.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """SQL whose tables stay up to date."""


@app.command()
def run(
    script: ScriptFile,
    state: StateDirectory = None,
    once: Annotated[
        bool, typer.Option("--once", help="Read everything that is there now, commit it, and exit.")
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Run a script and keep its tables up to date until Ctrl-C."""
    from velostream.cli.run import run_script

    sys.exit(run_script(read_script(script), state=state, once=once, form=output))


@app.command()
def sql(
    command: Annotated[
        str | None, typer.Option("--command", "-c", metavar="SQL", help="Execute this and exit.")
    ] = None,
    state: StateDirectory = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Execute statements: those of -c, of standard input, or typed at a prompt."""
    from velostream.cli.shell import execute_text, interact

    if command is not None:
        sys.exit(execute_text(command, state=state, form=output))
    if not sys.stdin.isatty():
        sys.exit(execute_text(sys.stdin.read(), state=state, form=output))
    sys.exit(interact(state=state, form=output))


@app.command()
def validate(script: ScriptFile) -> None:
    """Find everything that is wrong with a script, without running it."""
    from velostream.cli.check import validate_script

    sys.exit(validate_script(read_script(script)))


@app.command()
def explain(
    script: ScriptFile,
    extended: Annotated[bool, typer.Option("--extended", help="Show the SQL that Spark runs, too.")] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show how each statement of a script would be kept up to date, without running it."""
    from velostream.cli.check import explain_script

    sys.exit(explain_script(read_script(script), extended=extended, form=output))


@app.command()
def doctor(
    spark: Annotated[bool, typer.Option("--spark", help="Start Spark and run a query, too.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Build what makes Spark start faster.")] = False,
) -> None:
    """Say what is installed, what is missing, and the command that fixes it."""
    from velostream.cli.doctor import examine

    sys.exit(examine(spark=spark, fix=fix))


@app.command()
def demo(
    once: Annotated[bool, typer.Option("--once", help="Print the results without the live view.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the state directory and say where it is.")] = False,
) -> None:
    """A trading desk on live tables, in under a minute."""
    from velostream.cli.demo import run as run_demo

    sys.exit(run_demo(once=once, keep=keep))


def read_script(path: Path) -> str:
    """The text of a script file."""
    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise VelostreamError(
            f'script "{path}" does not exist', hint="check the path", code="missing-script", category=Category.MISSING
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise VelostreamError(
            f'script "{path}" can\'t be read',
            detail=str(error),
            code="unreadable-script",
            category=Category.CONFIGURATION,
        ) from error
