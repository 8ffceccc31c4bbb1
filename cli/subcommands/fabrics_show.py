"""`shardtoll fabrics show`: every number of one fabric, its unit, its source and how sure it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardtoll.cli.inputs.options import Width

if TYPE_CHECKING:
    from collections.abc import Iterable

    from shardtoll.analyzers.roofline import Fabric, Quantity
    from shardtoll.dashboards.fabrics.fabric_numbers import NumberLine


def command(
    name: Annotated[str, typer.Argument(metavar="NAME|file.toml", help="A known fabric, or a file of one.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_toml: Annotated[
        bool, typer.Option("--toml", help="Print a fabric file with all its numbers, to start your own from.")
    ] = False,
    width: Width = None,
) -> None:
    """Show every number of one fabric with its unit and source; guesses are marked.

    \b
    Examples:
      shardtoll fabrics show h100x8-ib400
      shardtoll fabrics show aws-p5 --json
      shardtoll fabrics show aws-p5 --toml
    """
    from shardtoll.analyzers.roofline import load_fabric, to_toml

    fabric = load_fabric(name)
    if as_toml:
        typer.echo(to_toml(fabric), nl=False)
    elif as_json:
        import json

        from shardtoll.cli.subcommands.fabric_json import to_json

        typer.echo(json.dumps(to_json(fabric)))
    else:
        _print(fabric, width)


def _print(fabric: Fabric, width: int | None) -> None:
    from shardtoll.cli.jobs.calibration import medians
    from shardtoll.dashboards.fabrics.fabric_numbers import FabricNumbers, Section, show

    kinds = {"intra": fabric.intra and fabric.intra.kind, "inter": fabric.inter and fabric.inter.kind}
    named = list(fabric.quantities())
    nodes = _lines(pair for pair in named if "." not in pair[0])
    sections = [Section("nodes", nodes)] if nodes else []
    for place, title in (("intra", "inside a node"), ("inter", "between nodes")):
        kind = kinds[place]
        of_place = ((key, number) for key, number in named if key.startswith(f"{place}."))
        heading = f"{title}: {kind}" if kind else f"{title}: not known, so costs between nodes are unknown"
        sections.append(Section(heading, _lines(of_place)))
    if fabric.gpu is not None:
        sections.append(Section(f"GPU: {fabric.gpu.title}", _lines(fabric.gpu.quantities())))
    notes = [f"collectives by {fabric.library}"]
    if fabric.sharp:
        notes.append("the network's switches reduce (SHARP)")
    if fabric.curves:
        notes.append(f"{medians(fabric)} go before the model")
    show(FabricNumbers(fabric.name, fabric.title, fabric.provenance, tuple(notes), tuple(sections)), width)


def _lines(numbers: Iterable[tuple[str, Quantity]]) -> tuple[NumberLine, ...]:
    from shardtoll.analyzers.roofline.machines.quantity import unit_of
    from shardtoll.dashboards.fabrics.fabric_numbers import NumberLine

    return tuple(
        NumberLine(name, number.value, unit_of(name), number.source, number.confidence)
        for name, number in numbers
    )
