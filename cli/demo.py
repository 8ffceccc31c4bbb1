"""`shardtoll demo`: four attempts at one sharded module, trained for real, audited and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

RANKS: Final = 4
CALIBRATION_S: Final = 4.0
_JOB_LIMIT_S: Final = 100.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """One attempt of the sample, and what it teaches."""

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
        "Slice the conditioning first and reduce the weight gradient once: right, and nothing is done twice.",
    ),
    Lesson(
        "dit-dtensor",
        "shardtoll.samples.dit_modulation.dtensor",
        "Right by construction; the collectives that DTensor adds are not in the code, but on the bill.",
    ),
)


def run(out: Path, *, tell: Callable[[str], None], width: int | None = None) -> None:
    """Measure this machine, train and audit each attempt, write the pages and print the comparison.

    Raises JobError when a rank fails; its output is kept beside the run.
    """
    from shardtoll.analyzers import run as analyze
    from shardtoll.analyzers.roofline import MeasuredPoint, fit_fabric, load_fabric, to_toml
    from shardtoll.cli.ranks import run_job
    from shardtoll.dashboards import page, side_by_side_page, side_by_side_terminal
    from shardtoll.dashboards.side_by_side import Attempt
    from shardtoll.ledger import read_run

    out.mkdir(parents=True, exist_ok=True)
    tell(f"measuring gloo between {RANKS} ranks of this machine, so that floors are real")
    points_file = out / "calibration.json"
    run_job(
        "shardtoll.profiler.calibrate",
        ["-o", str(points_file), "--limit-s", str(CALIBRATION_S)],
        ranks=RANKS,
        limit_s=_JOB_LIMIT_S,
        log=out / "calibration.log",
    )
    points = [MeasuredPoint(**point) for point in json.loads(points_file.read_text())["points"]]
    provenance = f"measured on this machine: {len(points)} timed collectives between {RANKS} gloo ranks"
    fabric = fit_fabric(points, load_fabric("loopback-gloo"), provenance)
    (out / "fabric.toml").write_text(to_toml(fabric), encoding="utf-8")

    attempts = []
    for lesson in LESSONS:
        tell(f"training {lesson.name} on {RANKS} ranks")
        folder = out / lesson.name
        run_folder = folder / "run"
        run_job(
            lesson.module,
            ["--out", str(run_folder)],
            ranks=RANKS,
            limit_s=_JOB_LIMIT_S,
            log=folder / "output.log",
        )
        report = analyze(read_run(run_folder), fabric)
        (folder / "report.html").write_text(page.render(report), encoding="utf-8")
        (folder / "report.json").write_text(report.to_json(), encoding="utf-8")
        attempts.append(Attempt(lesson.name, lesson.text, report, f"{lesson.name}/report.html"))
    lead = (
        "One diffusion-transformer modulation, y = x * (cond @ weight), its tokens sharded over "
        f"{RANKS} ranks in four ways. Every number below was measured in this run."
    )
    index = out / "index.html"
    index.write_text(
        side_by_side_page.render("demo: four attempts at one layer", lead, attempts), encoding="utf-8"
    )
    side_by_side_terminal.show(attempts, width)
    tell(f"wrote {index} and {out}/<attempt>/report.html, report.json")
    tell(f"one bill in full: shardtoll report {out / 'dit-dtensor' / 'run'} --fabric {out / 'fabric.toml'}")
