"""`shardtoll calibrate`: what collectives cost between processes of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    nproc: Annotated[int, typer.Option("--nproc", min=2, max=64, help="Ranks to measure between.")] = 4,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.toml", help="The fabric file to write.")
    ] = Path("fabric.toml"),
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long to measure for.")] = 4.0,
) -> None:
    """Measure what gloo collectives cost between ranks of this machine, and write it as a fabric.

    Floors of a run on this machine are real then: give the file to `shardtoll report --fabric`. NCCL
    and several hosts are not measured here; `torchrun -m shardtoll.profiler.calibrate -o points.json`
    times the collectives of any job.

    \b
    Example:
      shardtoll calibrate --nproc 2 --seconds 1 -o fabric.toml
    """
    import tempfile

    from shardtoll.analyzers.roofline import to_toml
    from shardtoll.cli.calibration import measure_fabric
    from shardtoll.dashboards import files

    with tempfile.TemporaryDirectory() as folder:
        if sys.stderr.isatty():
            typer.echo(f"measuring gloo between {nproc} ranks for about {seconds:g} s", err=True)
        fabric = measure_fabric(nproc, seconds=seconds, folder=Path(folder), limit_s=120 + 2 * seconds)
    files.write(output, to_toml(fabric).encode())
    typer.echo(f"wrote {output}: use it with shardtoll report PATH --fabric {output}")
