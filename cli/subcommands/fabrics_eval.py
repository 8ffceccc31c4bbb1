"""`shardtoll fabrics eval`: how far the model lies from measured sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shardtoll.cli.inputs.options import TablesAsJson, Width, fabric_option, output_option

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline.evaluate.evaluate import Evaluation, Judged
    from shardtoll.analyzers.roofline.evaluate.score import Scored
    from shardtoll.analyzers.roofline.evaluate.sweep import Sweep, SweepPoint
    from shardtoll.analyzers.roofline.machines.fabric import Fabric
    from shardtoll.dashboards.fabrics.sweep_lines import ErrorLine, SizeLine, SweepLine, SweepTable

WRITERS: Final = {
    ".json": "shardtoll.dashboards.fabrics.sweep_file:write_json",
    ".html": "shardtoll.dashboards.fabrics.sweep_file:write_html",
}
"""Ending of a file's name -> what makes such a file of evaluated sweeps."""


def command(
    sweeps: Annotated[list[Path], typer.Argument(metavar="SWEEP.csv...", help="Measured sweeps.")],
    fabric: Annotated[
        str | None,
        fabric_option("The fabric they ran on; without it, chosen by each sweep's hardware column."),
    ] = None,
    calibrate_on: Annotated[
        list[Path] | None,
        typer.Option(
            "--calibrate-on",
            metavar="SWEEP.csv",
            help="Let the model know this sweep (repeatable). If that sweep is evaluated too, every "
            "second size is fitted, from the smallest on, and only the others are scored.",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None, output_option("Write x.json or x.html, a plot (repeatable).")
    ] = None,
    as_json: TablesAsJson = False,
    width: Width = None,
) -> None:
    """Say how far the model lies from measured sweeps, by size band.

    A sweep is a CSV file with the columns hardware, nodes, gpus (of all nodes), collective (as nccl-tests
    names it), bytes, time_us. The columns time_us_inplace, settings and source are read if present.
    Without --calibrate-on nothing is fitted. Exits with 2 if no sweep has any prediction.

    \b
    Examples:
      shardtoll fabrics eval sweep.csv
      shardtoll fabrics eval sweep.csv --calibrate-on sweep.csv -o eval.html
      shardtoll fabrics eval sweep.csv --fabric h100x8-ib400 --json
    """
    from shardtoll.cli.inputs.outputs import choose_writers, tell_written

    writers = choose_writers(output or [], sources=1, makers=WRITERS)
    table = evaluate(sweeps, fabric, calibrate_on or [])
    if as_json:
        from shardtoll.dashboards.fabrics.sweep_file import to_json

        typer.echo(to_json(table))
    else:
        from shardtoll.dashboards.fabrics.sweep_terminal import show

        show(table, width)
    for write, target in writers:
        tell_written(write(table, target), as_json=as_json)
    _refuse_nothing(table)


def _refuse_nothing(table: SweepTable) -> None:
    """Raise UsageError if no sweep has any prediction, so that a script does not take it for a result."""
    from shardtoll.dashboards.words.text import clip
    from shardtoll.ledger import UsageError
    from shardtoll.ledger.words import human

    if any(sweep.predicted for sweep in table.sweeps):
        return
    why, _, do = (table.sweeps[0].reason or "").partition("; ")
    what = f"nothing is predicted of {human.plural(len(table.sweeps), 'sweep')}"
    raise UsageError(f"{what}: {clip(why, 200)}", do or "see the reason of each")


def evaluate(paths: Sequence[Path], fabric: str | None, calibrate_on: Sequence[Path]) -> SweepTable:
    """Return every sweep predicted and scored. Raises UsageError and FabricError in one line."""
    from shardtoll.analyzers.roofline import load_fabric
    from shardtoll.dashboards.fabrics.sweep_lines import SweepTable

    forced = None if fabric is None else load_fabric(fabric)
    on = [(str(path), read_sweep(path)) for path in calibrate_on]
    files = [(str(path), read_sweep(path)) for path in paths]
    pairs = [(file, _evaluate(sweep, forced, on)) for file, sweep in files]
    modes = {evaluation.mode: None for _, evaluation in pairs}
    totals = [(mode, [evaluation for _, evaluation in pairs if evaluation.mode == mode]) for mode in modes]
    return SweepTable(
        sweeps=tuple(_line(file, evaluation, on, forced) for file, evaluation in pairs),
        totals=tuple((mode, _errors(group)) for mode, group in totals),
    )


def read_sweep(path: Path) -> Sweep:
    """Return the sweep in a file. Raises UsageError if it cannot be read, in one line."""
    from shardtoll.analyzers.roofline.evaluate.sweep import MOST_BYTES, parse_sweep
    from shardtoll.ledger import UsageError

    try:
        # Not a pipe or a device, which may never end.
        if not path.is_file():
            what = "is not a file" if path.exists() else "does not exist"
            raise UsageError(f"{path} {what}", "name a CSV file of a sweep")
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{path} cannot be read ({reason})", "name a CSV file of a sweep") from error
    return parse_sweep(text, str(path))


def _evaluate(sweep: Sweep, forced: Fabric | None, on: Sequence[tuple[str, Sweep]]) -> Evaluation:
    from shardtoll.analyzers.roofline.evaluate import evaluate as of
    from shardtoll.analyzers.roofline.evaluate.same_sweep import measured_on, same

    is_fitted = any(same(sweep, other) for _, other in on)
    mode: of.Mode = "calibrated" if is_fitted else "transferred" if on else "model"
    fabric, sure = (forced, "") if forced else of.fabric_of(sweep)
    if fabric is None:
        why = sure.removeprefix("unknown: ")
        return of.refused(
            sweep, mode, f"no fabric is known for this hardware ({why}); name one with --fabric"
        )
    if sweep.ranks < 2:
        return of.refused(sweep, mode, "one GPU sends nothing; give a sweep of two or more", fabric.name)
    if mode == "model" and fabric.curves:
        if measured_on(fabric, sweep):
            why = "the fabric's own curves are of this very sweep; name the sweep with --calibrate-on instead"
            return of.refused(sweep, "transferred", why, fabric.name)
        return replace(of.not_fitted(sweep, fabric), mode="transferred")
    if mode == "model":
        return of.not_fitted(sweep, fabric)
    if mode == "calibrated":
        return of.calibrated(sweep, fabric)
    others = [other for _, other in on if forced or _alike(other, sweep)]
    if not others:
        names = sorted({repr(other.hardware[:60]) for _, other in on})
        why = f"calibrated on other hardware, {', '.join(names)}"
        do = "give sweeps of this hardware to --calibrate-on, or name the fabric of all with --fabric"
        return of.refused(sweep, mode, f"{why}; {do}", fabric.name)
    return of.transferred(sweep, fabric, others)


def _alike(other: Sweep, sweep: Sweep) -> bool:
    """Whether both ran on one kind of machine: its words, with as many nodes, name the same fabric."""
    from shardtoll.analyzers.roofline.evaluate.evaluate import fabric_of

    if other.hardware.casefold() == sweep.hardware.casefold():
        return True
    of_other, _ = fabric_of(replace(other, nodes=sweep.nodes, ranks=sweep.ranks))
    of_sweep, _ = fabric_of(sweep)
    if of_other is None or of_sweep is None:
        return False
    rates = [fabric.inter and fabric.inter.node_gbps for fabric in (of_other, of_sweep)]
    return of_other.name == of_sweep.name and len({rate and rate.value for rate in rates}) == 1


def _line(
    file: str, evaluation: Evaluation, on: Sequence[tuple[str, Sweep]], forced: Fabric | None
) -> SweepLine:
    from shardtoll.analyzers.roofline.evaluate.evaluate import fabric_of
    from shardtoll.dashboards.fabrics.sweep_lines import SweepLine

    sweep = evaluation.sweep
    sure = _given(forced) if forced else fabric_of(sweep)[1]
    files: dict[str, tuple[str, ...]] = {
        "model": (),
        "calibrated": (file,),
        "transferred": tuple(name for name, other in on if forced or _alike(other, sweep)),
    }
    return SweepLine(
        file=file,
        hardware=sweep.hardware,
        op=sweep.op,
        nodes=sweep.nodes,
        ranks=sweep.ranks,
        fabric=evaluation.fabric,
        sure=sure,
        mode=evaluation.mode,
        sizes=tuple(_size(point) for point in evaluation.points),
        fitted=tuple(
            _bare(point) for point in sweep.points if point.message_bytes in evaluation.fitted_bytes
        ),
        on=files[evaluation.mode],
        reason=evaluation.reason,
        guesses=tuple(
            sorted({name for point in evaluation.points if point.cost for name in point.cost.guesses})
        ),
        errors=_errors([evaluation]),
        alone=evaluation.alone,
    )


def _given(fabric: Fabric) -> str:
    curves = len(fabric.curves)
    return f"given, with {curves} measured curves of its own" if curves else "given"


def _bare(point: SweepPoint) -> SizeLine:
    from shardtoll.dashboards.fabrics.sweep_lines import SizeLine

    return SizeLine(point.message_bytes, point.time_ns)


def _size(point: Judged) -> SizeLine:
    from shardtoll.dashboards.fabrics.sweep_lines import SizeLine

    cost = point.cost
    if cost is None:
        return SizeLine(point.message_bytes, point.measured_ns)
    return SizeLine(
        message_bytes=point.message_bytes,
        measured_ns=point.measured_ns,
        predicted_ns=cost.time_ns,
        low_ns=cost.low_ns,
        high_ns=cost.high_ns,
        floor_ns=cost.floor_ns,
        light_ns=cost.light_ns,
        algorithm=cost.algorithm,
        protocol=cost.protocol,
        basis=cost.basis,
    )


def _errors(evaluations: Sequence[Evaluation]) -> tuple[ErrorLine, ...]:
    from shardtoll.analyzers.roofline.evaluate.score import by_band, noise
    from shardtoll.dashboards.fabrics.sweep_lines import ErrorLine

    scored: list[Scored] = [point for evaluation in evaluations for point in evaluation.scored]
    noises = noise(evaluation.sweep for evaluation in evaluations)
    lines = []
    for band, score in by_band(scored).items():
        noise_median, noise_p90 = noises[band] or (None, None)
        if score is None:
            lines.append(ErrorLine(band, 0, None, None, None, noise_median, noise_p90))
        else:
            errors = (score.median, score.p90, score.inside, noise_median, noise_p90)
            below = {"below_floor": score.below_floor, "below_light": score.below_light}
            lines.append(ErrorLine(band, score.count, *errors, width=score.width, **below))
    return tuple(lines)
