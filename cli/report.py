"""`shardtoll report`: the ranked bill of runs and saved reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardtoll.cli.options import Width


def command(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="A run folder, or a report.json.", show_default=False),
    ],
    fabric: Annotated[
        str | None,
        typer.Option(
            "--fabric",
            metavar="NAME|FILE.toml",
            help="The interconnect to compute floors for; without it, chosen by device and backend.",
        ),
    ] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write FILE.html, FILE.json or FILE.csv too; may be given several times, with one PATH. "
            "CSV is two files: collectives in FILE.csv, findings in FILE.findings.csv.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of the bill, one line a PATH.")
    ] = False,
    width: Width = None,
) -> None:
    """Print the ranked bill of runs and saved reports.

    Each line of the bill says what a finding costs a step, where it is and what to change.
    PATH is a run folder, as written by audit(out=...), or a report that -o or --json has written.

    \b
    Examples:
      shardtoll report runs/a
      shardtoll report runs/a --fabric loopback-gloo -o bill.html -o bill.json -o bill.csv
      shardtoll report bill.json --width 80
    """
    from shardtoll.cli.inputs import load_reports
    from shardtoll.cli.outputs import choose_writers

    writers = choose_writers(output or [], sources=len(paths))
    for at, (path, report) in enumerate(load_reports(paths, fabric)):
        if as_json:
            typer.echo(report.to_json())
        else:
            if len(paths) > 1:
                typer.echo(f"{'' if at == 0 else chr(10)}== {path}")
            report.show(width)
        for write, target in writers:
            for written in write(report, target):
                # With --json, what stands on stdout is JSON alone.
                typer.echo(f"wrote {written}", err=as_json)
    if not as_json and not writers:
        typer.echo(f"\nas a page: shardtoll report {paths[0]} -o report.html")
