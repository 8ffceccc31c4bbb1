"""`shardtoll demo --incidents`: every incident is run on this machine and the tool is marked."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from shardtoll.analyzers import run as analyze
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.cli.incidents import scoreboard
from shardtoll.cli.incidents.verdict import Verdict, by_time, judge, not_run, total
from shardtoll.cli.inputs.outputs import make_folder
from shardtoll.cli.jobs.forked import Forked
from shardtoll.cli.jobs.ranks import JobError
from shardtoll.cli.jobs.stages import Stages
from shardtoll.dashboards.words.files import write
from shardtoll.ledger import CheckFailed, Interrupted, Report, UsageError, read_run
from shardtoll.samples.incidents import CLEAN, NAMES
from shardtoll.samples.incidents.expected import Expected, Proven, Wanted

_CTRL_C = 2

LIMIT_S: Final = 60.0
"""Time limit of one program; it takes a second or two if nothing else runs."""

_JOB: Final = "shardtoll.samples.incidents.job"

Told = Callable[[str], None]
"""Gets each new activity as text."""


def run(out: Path, only: Sequence[str], json_file: Path | None, width: int | None = None) -> None:
    """Run the incidents, print the scoreboard, and write it to `json_file` if one is named.

    Raises UsageError for arguments that cannot be run or written, and JobError if no rank can be started at
    all. Raises CheckFailed if anything was missed, false or did not run. After Ctrl-C: Interrupted, once the
    board of the finished incidents is shown.
    """
    names = chosen(only)
    make_folder(out)
    verdicts: list[Verdict] = []
    interrupted = False
    with Stages(1 + len(names)) as stages, Forked(out / "ranks.log") as forked:
        try:
            stages.begin("starting the process that forks ranks")
            forked.start()
            for name in names:
                stages.begin(name)
                verdicts.append(verdict_again(name, forked, out, stages.say))
        except KeyboardInterrupt:
            interrupted = True
    scoreboard.show(verdicts, width)
    if json_file is not None:
        board = json.dumps(scoreboard.document(verdicts, len(names)), indent=1, allow_nan=False)
        write(json_file, f"{board}\n".encode())
    if interrupted:
        left = len(names) - len(verdicts)
        raise Interrupted(
            f"interrupted; {left} of {len(names)} incidents were not run", "run it again", _CTRL_C
        )
    if not total(verdicts).perfect or not all(verdict.good for verdict in verdicts):
        bad = [verdict.wanted.name for verdict in verdicts if not verdict.good]
        raise CheckFailed(
            f"not as expected: {', '.join(bad)}", f"runs and output of the ranks are in {out}/NAME"
        )


def chosen(only: Sequence[str]) -> list[str]:
    """Return the names of the incidents to run, in the scoreboard's order; all if none is named.

    A name may be written with hyphens. Raises UsageError for one that is none.
    """
    names = (*NAMES, *CLEAN)
    asked = [name.strip().replace("-", "_") for given in only for name in given.split(",") if name.strip()]
    unknown = [name for name in asked if name not in names]
    if unknown:
        raise UsageError(f"there is no incident {unknown[0]}", f"choose among {', '.join(names)}")
    return [name for name in names if name in asked] if asked else list(names)


def verdict_of(
    name: str,
    forked: Forked,
    folder: Path,
    say: Told = lambda _: None,
    train: tuple[str, str] = (_JOB, "train"),
) -> Verdict:
    """Run the incident of that name and its twin, and judge them; runs and output go to `folder`/name.

    `train` is the module and function that each rank runs. It gets the name, whether the program is the twin,
    and the run folder. The verdict reports failures.
    """
    place = folder / name
    wanted = Wanted(name, 0, ())
    begun = time.monotonic()
    try:
        say(f"{name}: asking what to expect")
        wanted, environments = _described(name, forked, place)
        say(f"{name}: the bad program" if wanted.expected else f"{name}: the program")
        bad = _report(wanted, "bad", environments, forked, place, train)
        twin = None
        if wanted.expected:
            say(f"{name}: its mended twin")
            twin = _report(wanted, "fixed", environments, forked, place, train)
    except JobError as error:
        return not_run(wanted, f"{error.message}; {error.hint}", time.monotonic() - begun)
    return judge(wanted, bad, twin, time.monotonic() - begun)


def verdict_again(name: str, forked: Forked, folder: Path, say: Told = lambda _: None) -> Verdict:
    """Return the verdict, of a second run if the first one misses by findings that times decide.

    The runs of the first are kept in `folder`/name.first.
    """
    verdict = verdict_of(name, forked, folder, say)
    if verdict.good or not by_time(verdict):
        return verdict
    say(f"{name}: missed by times, once more")
    place, first = folder / name, folder / f"{name}.first"
    shutil.rmtree(first, ignore_errors=True)
    place.rename(first)
    return replace(verdict_of(name, forked, folder, say), runs=2)


def _described(name: str, forked: Forked, place: Path) -> tuple[Wanted, list[dict[str, str]]]:
    place.mkdir(parents=True, exist_ok=True)
    out = place / "expected.json"
    forked.run((_JOB, "describe", [name, str(out)]), [{}], limit_s=LIMIT_S, log=place / "description.log")
    description = json.loads(out.read_text(encoding="utf-8"))
    return _wanted(description["wanted"]), description["environments"]


def _wanted(wanted: dict[str, Any]) -> Wanted:
    """Return the content of JSON; its lists become tuples again."""
    expected = []
    for item in wanted.pop("expected"):
        bound = item.pop("toll_ns")
        expected.append(
            Expected(**{**item, "says": tuple(item["says"])}, toll_ns=None if bound is None else tuple(bound))
        )
    proven = tuple(Proven(**item) for item in wanted.pop("proven"))
    return Wanted(**wanted, expected=tuple(expected), proven=proven)


def _report(
    wanted: Wanted,
    variant: str,
    environments: Sequence[dict[str, str]],
    forked: Forked,
    place: Path,
    train: tuple[str, str],
) -> Report:
    run = place / variant
    forked.run(
        (*train, [wanted.name, variant == "fixed", str(run)]),
        environments,
        limit_s=LIMIT_S,
        log=place / f"{variant}.log",
    )
    return analyze(read_run(run), None if wanted.fabric is None else load_fabric(wanted.fabric))
