"""`shardtoll budget init`: the budget that a run just keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from shardtoll.cli.inputs.options import fabric_option

_MOST_SLACK: Final = 10.0


def command(
    path: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="A run folder, traces or a report.json of one job.", show_default=False
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.toml", help="The budget to write.")
    ] = Path("budget.toml"),
    slack: Annotated[
        str,
        typer.Option(
            metavar="SHARE",
            help="Slack for times above the worst step, as 10% or 0.1; counts and bytes are exact.",
        ),
    ] = "10%",
    skip_steps: Annotated[
        int, typer.Option(min=0, metavar="N", help="Leave out the first N steps, here and in each check.")
    ] = 0,
    fabric: Annotated[str | None, fabric_option("The interconnect to compute floors for.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.toml if it exists.")] = False,
) -> None:
    """Write a budget from a run: what it sends now is what later runs may send at most.

    Counts and bytes are exact, of the whole step, each mesh dimension and each phase. Times have slack, and
    are written if several steps show their noise. Modules without an implicit collective may have none
    later. Kinds of wrong results that the run does not have are forbidden. `shardtoll check` on the same
    run passes.

    \b
    Examples:
      shardtoll budget init runs/a -o new.toml
      shardtoll budget init runs/a --slack 5% --skip-steps 1 --force
    """
    from shardtoll.analyzers.budget.of_run import draft
    from shardtoll.cli.inputs.inputs import one_report
    from shardtoll.cli.inputs.outputs import check_target
    from shardtoll.cli.inputs.traces import TraceOptions
    from shardtoll.cli.inputs.waiting import waiting
    from shardtoll.dashboards.words.files import write
    from shardtoll.ledger import UsageError
    from shardtoll.ledger.answers.budget_toml import to_toml

    share = _share(slack)
    check_target(output)
    if output.exists() and not force:
        raise UsageError(f"{output} is there already", "give --force to overwrite it, or another -o")
    report = one_report(path, fabric, TraceOptions())
    with waiting("drafting the budget"):
        made = draft(report, run=path, slack=share, skip_steps=skip_steps)
    write(output, to_toml(made.budget, made.comments, str(output)).encode("utf-8", "backslashreplace"))
    if made.present:
        typer.echo(
            f"{path} has wrong results, which {output} allows: {', '.join(made.present)}. Fix them first, "
            "then write the budget anew with --force.",
            err=True,
        )
    timed = made.budget.limits.max_step_ms is not None
    limits = "" if timed else f"; no limit on the step's time: {output} says why"
    typer.echo(f"wrote {output}{limits}\n\nto check a run: shardtoll check RUN --budget {output}")


def _share(text: str) -> float:
    from shardtoll.ledger import UsageError

    try:
        percent = text.strip().endswith("%")
        share = float(text.strip().removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        share = -1
    if not 0 <= share <= _MOST_SLACK:
        raise UsageError(f"--slack is {text}", "give a share, as 10% or 0.1")
    return share
