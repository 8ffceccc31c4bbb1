"""`shardtoll calibrate`: what collectives cost here, measured, or read from what other tools measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline import Fabric


def command(
    files: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="Files to read, with a --from option.")
    ] = None,
    nproc: Annotated[int, typer.Option("--nproc", min=2, max=64, help="Ranks to measure between.")] = 4,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.toml", help="The fabric file to write.")
    ] = Path("fabric.toml"),
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long to measure for at most.")] = 10.0,
    mesh: Annotated[
        str, typer.Option(metavar="dp=2,tp=2", help="Measure the groups of each dimension of this mesh.")
    ] = "",
    from_nccl_tests: Annotated[
        bool, typer.Option("--from-nccl-tests", help="FILEs hold what nccl-tests printed, or its JSON.")
    ] = False,
    from_points: Annotated[
        bool, typer.Option("--from-points", help="FILE holds points of shardtoll.profiler.calibrate.")
    ] = False,
    fabric: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE.toml", help="Whose links serve for what was not measured."),
    ] = None,
    op: Annotated[
        str | None, typer.Option(help="The collective of tables that do not say theirs, as all_reduce.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(min=2, help="Ranks of tables whose Rank lines are missing.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Hosts of such tables; 1 unless given.")] = None,
) -> None:
    """Measure what collectives cost, and write it as a fabric: floors come from it then.

    Without files, gloo between ranks of this machine: all of them, and the first 2, 4, 8 as the time allows.
    On the machines of a job, with its own backend: torchrun ... -m shardtoll.profiler.calibrate -o
    fabric.toml. Give the file to shardtoll report --fabric.

    \b
    Examples:
      shardtoll calibrate --nproc 2 --seconds 1 -o fabric.toml
      shardtoll calibrate --nproc 4 --mesh dp=2,tp=2 --seconds 3
      shardtoll calibrate --from-nccl-tests all_reduce.txt all_gather.txt -o cluster.toml
      shardtoll calibrate --from-points points.json --fabric a100x8 -o cluster.toml
    """
    from shardtoll.analyzers.roofline import load_fabric, to_toml
    from shardtoll.cli.inputs.outputs import check_target
    from shardtoll.cli.jobs.calibration import fabric_of_nccl_tests, fabric_of_points, medians
    from shardtoll.dashboards.words import files as written
    from shardtoll.ledger import UsageError
    from shardtoll.profiler.calibrate.mesh import parse_mesh

    given = files or []
    if from_nccl_tests and from_points:
        raise UsageError("--from-nccl-tests and --from-points are two kinds of files", "give one of them")
    if bool(given) != (from_nccl_tests or from_points):
        what = f"{given[0]} is given" if given else "no FILE is given"
        raise UsageError(what, "name files after --from-nccl-tests or --from-points, or neither")
    if from_points and len(given) > 1:
        raise UsageError(f"{len(given)} files of points", "give one")
    # Before measuring, not after it.
    if output.suffix.lower() != ".toml":
        raise UsageError(f"-o {output} does not end in .toml", "name a fabric file, as fabric.toml")
    check_target(output)
    base = None if fabric is None else load_fabric(fabric)
    notes: tuple[str, ...] = ()
    if from_nccl_tests:
        made, notes = fabric_of_nccl_tests(given, base, op=op, ranks=ranks, nodes=nodes)
    elif from_points:
        made = fabric_of_points(given[0], base)
    else:
        if mesh:
            parse_mesh(mesh, nproc)
        made = _measured(nproc, seconds, mesh)
    # A measured fabric is not the one whose links it borrows.
    made = replace(made, name=output.stem)
    written.write(output, to_toml(made).encode())
    for note in notes:
        typer.echo(note, err=True)
    level = _level(made)
    if level:
        typer.echo(level)
    typer.echo(f"wrote {output}, {medians(made)}: use it with shardtoll report PATH --fabric {output}")


def _level(fabric: Fabric) -> str | None:
    """Return in words the range in which sizes far apart have the same time within noise; None if there is
    none."""
    from shardtoll.cli.jobs.calibration import own_curves
    from shardtoll.ledger.measured.measured import level
    from shardtoll.ledger.words import human

    curves = own_curves(fabric)
    level_curves = [(curve, sizes) for curve in curves if (sizes := level(curve.points))]
    if not level_curves:
        return None
    curve, (first, last) = max(level_curves, key=lambda pair: pair[1][1] / pair[1][0])
    between = f"{human.size(first)} to {human.size(last)}"
    return (
        f"{len(level_curves)} of {human.plural(len(curves), 'curve')} do not tell sizes apart: {curve.op} "
        f"between {curve.ranks} ranks has one time from {between}, where noise is more than what size costs"
    )


def _advice(nproc: int) -> str:
    import os

    cores = os.cpu_count() or nproc
    fewer = f", --nproc {cores} or fewer ({cores} cores here)" if nproc > cores > 1 else ""
    return f"to be surer: more --seconds{fewer}, a machine with nothing else to do"


def _measured(nproc: int, seconds: float, mesh: str) -> Fabric:
    """Measure on this machine, with a bar on a terminal, and say how sure the medians are."""
    import tempfile

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from shardtoll.cli.jobs.calibration import measure_fabric
    from shardtoll.cli.jobs.ranks import JobError

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    last: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar,
    ):
        task = bar.add_task(f"starting {nproc} gloo ranks", total=seconds)

        def show_progress(now: Any) -> None:
            last.update(now)
            words = f"{now['rounds']} rounds, {now['cases'] - now['wide']} of {now['cases']} medians sure"
            bar.update(task, completed=min(now["elapsed_s"], seconds), description=words)

        try:
            fabric = measure_fabric(
                nproc,
                seconds=seconds,
                folder=Path(folder),
                limit_s=120 + 2 * seconds,
                options=["--mesh", mesh] if mesh else [],
                on_round=show_progress,
            )
        except JobError as error:
            # The log goes with the folder: its last line says most.
            log = Path(folder, "calibration.log")
            lines = log.read_text(encoding="utf-8").split("\n") if log.exists() else []
            said = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
            raise JobError(error.message, f"the last that was said: {said[:200]}") from error
        for line in Path(folder, "calibration.log").read_text(encoding="utf-8").splitlines():
            # Rank 0's lines about its medians are shown; the list of points it wrote means nothing to the
            # user.
            if line.startswith(("stopped", "every median", "left out", "not done")):
                typer.echo(line)
            if line.startswith("stopped"):
                typer.echo(_advice(nproc))
    return fabric
