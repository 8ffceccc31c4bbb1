"""`shardtoll report`: the ranked bill of traces, runs and saved reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardtoll.cli.inputs.options import Dask, Fabric, Jobs, Kernels, NoCache, Width, output_option

if TYPE_CHECKING:
    from shardtoll.cli.inputs.inputs import Input
    from shardtoll.cli.inputs.report_shown import Shown
    from shardtoll.cli.inputs.traces import TraceOptions
    from shardtoll.ledger import Run

_MOST_SHOWN = 4
_FABRIC = "fabric.toml"
"""Name that `calibrate` and `demo` give the fabric that they measure."""


# Longer than 80 lines: typer reads the options, and the help its text, from this signature.
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
    finding: Annotated[
        list[str] | None,
        typer.Option(
            "--finding",
            metavar="N|KIND",
            help="Print a finding whole: evidence, remedy and code. By its number on the bill or its kind; "
            "several with commas, as 1,3-5, or given several times.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every finding whole, and every section.")
    ] = False,
    show: Annotated[
        str | None,
        typer.Option(
            "--show",
            metavar="NAMES",
            help="Print these sections, with commas between: steps, hardware, bill, path, traffic, late, "
            "hta, notices.",
        ),
    ] = None,
    width: Width = None,
) -> None:
    """Print the ranked bill of traces, runs and saved reports.

    The first screen has the verdict, the step's parts and the five findings that come first: what each
    costs a step, where it is and what to change. --finding, --all and --show print the rest.
    PATH is traces that torch.profiler exported, or Nsight Systems as .sqlite, a run folder, as written by
    audit(out=...), or a report that -o or --json has written. Traces in one folder or glob, or named one
    by one, are one job, a file a rank; name folders or quoted globs for several jobs.

    \b
    Examples:
      shardtoll report traces
      shardtoll report 'traces/*.json.gz' --jobs 2 -o traces.html
      shardtoll report traces/rank0.json.gz --no-cache
      shardtoll report nsys/rank0.sqlite
      shardtoll report traces --hta
      shardtoll report runs/a --finding 1
      shardtoll report runs/a --show steps,late
      shardtoll report runs/a --all
      shardtoll report runs/a
      shardtoll report runs/a --fabric loopback-gloo -o bill.html -o bill.json -o bill.csv
      shardtoll report runs/a -o bill.html --quiet
      shardtoll report bill.json --width 80
      shardtoll report bill.json -o bill.md -o bill.sarif -o bill.perfetto.json.gz
    """
    from shardtoll.cli.inputs.report_shown import shown_of
    from shardtoll.cli.inputs.traces import TraceOptions
    from shardtoll.ledger import UsageError

    if quiet and not output:
        raise UsageError("--quiet without -o prints nothing", "name a file with -o, or leave --quiet out")
    if quiet and as_json:
        raise UsageError("--quiet and --json contradict each other", "give one of them")
    options = TraceOptions(jobs=jobs, dask=dask, cache=not no_cache, kernels=kernels)
    shown = shown_of(finding, everything, show, width)
    _report(paths, fabric, output or [], as_json, quiet, options, hta, shown)


def _report(
    paths: list[str],
    fabric: str | None,
    targets: list[Path],
    as_json: bool,
    quiet: bool,
    options: TraceOptions,
    hta: bool,
    shown: Shown,
) -> None:
    from shlex import join, quote

    from shardtoll.cli.inputs.inputs import Extra, load_reports, sort_inputs
    from shardtoll.cli.inputs.outputs import choose_writers, tell_written
    from shardtoll.cli.inputs.report_shown import show

    inputs = sort_inputs(paths)
    writers = choose_writers(targets, sources=len(inputs))
    extras: list[Extra] = []
    if hta:
        from shardtoll.cli.inputs.hta import check_inputs, with_hta

        check_inputs(inputs)
        extras.append(with_hta)
    unused = None if fabric is not None or as_json else _unused_fabric(inputs)
    # The line does not name all of a thousand files. It names the fabric, so that the floors stay the same.
    named = inputs[0].paths if len(inputs[0].paths) <= _MOST_SHOWN else ["PATH..."]
    again = f"shardtoll report {join([*named, *([] if fabric is None else ['--fabric', fabric])])}"
    page = "" if writers else "; page: -o bill.html"
    more = [("More", f"{again} --all", f"one finding: --finding 1{page}")]
    advised = False
    for number, (name, report) in enumerate(load_reports(inputs, fabric, options, extras)):
        fits = unused is not None and _describes(unused, report.run)
        advised = advised or fits
        if as_json:
            typer.echo(report.to_json())
        elif not quiet:
            measured = [("For measured floors", f"--fabric {quote(str(unused))}", "")] if fits else []
            if len(inputs) > 1:
                typer.echo(f"{chr(10) if number else ''}== {name}")
            show(report, shown, [*more, *measured] if len(inputs) == 1 else (), hta=hta)
        for write, target in writers:
            tell_written(write(report, target), as_json=as_json)
    if shown.finding or (shown.first_screen and len(inputs) == 1):
        # The first screen says it itself, and who reads one finding has read it there.
        return
    if unused is not None and advised:
        typer.echo(
            f"\n{unused} is not used for the floors without --fabric: {again} --fabric {quote(str(unused))}"
        )
    if not as_json and not writers:
        typer.echo(f"\nas a page: {again} -o report.html")


def _unused_fabric(inputs: Sequence[Input]) -> Path | None:
    """Return the measured fabric that lies where `calibrate` or `demo` put it: here, or next to a run.

    None if there is none, and for saved reports, which have their floors. It is never taken unasked, and
    named only if it `_describes` the run's machine.
    """
    local = [Path(item.paths[0]) for item in inputs if item.kind != "report"]
    folders = [Path(), *(folder for path in local for folder in (path, *path.parents[:2]))] if local else []
    return next((folder / _FABRIC for folder in folders if _is_file(folder / _FABRIC)), None)


def _describes(file: Path, run: Run) -> bool:
    """Return whether the file has a fabric of the machine that the run was on; not if it cannot be read."""
    from shardtoll.analyzers.roofline import describes, load_fabric
    from shardtoll.ledger import FabricError

    try:
        return describes(load_fabric(file), run)
    except FabricError:
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        # A folder that may not be looked into, or a glob too long for a name.
        return False
