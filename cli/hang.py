"""`shardtoll hang`: who is stuck, where and since when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardtoll.cli.inputs.options import AsJson, Width, output_option


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Run folders, one for each node if nodes share no disk. Or dumps of NCCL's flight "
            "recorder (pickle or JSON), or logs with torch's timeout messages.",
        ),
    ],
    after: Annotated[
        float | None,
        typer.Option(
            "--after",
            metavar="SECONDS",
            help="Waiting for a rank that may still come is a hang from then on; without it the job's own "
            "hang_after_s, else 120.",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None, output_option("Write FILE.json, .md or .html too; may be given several times.")
    ] = None,
    as_json: AsJson = False,
    width: Width = None,
) -> None:
    """Say which ranks of a job wait for each other, while it hangs or after it was killed.

    Names the ranks that did not arrive with the line they are at, and ranks that died or failed. Also names
    collectives on which ranks disagree, deadlocks over several groups, and where programs first differ.
    Exits with 1 if the job hangs, 0 if it does not, 2 if nothing could be read.

    \b
    Examples:
      shardtoll hang runs/a
      shardtoll hang node0/runs/a node1/runs/a -o hang.json -o hang.md
      shardtoll hang runs/a --after 30 --json
    """
    from shardtoll.analyzers.hang.diagnose import diagnose
    from shardtoll.cli.inputs.flights import read_all
    from shardtoll.cli.inputs.outputs import ANSWERS, check_targets, show_answer, write_answer
    from shardtoll.ledger import UsageError

    if after is not None and not 0 < after < 1e9:
        raise UsageError(f"--after is {after}", "give seconds above 0")
    targets = output or []
    check_targets(targets, ANSWERS["hang"])
    flights, now_ns, notes = read_all(paths)
    answer = diagnose(flights, now_ns, None if after is None else int(after * 1e9), notes)
    show_answer("hang", answer, as_json=as_json, width=width)
    write_answer("hang", answer, targets, as_json=as_json)
    if answer.hang:
        raise typer.Exit(1)
