"""`shardtoll compare`: what changed between two runs, and what of it is noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtoll.cli.inputs.options import (
    AnswerFiles,
    AsJson,
    Dask,
    Jobs,
    Kernels,
    NoCache,
    Width,
    fabric_option,
)

if TYPE_CHECKING:
    from shardtoll.analyzers.compare.compare import Options
    from shardtoll.cli.inputs.traces import TraceOptions


# Longer than 80 lines: typer reads the options, and the help its text, from this signature.
def command(
    before: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Run folder, report.json or traces (folder, quoted glob, address) before the change.",
            show_default=False,
        ),
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="The same after it.", show_default=False)],
    fabric: Annotated[str | None, fabric_option("The interconnect to compute floors for, of both.")] = None,
    work_before: Annotated[
        float | None,
        typer.Option(
            "--work-before",
            metavar="N",
            help="Work of one step of A, all ranks together, as 8192 tokens. With --work-after, times, "
            "bytes and FLOPs of B are scaled to A's work.",
        ),
    ] = None,
    work_after: Annotated[
        float | None, typer.Option("--work-after", metavar="N", help="Work of one step of B.")
    ] = None,
    unit: Annotated[
        str, typer.Option("--unit", metavar="WORD", help="Unit of the work, as tokens or samples.")
    ] = "tokens",
    scaling: Annotated[
        str | None,
        typer.Option(
            "--scaling",
            metavar="strong|weak",
            help="With different world sizes: whether a step's work is the same in all (strong), or the "
            "same per rank (weak). Without it as the work given says, else as the effective batches "
            "say.",
        ),
    ] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            "--warm-up",
            min=0,
            metavar="N",
            help="First steps to leave out; without it 2, or 1 of fewer than 12 steps.",
        ),
    ] = None,
    noise: Annotated[
        float,
        typer.Option(
            "--noise",
            min=0,
            max=100,
            metavar="PERCENT",
            help="By how much times of one program differ from run to run on your machine, which two runs "
            "cannot tell.",
        ),
    ] = 0.5,
    output: AnswerFiles = None,
    as_json: AsJson = False,
    jobs: Jobs = None,
    dask: Dask = None,
    no_cache: NoCache = False,
    kernels: Kernels = None,
    width: Width = None,
) -> None:
    """Say what changed between two runs: findings, modules, collectives, bytes and times.

    Counts, bytes and number formats are compared exactly. Times are compared over steps, with intervals
    that hold together. "no change beyond noise" is an answer, with the change that would have been seen.
    Times need 8 steps of each run after its first ones. The first line says by how much a step changed and
    why.

    \b
    Examples:
      shardtoll compare runs/a runs/b
      shardtoll compare runs/a runs/b -o change.html -o change.md --warm-up 0
      shardtoll compare runs/a runs/b --work-before 8192 --work-after 16384 --unit tokens --json
      shardtoll compare traces traces --scaling weak --width 80
    """
    from shardtoll.cli.inputs.traces import TraceOptions

    options = _options(work_before, work_after, unit, scaling, warm_up, noise)
    traces = TraceOptions(jobs=jobs, dask=dask, cache=not no_cache, kernels=kernels)
    _compare((before, after), fabric, options, output or [], as_json, traces, width)


def _compare(
    paths: tuple[str, str],
    fabric: str | None,
    options: Options,
    targets: list[Path],
    as_json: bool,
    traces: TraceOptions,
    width: int | None,
) -> None:
    from shardtoll.analyzers.compare.compare import compare
    from shardtoll.cli.inputs.inputs import one_report
    from shardtoll.cli.inputs.outputs import ANSWERS, check_targets, show_answer, write_answer
    from shardtoll.cli.inputs.waiting import waiting

    check_targets(targets, ANSWERS["compare"])
    before, after = (one_report(path, fabric, traces) for path in paths)
    with waiting("comparing the runs"):
        comparison = compare(before, after, paths, options)
    show_answer("compare", comparison, as_json=as_json, width=width)
    write_answer("compare", comparison, targets, as_json=as_json)


def _options(
    work_before: float | None,
    work_after: float | None,
    unit: str,
    scaling: str | None,
    warm_up: int | None,
    noise: float,
) -> Options:
    """Return the options as the comparison takes them; UsageError if they do not fit together."""
    from math import isfinite

    from shardtoll.analyzers.compare.compare import Options
    from shardtoll.ledger import UsageError

    given = [work for work in (work_before, work_after) if work is not None]
    if len(given) == 1:
        raise UsageError(
            "one of --work-before and --work-after is missing", "give the work of a step of both runs"
        )
    if any(not isfinite(work) or not 1e-9 < work < 1e18 for work in given):
        raise UsageError(
            "--work-before and --work-after must be above zero", "give the work of one step, as 8192"
        )
    if scaling not in (None, "strong", "weak"):
        raise UsageError(f"--scaling {scaling} is not known", "give strong or weak")
    if scaling is not None and given:
        raise UsageError(
            "--scaling is given with the work of a step", "give one: the work says how the runs scale"
        )
    return Options(
        work=(given[0], given[1]) if given else None,
        unit=unit,
        scaling=scaling,  # type: ignore[arg-type]
        warm_up=warm_up,
        noise=noise / 100,
    )
