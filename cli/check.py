"""`shardtoll check`: a run against its budget."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shardtoll.cli.inputs.options import Dask, Jobs, Kernels, NoCache, Width, fabric_option, output_option

if TYPE_CHECKING:
    from shardtoll.cli.inputs.traces import TraceOptions
    from shardtoll.ledger.answers.overrun import BudgetCheck


MOST_FILES: Final = 200_000
"""Files looked through; in a larger tree names stay as the run has them."""

_OTHERS: Final = ("node_modules", "site-packages", "__pycache__")


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
        Path, typer.Option("--budget", metavar="FILE.toml", help="The budget: upper limits for a step.")
    ] = Path("budget.toml"),
    fabric: Annotated[
        str | None,
        fabric_option("The interconnect to compute floors for, on which some kinds of findings rest."),
    ] = None,
    allow_unknown: Annotated[
        bool,
        typer.Option(
            "--allow-unknown",
            help="Let limits pass that cannot be checked, as one on bytes if a size is unknown. It is "
            "printed all the same.",
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

    Every limit is per step and rank, on the rank and in the step where the figure is largest. A limit that
    cannot be checked counts as exceeded. Exits with 0 if all is within the budget, with 1 if not, with 2 if
    the input is unusable. `shardtoll budget init RUN` writes a budget.

    \b
    Examples:
      shardtoll check runs/a --budget budget.toml
      shardtoll check runs/a -o over.json -o over.md
      shardtoll check bill.json --budget budget.toml --allow-unknown --github
      shardtoll check runs/a runs/b --json
    """
    from shardtoll.cli.inputs.traces import TraceOptions

    options = TraceOptions(jobs=jobs, dask=dask, cache=not no_cache, kernels=kernels)
    if not _check(paths, budget, fabric, allow_unknown, output or [], as_json, github, options, width):
        raise typer.Exit(1)


def _check(
    paths: list[str],
    budget: Path,
    fabric: str | None,
    allow_unknown: bool,
    targets: list[Path],
    as_json: bool,
    github: bool | None,
    options: TraceOptions,
    width: int | None,
) -> bool:
    """Check each job, print and write the overruns, and return whether all is within the budget."""
    from shardtoll.analyzers.budget.against_budget import judge
    from shardtoll.cli.inputs.inputs import load_reports, sort_inputs
    from shardtoll.cli.inputs.outputs import ANSWERS, check_targets, show_answer, write_answer
    from shardtoll.ledger import UsageError
    from shardtoll.ledger.answers.budget import read_budget

    limits = read_budget(budget)
    if limits.is_empty():
        raise UsageError(f"{budget} limits nothing", "`shardtoll budget init RUN` writes one that does")
    inputs = sort_inputs(paths)
    check_targets(targets, ANSWERS["check"], sources=len(inputs))
    passed = True
    for number, (name, report) in enumerate(load_reports(inputs, fabric, options)):
        check = judge(report, limits, run=name, budget_name=str(budget), allow_unknown=allow_unknown)
        passed &= check.passed
        if number and not as_json:
            typer.echo()
        show_answer("check", check, as_json=as_json, width=width)
        if github or (github is None and os.environ.get("GITHUB_ACTIONS") == "true"):
            _annotate(check, as_json=as_json)
        write_answer("check", check, targets, as_json=as_json)
    return passed


def _annotate(check: BudgetCheck, *, as_json: bool) -> None:
    from shardtoll.dashboards.check.annotations import source_files, workflow_commands

    root = os.environ.get("GITHUB_WORKSPACE", os.curdir)
    for line in workflow_commands(check, in_checkout(root, source_files(check))):
        typer.echo(line, err=as_json)


def in_checkout(root: str, files: Iterable[str]) -> dict[str, str]:
    """Return of each file the path from the folder `root`, if exactly one file there ends in that name.

    If no file or several files there do, the file is not in the result.
    """
    wanted = {file: file.replace(os.sep, "/").lstrip("/") for file in files}
    by_name: dict[str, list[str]] = {}
    for file, end in wanted.items():
        if os.path.isabs(file):
            near = os.path.relpath(file, root)
            if not near.startswith(".."):
                wanted[file] = near.replace(os.sep, "/")
        by_name.setdefault(end.rpartition("/")[2], []).append(file)
    matches: dict[str, list[str]] = {}
    seen = 0
    for folder, below, names in os.walk(root):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in _OTHERS)
        seen += len(names)
        if seen > MOST_FILES:
            return {}
        for name in by_name.keys() & set(names):
            path = os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
            for file in by_name[name]:
                if f"/{path}".endswith(f"/{wanted[file]}"):
                    matches.setdefault(file, []).append(path)
    return {file: paths[0] for file, paths in matches.items() if len(paths) == 1}
