"""`shardtoll check`: a run against its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardtoll.cli.options import Dask, Jobs, Kernels, NoCache, Width, fabric_option, output_option


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="A run folder, traces or a report.json, as `shardtoll report` takes them.",
            show_default=False,
        ),
    ],
    budget: Annotated[
        Path, typer.Option("--budget", metavar="FILE.toml", help="What a step may send at most.")
    ] = Path("budget.toml"),
    fabric: Annotated[
        str | None,
        fabric_option("The interconnect to compute floors for, on which some kinds of findings rest."),
    ] = None,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown",
            help="Let pass what cannot be told, as a limit on bytes where a size is not known. "
            "It is printed all the same.",
        ),
    ] = False,
    output: Annotated[
        list[Path] | None,
        output_option("Write FILE.json or FILE.md too; may be given several times, with one PATH."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead, one line a job; annotations go to stderr.")
    ] = False,
    github: Annotated[
        bool | None,
        typer.Option(
            "--github/--no-github",
            help="Print GitHub workflow annotations too; without it, where GITHUB_ACTIONS is true.",
            show_default=False,
        ),
    ] = None,
    jobs: Jobs = None,
    dask: Dask = None,
    no_cache: NoCache = False,
    kernels: Kernels = None,
    width: Width = None,
) -> None:
    """Hold a run to a budget, and name what is over: the limit, the figure, the source line.

    Every limit is per step and rank, on the rank and in the step where the figure is largest. What cannot be
    told counts as over. Leaves with 0 where all is within the budget, with 1 where not, with 2 where
    the input is unusable. `shardtoll budget init RUN` writes a budget.

    \b
    Examples:
      shardtoll check runs/a --budget budget.toml
      shardtoll check runs/a -o over.json -o over.md
      shardtoll check bill.json --budget budget.toml --allow-unknown --github
      shardtoll check runs/a runs/b --json
    """
    import os

    from shardtoll.analyzers.over_budget import judge
    from shardtoll.cli.checkout import in_checkout
    from shardtoll.cli.inputs import load_reports, sort_inputs
    from shardtoll.cli.outputs import CHECK_WRITERS, choose_writers
    from shardtoll.cli.traces import TraceOptions
    from shardtoll.dashboards import check_terminal
    from shardtoll.dashboards.check_annotations import source_files, workflow_commands
    from shardtoll.dashboards.check_file import to_json
    from shardtoll.ledger import UsageError
    from shardtoll.ledger.budget import read_budget

    limits = read_budget(budget)
    if limits.is_empty():
        raise UsageError(f"{budget} limits nothing", "`shardtoll budget init RUN` writes one that does")
    if github is None:
        github = os.environ.get("GITHUB_ACTIONS") == "true"
    inputs = sort_inputs(paths)
    writers = choose_writers(output or [], sources=len(inputs), known=CHECK_WRITERS)
    options = TraceOptions(jobs=jobs, dask=dask, cache=not no_cache, kernels=kernels)
    passed = True
    for at, (name, report) in enumerate(load_reports(inputs, fabric, options)):
        found = judge(report, limits, run=name, budget_name=str(budget), allow_unknown=allow_unknown)
        passed &= found.passed
        if as_json:
            typer.echo(to_json(found))
        else:
            if at:
                typer.echo()
            check_terminal.show(found, width)
        if github:
            root = os.environ.get("GITHUB_WORKSPACE", os.curdir)
            for line in workflow_commands(found, in_checkout(root, source_files(found))):
                typer.echo(line, err=as_json)
        for write, target in writers:
            for written in write(found, target):
                typer.echo(f"wrote {written}", err=as_json)
    if not passed:
        raise typer.Exit(1)
