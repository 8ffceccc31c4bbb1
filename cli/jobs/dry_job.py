"""The work of `shardtoll dryrun`: it checks its arguments, runs the script dry, prices the step and shows
it."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from shardtoll.cli.inputs.outputs import choose_writers, make_folder, tell_written
from shardtoll.cli.inputs.price import price_per_gpu_hour
from shardtoll.cli.jobs.stages import Stages
from shardtoll.ledger import UsageError

if TYPE_CHECKING:
    from shardtoll.ledger import Ledger
    from shardtoll.ledger.answers.dry_step import DryMachine, DryStep

_REMIND_S: Final = 60.0
"""How often a script that made too few steps so far is named."""


@dataclass(frozen=True, slots=True)
class DryRequest:
    """The command's arguments."""

    world: int
    rank: int
    gpu: str
    fabric: str | None
    steps: int
    item: str | None
    price: str | None
    tokens: int | None


def dryrun(
    script: Path,
    arguments: Sequence[str],
    request: DryRequest,
    *,
    out: Path | None,
    output: tuple[Path, ...],
    as_json: bool,
    width: int | None,
) -> None:
    """Run the script dry and print the price of a step.

    Raises UsageError for arguments that cannot be used, before the script runs, and for a script that fails.
    """
    if not script.is_file():
        raise UsageError(f"there is no script {script}", "name a Python file, then its own arguments")
    if request.rank >= request.world:
        raise UsageError(f"--rank {request.rank} in a job of {request.world}", "ranks count from 0")
    per_hour = price_per_gpu_hour(request.price)
    writers = choose_writers(output, sources=1, keeps_run=True)
    if out is not None:
        make_folder(out)
    here = Path.cwd()
    machine = _machine(request)
    with Stages(3) as stages:
        stages.begin(f"{script.name} as rank {request.rank} of {request.world:,} on {machine.title}")
        # A narrow terminal cuts the end off.
        waits = f"Ctrl-C ends it: waits for {request.steps + 1:,} optimizer steps of {script.name}"
        with stages.waiting(waits, _REMIND_S):
            ledger = _recorded(script, arguments, request, machine)
        stages.begin("prices")
        from shardtoll.analyzers.forecast.dry import price_dry
        from shardtoll.analyzers.roofline import fabric_on_record

        fabric = fabric_on_record(ledger.run)
        assert fabric is not None, "a dry run names its fabric"
        ledger, answer = price_dry(ledger, fabric, tokens=request.tokens, price_per_gpu_hour=per_hour)
        if out is not None:
            _keep(here / out, ledger)
        _show(answer, as_json=as_json, width=width)
        if writers:
            stages.begin("the report")
            from shardtoll.ledger import analyze

            report = analyze(ledger, fabric)
            for write, target in writers:
                written = write(report, here / target)
                named = [file if target.is_absolute() else file.relative_to(here) for file in written]
                tell_written(named, as_json=as_json)
    if out is not None:
        typer.echo(f"kept in {out}: shardtoll report {out}", err=as_json)


def _machine(request: DryRequest) -> DryMachine:
    from shardtoll.analyzers.forecast.dry.played_machine import machine_of

    return machine_of(request.gpu, request.fabric)


def _recorded(script: Path, arguments: Sequence[str], request: DryRequest, machine: DryMachine) -> Ledger:
    """Run the script; its output goes to stderr, as it is no result."""
    from shardtoll.profiler.dryrun.device.values import policy_of
    from shardtoll.profiler.dryrun.device.world import World
    from shardtoll.profiler.dryrun.dry_options import DryOptions
    from shardtoll.profiler.dryrun.script import run_dry

    try:
        policy = policy_of(request.item)
    except ValueError:
        raise UsageError(f"--item {request.item!r:.40}", "give a number, or balanced") from None
    options = DryOptions(
        World(request.world, request.rank, machine.per_host),
        machine,
        steps=request.steps,
        policy=policy,
        stop=True,
    )
    with contextlib.redirect_stdout(sys.stderr):
        return run_dry(script, arguments, options)


def _keep(folder: Path, ledger: Ledger) -> None:
    from shardtoll.ledger.disk.run_files import clear
    from shardtoll.ledger.disk.run_writer import write_rank

    clear(folder)
    write_rank(folder, ledger, uuid.uuid4().hex)


def _show(answer: DryStep, *, as_json: bool, width: int | None) -> None:
    if as_json:
        import json

        from shardtoll.ledger.foreign.plain import to_plain

        typer.echo(json.dumps(to_plain(answer), allow_nan=False))
        return
    from shardtoll.dashboards.terminal.answers import show
    from shardtoll.dashboards.terminal.dry_shown import renderable

    show(lambda columns: renderable(answer, columns), width)
