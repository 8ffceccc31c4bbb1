"""`shardtoll fabrics`: the interconnects whose floors can be computed, and the commands about them."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Final

import typer

from shardtoll.cli import fabrics_list
from shardtoll.cli.options import Width

SUBCOMMANDS: Final = ("list", "show", "eval")
"""Commands under this one; each is the function `command` in the file `fabrics_` and its name."""


def group() -> typer.Typer:
    """Return the command with those under it; alone it lists."""
    made = typer.Typer(rich_markup_mode=None)
    made.callback(invoke_without_command=True)(command)
    for name in SUBCOMMANDS:
        made.command(name)(import_module(f"shardtoll.cli.fabrics_{name}").command)
    return made


def command(
    context: typer.Context,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with the source of every number.")
    ] = False,
    width: Width = None,
) -> None:
    """List the known fabrics and how far their numbers can be trusted; `show` tells all of one.

    \b
    Examples:
      shardtoll fabrics
      shardtoll fabrics --json
      shardtoll fabrics show h100x8-ib400
    """
    if context.invoked_subcommand is None:
        fabrics_list.command(as_json, width)
