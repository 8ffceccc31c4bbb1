"""`shardtoll fabrics`: the interconnects whose floors can be computed, and where their numbers come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardtoll.cli.options import Width

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline import Fabric


def command(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, with the source of every number.")
    ] = False,
    width: Width = None,
) -> None:
    """List the known fabrics with the sources of their numbers.

    \b
    Examples:
      shardtoll fabrics
      shardtoll fabrics --json
    """
    from shardtoll.analyzers.roofline import known_fabrics

    fabrics = known_fabrics()
    if as_json:
        import json

        typer.echo(json.dumps([_plain(fabric) for fabric in fabrics]))
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


def _plain(fabric: Fabric) -> dict[str, Any]:
    return {
        "name": fabric.name,
        "title": fabric.title,
        "provenance": fabric.provenance,
        "measured": fabric.measured,
        "numbers": {
            name: {"value": number.value, "source": number.source, "confidence": number.confidence}
            for name, number in fabric.quantities()
        },
    }
