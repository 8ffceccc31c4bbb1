"""`shardtoll dryrun`: what a step of a script would cost on GPUs that nobody has yet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from shardtoll.cli.inputs.options import (
    SCRIPT_CONTEXT,
    Script,
    ScriptArguments,
    Width,
    fabric_option,
    gpu_option,
    output_option,
)

CONTEXT: Final = SCRIPT_CONTEXT


# Longer than 80 lines: typer reads the options, and the help its text, from this signature.
def command(
    script: Script,
    arguments: ScriptArguments = None,
    world: Annotated[
        int | None,
        typer.Option("--world", min=1, metavar="N", help="GPUs of the job: one rank each; default: 1."),
    ] = None,
    rank: Annotated[int, typer.Option("--rank", min=0, metavar="R", help="The rank to be.")] = 0,
    gpu: Annotated[str, gpu_option("The GPU, as h100-sxm, a100-sxm-80gb or b200-sxm.")] = "h100-sxm",
    fabric: Annotated[
        str | None, fabric_option("The interconnect; without it, the usual one of machines with this GPU.")
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            "--steps", min=1, metavar="K", help="Steps to record, after the first one, which builds state."
        ),
    ] = 1,
    item: Annotated[
        str | None,
        typer.Option(
            "--item",
            metavar="POLICY",
            help="Answer to .item(), as no tensor has numbers: a number, or balanced. "
            "balanced is 0 and shares out counts evenly, as tokens among experts.  [default: "
            "balanced]",
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option("--price", metavar="2.5/gpu-hour", help="Price of a GPU, for the cost of a step."),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            "--tokens", min=1, metavar="N", help="Tokens of one step over all ranks; without it, counted."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Keep the run, for shardtoll report, check and compare."
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        output_option("Write the report of the step too: .html, .json, .csv, .md, .perfetto.json, ..."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the forecast as JSON.")] = False,
    width: Width = None,
) -> None:
    """Forecast a step of a training script on GPUs that are not there: time, memory and communication.

    The script runs unedited as one rank of the job, in this process, on tensors without numbers. No GPU and
    no other process is needed. It is stopped after the recorded steps. Every time is a forecast with a band
    that is meant to hold eight of ten measured steps. Options of shardtoll come before SCRIPT.

    \b
    Examples:
      shardtoll dryrun --world 1024 --gpu h100-sxm --fabric h100x8-ib400 train.py --lr 0.1
      shardtoll dryrun --world 64 --price 2.5/gpu-hour -o step.html train.py
      shardtoll dryrun --world 8 --out runs/dry train.py
    """
    from shardtoll.cli.jobs.dry_job import DryRequest, dryrun

    dryrun(
        script,
        arguments or [],
        DryRequest(world or 1, rank, gpu, fabric, steps, item, price, tokens),
        out=out,
        output=tuple(output or ()),
        as_json=as_json,
        width=width,
    )
    if world is None:
        typer.echo(
            "Priced for one rank, which sends nothing to others. For a job of N GPUs: --world N", err=as_json
        )
