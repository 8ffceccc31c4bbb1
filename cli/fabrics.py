"""`shardtoll fabrics`: the interconnects whose floors can be computed, and where their numbers come from."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Final

import typer

from shardtoll.cli.options import Width

SUBCOMMANDS: Final = ("show", "eval")
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
    """List the known fabrics with the sources of their numbers; see one with `shardtoll fabrics show`.

    \b
    Examples:
      shardtoll fabrics
      shardtoll fabrics --json
    """
    if context.invoked_subcommand is not None:
        return
    from shardtoll.analyzers.roofline import known_fabrics

    fabrics = known_fabrics()
    if as_json:
        import json

        from shardtoll.cli.fabric_json import to_json

        typer.echo(json.dumps([to_json(fabric) for fabric in fabrics]))
        return
    from shardtoll.dashboards.fabrics import FabricLine, show

    lines = [
        FabricLine(
            name=fabric.name,
            title=fabric.title,
            provenance=fabric.provenance,
            numbers=len(list(fabric.quantities())),
            guesses=len(fabric.guesses),
        )
        for fabric in fabrics
    ]
    show(lines, width)
