"""The demo: four attempts at one sharded module, trained for real, audited and compared."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from shardtoll.analyzers import run as analyze
from shardtoll.analyzers.roofline import Fabric, to_toml
from shardtoll.cli.inputs.outputs import make_folder
from shardtoll.cli.jobs.calibration import measure_fabric
from shardtoll.cli.jobs.forked import Forked
from shardtoll.cli.jobs.ranks import RunsJobs, run_job
from shardtoll.cli.jobs.stages import Stages
from shardtoll.dashboards.attempts import side_by_side_page, side_by_side_terminal
from shardtoll.dashboards.attempts.side_by_side import Attempt
from shardtoll.dashboards.page import page
from shardtoll.ledger import read_run

RANKS: Final = 4
CALIBRATION_S: Final = 4.0
_CALIBRATED: Final = (
    *("--ops", "all_reduce,all_gather,reduce_scatter,broadcast,all_to_all,barrier"),
    *("--sizes", "256,2048,16384,131072,1048576,8388608"),
)
"""Less than `shardtoll calibrate` measures, so that few seconds give each case many samples."""
_JOB_LIMIT_S: Final = 600.0
"""An attempt takes some ten seconds; on a machine with much else to do it took more than 100."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """One attempt of the sample, and its lesson."""

    name: str
    module: str
    text: str


LESSONS: Final = (
    Lesson(
        "dit-chunk",
        "shardtoll.samples.dit_modulation.chunk",
        "Tokens were chunked by hand and nothing complains, but each rank keeps only its own tokens' part "
        "of the weight gradient. Training goes on, wrong.",
    ),
    Lesson(
        "dit-scatter",
        "shardtoll.samples.dit_modulation.scatter",
        "Right, and paid for on every rank: all of them compute the whole weight gradient.",
    ),
    Lesson(
        "dit-partial",
        "shardtoll.samples.dit_modulation.partial",
        "Slice the conditioning first and reduce the weight gradient once: right, and no matmul is done "
        "twice. Each rank repeats the same update, which is a choice and shown as information.",
    ),
    Lesson(
        "dit-dtensor",
        "shardtoll.samples.dit_modulation.dtensor",
        "Right by construction; the collectives that DTensor adds are not in the code, but on the bill.",
    ),
)


def run(out: Path, width: int | None = None) -> None:
    """Measure this machine, train and audit each attempt, write the pages and print the comparison.

    Raises UsageError if `out` cannot be written, JobError if a rank fails; its output is kept next to the
    run.
    """
    make_folder(out)
    with Stages(1 + len(LESSONS)) as progress, Forked(out / "ranks.log") as forked:
        # Twenty ranks that each import torch took nine tenths of the demo's time.
        job = forked.run_module if sys.platform == "linux" else run_job
        fabric = _measured(out, progress, job)
        attempts = [_attempt(lesson, out, fabric, progress, job) for lesson in LESSONS]
    lead = (
        "One diffusion-transformer modulation, y = x * (cond @ weight), its tokens sharded over "
        f"{RANKS} ranks in four ways. Every number below was measured in this run."
    )
    index = out / "index.html"
    index.write_text(
        side_by_side_page.render("demo: four attempts at one layer", lead, attempts), encoding="utf-8"
    )
    side_by_side_terminal.show(attempts, width)
    typer.echo(f"\npages: {index} and {out}/<attempt>/report.html, beside each its report.json")
    run_folder = out / "dit-dtensor" / "run"
    typer.echo(f"one bill: shardtoll report {run_folder} --fabric {out / 'fabric.toml'}")


def _measured(out: Path, progress: Stages, job: RunsJobs) -> Fabric:
    """Return the fabric of this machine, measured now; it is also written to fabric.toml."""
    progress.begin(f"measuring gloo between {RANKS} ranks, so that floors are real")
    fabric = measure_fabric(
        RANKS,
        seconds=CALIBRATION_S,
        folder=out,
        limit_s=_JOB_LIMIT_S,
        options=_CALIBRATED,
        on_round=lambda now: progress.say(f"measuring gloo between {RANKS} ranks, {now['rounds']} rounds"),
        run=job,
    )
    (out / "fabric.toml").write_text(to_toml(fabric), encoding="utf-8")
    return fabric


def _attempt(lesson: Lesson, out: Path, fabric: Fabric, progress: Stages, job: RunsJobs) -> Attempt:
    """Train one attempt under an audit, write its report, and return it."""
    progress.begin(f"training {lesson.name} on {RANKS} ranks")
    folder = out / lesson.name
    job(
        lesson.module,
        ["--out", str(folder / "run"), "--device", "cpu"],
        ranks=RANKS,
        limit_s=_JOB_LIMIT_S,
        log=folder / "output.log",
    )
    report = analyze(read_run(folder / "run"), fabric)
    (folder / "report.html").write_text(page.render(report), encoding="utf-8")
    (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
    return Attempt(lesson.name, lesson.text, report, f"{lesson.name}/report.html")
