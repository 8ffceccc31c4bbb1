"""`shardtoll demo`: the main job on this machine, no GPU needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardtoll.cli.options import Width


def command(
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="FOLDER", help="Where the pages and runs go; made where it is missing."
        ),
    ] = Path("out/demo"),
    width: Width = None,
) -> None:
    """Train one layer, sharded in four ways, on four ranks of this machine, and compare the bills.

    Takes about a minute on two cores. First measures what collectives cost here, so that floors are
    real; then every attempt is audited and its gradients are compared with one device's.

    \b
    Writes FOLDER/index.html, FOLDER/fabric.toml and, for each attempt, report.html, report.json and
    the run itself, which `shardtoll report` reads.

    \b
    Example:
      shardtoll demo --out out/demo
    """
    from shardtoll.cli.demo_job import run

    run(out, width)
