"""`shardtoll demo`: the main job on this machine, no GPU needed."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from shardtoll.cli.inputs.options import Width


def command(
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder for the pages and runs; created if missing. Without it, out/demo, with "
            "--incidents out/incidents.",
        ),
    ] = None,
    incidents: Annotated[
        bool,
        typer.Option("--incidents", help="Run real mistakes and their fixed twins, and keep the score."),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", help="Only this incident; may be given again, or several with commas."
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("-o", "--json", metavar="FILE.json", help="Write the incidents' scoreboard there too."),
    ] = None,
    width: Width = None,
) -> None:
    """Train one layer, sharded in four ways, on four ranks of this machine, and compare the bills.

    Takes one to two minutes on two cores. First measures what collectives cost here, so that floors are
    real. Then every attempt is audited and its gradients are compared with one device's.

    \b
    Writes FOLDER/index.html, FOLDER/fabric.toml and, for each attempt, report.html, report.json and
    the run itself, which `shardtoll report` reads.

    With --incidents: mistakes that people made in public, each a small program and its fixed twin, and
    programs without a mistake. Prints for each what was found, where and of what size, then recall and
    precision. The exit code is 1 if anything was missed or false. Takes two minutes on two cores.

    \b
    Example:
      shardtoll demo --out out/demo
      shardtoll demo --incidents --only fp32_reduce,clean_ddp -o scoreboard.json
    """
    from shardtoll.ledger import UsageError

    if not incidents:
        if only:
            raise UsageError("--only without --incidents", "add --incidents, or leave it out")
        if json_file is not None:
            folder = shlex.quote(str(json_file))
            raise UsageError(
                f"-o {json_file} without --incidents, whose scoreboard it writes",
                f"for a folder of pages use --out {folder}, for the scoreboard add --incidents",
            )
        from shardtoll.cli.jobs.demo_job import run

        run(out or Path("out/demo"), width)
        return
    from shardtoll.cli.incidents import demo_incidents

    demo_incidents.run(out or Path("out/incidents"), only or [], json_file, width)
