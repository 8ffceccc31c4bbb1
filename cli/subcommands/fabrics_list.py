"""`shardtoll fabrics list`: the fabrics that are shipped, and how far their numbers can be trusted."""

from __future__ import annotations

import typer

from shardtoll.cli.inputs.options import SourcedJson, Width


def command(
    as_json: SourcedJson = False,
    width: Width = None,
) -> None:
    """List the known fabrics, as `shardtoll fabrics` does.

    \b
    Examples:
      shardtoll fabrics list
      shardtoll fabrics list --json
    """
    from shardtoll.analyzers.roofline import known_fabrics

    fabrics = known_fabrics()
    if as_json:
        import json

        from shardtoll.cli.subcommands.fabric_json import to_json

        typer.echo(json.dumps([to_json(fabric) for fabric in fabrics]))
        return
    from shardtoll.dashboards.fabrics.list import FabricLine, show

    lines = []
    for fabric in fabrics:
        numbers = [number for _, number in fabric.quantities()]
        numbers += [] if fabric.gpu is None else [number for _, number in fabric.gpu.quantities()]
        guesses = sum(number.confidence == "GUESS" for number in numbers)
        lines.append(FabricLine(fabric.name, fabric.title, fabric.provenance, len(numbers), guesses))
    show(lines, width)
