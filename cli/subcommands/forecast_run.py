"""`shardtoll forecast RUN`: a measured run re-priced for other machines and other numbers of GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtoll.cli.inputs.options import (
    NoCache,
    TablesAsJson,
    Width,
    fabric_option,
    gpu_option,
    output_option,
)

if TYPE_CHECKING:
    from shardtoll.analyzers.forecast.compute.cards import Card
    from shardtoll.analyzers.forecast.rescale.sent_price import Machine
    from shardtoll.analyzers.roofline import Fabric
    from shardtoll.ledger import Report
    from shardtoll.ledger.answers.forecast import Band, Scaling


def command(
    path: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder or traces of one job.", show_default=False)
    ],
    world: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of ranks; without it, the run's own."),
    ] = None,
    fabric: Annotated[
        str | None, fabric_option("The interconnect to forecast for; without it, the run's own.")
    ] = None,
    gpu: Annotated[
        str | None, gpu_option("The GPU to forecast for, as h100-sxm; default: the run's.")
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option(
            "--calibrate",
            metavar="RUN",
            help="A run of the same job on another number of ranks, which corrects.",
        ),
    ] = None,
    output: Annotated[list[Path] | None, output_option("Write x.html, x.json or x.md (repeatable).")] = None,
    as_json: TablesAsJson = False,
    no_cache: NoCache = False,
    width: Width = None,
) -> None:
    """Forecast a run's step on another number of ranks, another fabric or another GPU.

    Collectives are priced anew for their new group sizes, scaled by the measurement. Compute goes with the
    GPU's measured rates. Weak scaling keeps the work of each GPU, strong scaling that of the step.

    \b
    Examples:
      shardtoll forecast run runs/a --world 16
      shardtoll forecast run runs/a --world 8 --fabric loopback-gloo -o forecast.html
      shardtoll forecast run runs/a --json
    """
    from shardtoll.cli.inputs.outputs import ANSWERS, check_targets, show_answer, write_answer

    check_targets(output or [], ANSWERS["forecast"])
    answer = scaling(path, world, fabric, gpu, calibrate, cache=not no_cache)
    show_answer("forecast", answer, as_json=as_json, width=width)
    write_answer("forecast", answer, output or [], as_json=as_json)


def scaling(
    path: str, world: int | None, fabric: str | None, gpu: str | None, calibrate: str | None, *, cache: bool
) -> Scaling:
    """Return the answer. Raises UsageError and FabricError in one line."""
    from dataclasses import replace

    from shardtoll.analyzers.forecast.compute.cards import card_of, card_of_gpu
    from shardtoll.analyzers.forecast.rescale.other_sizes import scale_run
    from shardtoll.analyzers.roofline import fabric_names, load_fabric
    from shardtoll.cli.inputs.inputs import one_report
    from shardtoll.cli.inputs.traces import TraceOptions
    from shardtoll.cli.inputs.waiting import waiting
    from shardtoll.ledger import UsageError

    # Wrong names are reported before a large run is read.
    named = None if fabric is None else load_fabric(fabric)
    wanted = None if gpu is None else card_of(gpu)
    options = TraceOptions(cache=cache)
    report = one_report(path, None, options)
    before = _machine(report)
    after = before
    if named is not None and named.name == before.fabric.name and fabric in fabric_names():
        # The run's own fabric fits its machine, and holds further facts from the run.
        named = None
    assumed = _usual(before, wanted) if named is None and _lacks_links(before, world) else None
    named = named or assumed
    if named is not None:
        per_node = named.ranks_per_domain or named.ranks_per_node
        after = replace(after, fabric=named, per_node=int(per_node.value) if per_node else before.per_node)
        if wanted is None and before.gpu is not None and named.gpu is not None and assumed is None:
            wanted = card_of_gpu(named.gpu)
    if wanted is not None:
        if before.gpu is None:
            device = report.run.device or "an unknown device"
            raise UsageError(
                f"{path} ran on {device}: its compute says nothing of {wanted.name}",
                "forecast a run on a known GPU, or use `shardtoll dryrun`",
            )
        after = replace(after, gpu=wanted)
    anchor = one_report(calibrate, None, options) if calibrate else None
    with waiting("forecasting the step"):
        own = _own_forecast(report)
        band = None if isinstance(own, str) else own
        answer = scale_run(report, path, before, after, world or report.run.world_size, anchor, band)
    notes = [own] if isinstance(own, str) else []
    if assumed is not None:
        notes.append(
            f"{before.fabric.name} has no links between hosts: {assumed.name} is assumed; name another by "
            "--fabric"
        )
    return replace(answer, notes=(*notes, *answer.notes))


def _own_forecast(report: Report) -> Band | str | None:
    """Return the dry run's own forecast of its step. The answer is a note if an older version made it on a
    machine of a file, whose figures it did not keep.

    None for measured runs, and if the operators are not on record, as in saved reports.
    """
    from shardtoll.analyzers.forecast.dry import price_dry
    from shardtoll.analyzers.roofline import fabric_on_record, known_gpus
    from shardtoll.ledger import Ledger

    run = report.run
    if run.source != "dry" or run.gpu is None or run.fabric is None or not report.tables["dry_ops"].num_rows:
        return None
    fabric = fabric_on_record(run)
    has_gpu = run.gpu_toml is not None or run.gpu in {gpu.name for gpu in known_gpus()}
    for kind, name, known in (("fabric", run.fabric, fabric is not None), ("GPU", run.gpu, has_gpu)):
        if not known:
            return (
                f"the dry run's {kind} {name!r:.80} is a file, which the run does not keep. Its step is the "
                "recorded one, with the band of a measured run"
            )
    ledger = Ledger(run, report.groups, report.tables)
    assert fabric is not None
    return price_dry(ledger, fabric)[1].step_ns


def _lacks_links(machine: Machine, world: int | None) -> bool:
    """Whether so many ranks need links between hosts, and the run's own machine has none on record."""
    fabric = machine.fabric
    return (
        world is not None and world > machine.per_node and fabric.inter is None and fabric.intra is not None
    )


def _usual(machine: Machine, gpu: Card | None) -> Fabric | None:
    """Return the usual fabric of many such machines; None if there is none."""
    from shardtoll.analyzers.forecast.plan.check import usual_fabric
    from shardtoll.analyzers.roofline import load_fabric
    from shardtoll.ledger import UsageError

    card = gpu or machine.gpu
    try:
        return None if card is None else load_fabric(usual_fabric(card.key))
    except UsageError:
        return None


def _machine(report: Report) -> Machine:
    """Return the machine of the run, as far as its record has it."""
    from shardtoll.analyzers.forecast.compute.cards import card_of_run
    from shardtoll.analyzers.forecast.rescale.sent_price import Machine
    from shardtoll.analyzers.roofline import choose_fabric, fabric_names, load_fabric

    run = report.run
    chosen = choose_fabric(run)
    if chosen.intra is None and report.fabric.name in fabric_names():
        chosen = load_fabric(report.fabric.name)
    per = chosen.ranks_per_domain or chosen.ranks_per_node
    per_node = run.ranks_per_host or (int(per.value) if per else 8)
    return Machine(chosen, card_of_run(run), per_node)
