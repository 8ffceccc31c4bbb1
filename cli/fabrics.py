"""`shardtoll fabrics`: the interconnects whose floors can be computed, and the commands about them."""

from __future__ import annotations

from typing import Final

import typer

from shardtoll.cli.inputs.options import SourcedJson, Width
from shardtoll.cli.subcommands import fabrics_list

SUBCOMMANDS: Final = ("list", "show", "eval")
ALONE: Final = True
"""Without a command it lists."""


def command(
    context: typer.Context,
    as_json: SourcedJson = False,
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
