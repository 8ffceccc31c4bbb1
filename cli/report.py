"""`shardtoll report`: the ranked bill of traces, runs and saved reports."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardtoll.cli.options import Dask, Fabric, Jobs, Kernels, NoCache, Width, output_option

_MOST_SHOWN = 4


def command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Traces (files, a folder, a quoted glob, an address as s3://bucket/traces), a run folder, "
            "or a report.json.",
            show_default=False,
        ),
    ],
    fabric: Fabric = None,
    output: Annotated[
        list[Path] | None,
        output_option(
            "Write a file too, by its ending: .html (page), .json, .csv, .parquet, .md (pull requests), "
            ".prom (Prometheus), .sarif (code review), .perfetto.json, .perfetto.json.gz (ui.perfetto.dev). "
            "May be given several times, with one PATH. CSV and Parquet are a file a table: FILE.csv has the "
            "collectives, FILE.steps.csv and FILE.findings.csv the rest."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of the bill, one line a PATH.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("-q", "--quiet", help="Print no bill, only which files -o wrote; needs -o."),
    ] = False,
    jobs: Jobs = None,
    dask: Dask = None,
    no_cache: NoCache = False,
    kernels: Kernels = None,
    hta: Annotated[
        bool,
        typer.Option(
            "--hta",
            help="Ask Holistic Trace Analysis too, for critical path, kinds of idle time, launches and queue "
            "length. Traces only; takes a few seconds to half a minute a rank, by the trace's size.",
        ),
    ] = False,
    width: Width = None,
) -> None:
    """Print the ranked bill of traces, runs and saved reports.

    Each line of the bill says what a finding costs a step, where it is and what to change.
    PATH is traces that torch.profiler exported, a run folder, as written by audit(out=...), or a report
    that -o or --json has written. Traces in one folder or glob, or named one by one, are one job, a file
    a rank; name folders or quoted globs for several jobs.

    \b
    Examples:
      shardtoll report traces
      shardtoll report 'traces/*.json.gz' --jobs 2 -o traces.html
      shardtoll report traces/rank0.json.gz --no-cache
      shardtoll report traces --hta
      shardtoll report runs/a
      shardtoll report runs/a --fabric loopback-gloo -o bill.html -o bill.json -o bill.csv
      shardtoll report runs/a -o bill.html --quiet
      shardtoll report bill.json --width 80
      shardtoll report bill.json -o bill.md -o bill.sarif -o bill.perfetto.json.gz
    """
    from shardtoll.cli.inputs import Extra, load_reports, sort_inputs
    from shardtoll.cli.outputs import choose_writers
    from shardtoll.cli.traces import TraceOptions
    from shardtoll.ledger import UsageError

    if quiet and not output:
        raise UsageError("--quiet without -o prints nothing", "name a file with -o, or leave --quiet out")
    if quiet and as_json:
        raise UsageError("--quiet and --json contradict each other", "give one of them")
    inputs = sort_inputs(paths)
    writers = choose_writers(output or [], sources=len(inputs))
    options = TraceOptions(jobs=jobs, dask=dask, cache=not no_cache, kernels=kernels)
    extras: list[Extra] = []
    if hta:
        from shardtoll.cli.hta import check_inputs, with_hta

        check_inputs(inputs)
        extras.append(with_hta)
    reports = load_reports(inputs, fabric, options, extras)
    for at, (name, report) in enumerate(reports):
        if as_json:
            typer.echo(report.to_json())
        elif not quiet:
            if len(inputs) > 1:
                typer.echo(f"{'' if at == 0 else chr(10)}== {name}")
            report.show(width)
        for write, target in writers:
            for written in write(report, target):
                # With --json, what stands on stdout is JSON alone.
                typer.echo(f"wrote {written}", err=as_json)
    if not as_json and not writers:
        from shlex import join

        # Of a thousand files named one by one not all.
        shown = inputs[0].paths if len(inputs[0].paths) <= _MOST_SHOWN else ["PATH..."]
        typer.echo(f"\nas a page: shardtoll report {join(shown)} -o report.html")
