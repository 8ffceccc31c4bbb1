"""The command line: one file a command, errors caught once, heavy parts imported when a command runs.

It may import `analyzers.budget`, `analyzers.compare`, `analyzers.hang`, `analyzers.roofline`,
`analyzers.two_runs`, `analyzers.verify`, `cli.incidents`, `cli.inputs`, `cli.jobs`, `cli.subcommands`,
`dashboards.app`, `dashboards.check`, `dashboards.fabrics`, `dashboards.terminal`, `dashboards.verify`,
`dashboards.words`, `ledger`, `ledger.answers`, `ledger.measured`, `ledger.report`, `ledger.words`,
`profiler.calibrate`.
Start reading in `report`.
"""

from __future__ import annotations

import atexit
import errno
import gc
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
import typer.core

COMMANDS: Final = (
    *("demo", "run", "report", "serve", "whatif", "verify", "compare"),
    *("hang", "check", "budget", "fabrics", "gpus", "calibrate"),
    *("dryrun", "forecast", "advise"),
)
"""Names of the commands, in the order of the help; each is the function `command` in the file of its name.

`CONTEXT`, if a file has it, is how its command reads arguments. `SUBCOMMANDS` are the commands under it. Each
is the function `command` in the file of both names in `subcommands`. `ALONE`: whether it runs without one.
Such a file imports typer at its top and no more: `shardtoll --help` imports them all.
"""


def main() -> None:
    """Run the command line. A mistake that a user can fix is shown in one line; it has the exit code."""
    # Imports make many objects and little garbage: looking for it took a fifth of a short command's time.
    gc.set_threshold(250_000, 20, 20)
    atexit.register(gc.freeze)
    for stream in (sys.stdout, sys.stderr):
        # Output that cannot hold µ gets a question mark, not a traceback.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        app(sys.argv[1] if len(sys.argv) > 1 else None)()
    except _told() as error:
        # Cleaned and shortened when it was made.
        sys.stderr.write(f"shardtoll: {error}\n")
        sys.exit(getattr(error, "exit_code", 2))
    except OSError as error:
        # Any code that looks at a path first meets it; only an argument, or a match of a pattern, can be so
        # long.
        if error.errno != errno.ENAMETOOLONG:
            raise
        from shardtoll.ledger.records.errors import UsageError

        told = UsageError(f"{error.filename} cannot be used ({error.strerror})", "give a shorter path")
        sys.stderr.write(f"shardtoll: {told}\n")
        sys.exit(told.exit_code)


def _told() -> tuple[type[Exception], ...]:
    """Return the errors that are reported in one line.

    Python asks only once something was raised. If nothing has imported the ledger's errors by then, the error
    was none of them. Help need not import them either.
    """
    errors = sys.modules.get("shardtoll.ledger.records.errors")
    return () if errors is None else (errors.ShardtollError,)


def app(asked: str | None = None) -> typer.Typer:
    """Return the command line with all its commands, or with the one that is asked for, if it is known."""
    made = typer.Typer(
        name="shardtoll",
        cls=_InOrder,
        help="Shows what each collective of a training step costs, who caused it, and what to change.",
        add_completion=False,
        no_args_is_help=True,
        # Plain help keeps the examples' lines as they are, and needs no rich.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    made.callback()(_options)
    for name in (asked,) if asked in COMMANDS else COMMANDS:
        module = import_module(f"shardtoll.cli.{name}")
        if hasattr(module, "SUBCOMMANDS"):
            made.add_typer(_group(name, module), name=name)
            continue
        made.command(name, context_settings=getattr(module, "CONTEXT", None))(module.command)
    return made


def _group(name: str, module: Any) -> typer.Typer:
    """Return a command with those under it."""
    group = typer.Typer(cls=_group_class(module), rich_markup_mode=None, no_args_is_help=not module.ALONE)
    group.callback(invoke_without_command=module.ALONE)(module.command)
    for under in module.SUBCOMMANDS:
        group.command(under)(import_module(f"shardtoll.cli.subcommands.{name}_{under}").command)
    return group


def _group_class(module: Any) -> type[typer.core.TyperGroup]:
    """Return the class of a group: one with a `DEFAULT` takes that command if the first word names none."""
    default = getattr(module, "DEFAULT", None)
    if default is None:
        return typer.core.TyperGroup

    class Defaulting(typer.core.TyperGroup):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            named = args and (args[0] in self.commands or args[0] in ("--help", "-h"))
            return super().parse_args(ctx, args if named or not args else [str(default), *args])

    return Defaulting


_WrongUse: Final[Any] = typer.BadParameter.__base__
"""Base class of all mistakes in arguments; typer has changed the library that it takes them from."""


class _InOrder(typer.core.TyperGroup):
    """Commands as `COMMANDS` has them (typer lists those with others under them last); errors in one line."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run as typer does, but report a mistake in the arguments like all other mistakes."""
        try:
            ended = super().main(*args, **{**options, "standalone_mode": False})
        except typer.Abort:
            sys.exit(1)
        except _WrongUse as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                error.show()
                sys.exit(error.exit_code)
            from shardtoll.ledger.records.errors import UsageError

            asked = error.ctx.command_path if error.ctx is not None else "shardtoll"
            raise UsageError(error.format_message().rstrip("."), f"see `{asked} --help`") from None
        sys.exit(ended if type(ended) is int else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if self.get_command(ctx, name)]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"shardtoll {version('shardtoll')}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of shardtoll itself; typer shows the app's help instead of this."""
