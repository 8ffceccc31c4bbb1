"""`shardtoll budget`: the commands about budgets."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import typer

SUBCOMMANDS: Final = ("init",)
"""Commands under this one; each is the function `command` in the file `budget_` and its name."""


def group() -> typer.Typer:
    """Return the command with those under it."""
    made = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
    made.callback()(command)
    for name in SUBCOMMANDS:
        made.command(name)(import_module(f"shardtoll.cli.budget_{name}").command)
    return made


def command() -> None:
    """Write a budget from a run; `shardtoll check` holds later runs to it.

    \b
    Examples:
      shardtoll budget init runs/a
      shardtoll budget init runs/a -o tight.toml --slack 5%
    """
