"""`shardtoll run`: audits a training script without editing it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from shardtoll.cli.inputs.options import (
    SCRIPT_CONTEXT,
    Script,
    ScriptArguments,
    Width,
    output_option,
)

CONTEXT: Final = SCRIPT_CONTEXT


# Longer than 80 lines: typer reads the options, and the help its text, from this signature.
def command(
    script: Script,
    arguments: ScriptArguments = None,
    nproc: Annotated[
        int | None,
        typer.Option(
            "--nproc",
            min=1,
            metavar="N",
            help="Start N ranks on this machine, with torch's launcher; several have one OpenMP thread each "
            "unless OMP_NUM_THREADS is set. Leave it out under torchrun.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="The run folder, for shardtoll report; kept nowhere else."
        ),
    ] = None,
    level: Annotated[
        str,
        typer.Option(
            "--level",
            metavar="LEVEL",
            help="survey: every operator of every step. watch: collectives only. schedule: a few steps are "
            "surveyed, the others watched.",
        ),
    ] = "schedule",
    survey_every: Annotated[
        int, typer.Option("--survey-every", min=1, metavar="N", help="Under schedule: survey one step in N.")
    ] = 100,
    trace: Annotated[
        bool, typer.Option("--trace", help="Have torch's profiler record the first steps, for device times.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", help="End the audit after N steps; the script goes on."),
    ] = None,
    step_on: Annotated[
        str | None,
        typer.Option(
            "--step-on",
            metavar="MODULE:FUNCTION",
            help="A step ends when this function returns. Without it, when the first torch optimizer has "
            "stepped, or DeepSpeed's engine has updated.",
        ),
    ] = None,
    checks: Annotated[
        str | None,
        typer.Option(
            "--checks",
            metavar="NAMES",
            help="gradients, replicas, data, or several with commas: compare values too, in every step, as "
            "audit(model, checks=...) does. The model is the first module called in training; where the "
            "optimizer trains more than that, a line says so.",
        ),
    ] = None,
    hang_after: Annotated[
        float | None,
        typer.Option(
            "--hang-after",
            metavar="SECONDS",
            help="Write the stacks of all threads to the run folder if one rank stands still longer than "
            "this; 0 writes no stacks. See shardtoll hang.",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        output_option(
            "Write a file too: .html, .json, .csv, .md, .perfetto.json and what else report -o writes."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the bill.")] = False,
    width: Width = None,
) -> None:
    """Run a training script and print the bill of its steps; the script need not know of shardtoll.

    A step lasts from one update of the parameters to the next, the first one from the first forward. The
    script's output and exit code stay as they are; rank 0 prints the bill when it ends. Options of
    shardtoll come before SCRIPT. Under torchrun, write -m shardtoll.cli run instead of the command.

    \b
    Examples:
      shardtoll run --nproc 2 train.py --lr 0.1
      torchrun --nproc-per-node 2 -m shardtoll.cli run --level survey --out runs/a train.py
      torchrun --nproc-per-node 2 --no-python shardtoll run --steps 2 -o bill.json train.py
    """
    from shardtoll.cli.jobs.run_job import RunOptions, run

    names = tuple(dict.fromkeys(name.strip() for name in (checks or "").split(",") if name.strip()))
    files = tuple(output or ())
    run(
        script,
        arguments or [],
        nproc,
        RunOptions(out, level, survey_every, trace, steps, step_on, files, as_json, width, names, hang_after),
    )
