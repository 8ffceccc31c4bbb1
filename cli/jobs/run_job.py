"""The work of `shardtoll run`: it starts ranks, or is one of them and prints the bill at the end."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import typer

from shardtoll.cli.inputs.outputs import Writer, choose_writers, make_folder, tell_written
from shardtoll.ledger import Interrupted, ShardtollError, UsageError
from shardtoll.ledger.disk.run_files import is_run_folder
from shardtoll.profiler.live.session.schedule import LEVELS, Level

if TYPE_CHECKING:
    from shardtoll.profiler import Session

CHECKS: Final = ("gradients", "replicas", "data")
"""Checks of `audit()`, named here so that a mistake is reported before torch is imported."""
RANK_0_TELLS_S: Final = 15.0
"""How long another rank waits for rank 0 to report the same mistake, which ends the job."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command, which every rank gets."""

    out: Path | None
    level: str
    survey_every: int
    trace: bool
    steps: int | None
    step_on: str | None
    output: tuple[Path, ...]
    as_json: bool
    width: int | None
    checks: tuple[str, ...] = ()
    hang_after: float | None = None

    def as_arguments(self) -> list[str]:
        """Return them as the command's arguments."""
        named = {
            "--out": self.out,
            "--level": self.level,
            "--survey-every": self.survey_every,
            "--steps": self.steps,
            "--step-on": self.step_on,
            "--width": self.width,
            "--checks": ",".join(self.checks) or None,
            "--hang-after": self.hang_after,
        }
        given = [word for name, value in named.items() if value is not None for word in (name, str(value))]
        given += [word for path in self.output for word in ("-o", str(path))]
        return given + ["--trace"] * self.trace + ["--json"] * self.as_json


def run(script: Path, arguments: Sequence[str], nproc: int | None, options: RunOptions) -> None:
    """Run the script here, or on `nproc` ranks that are started for it, and print its report on rank 0.

    Raises UsageError before anything runs if the script or an option is wrong. Raises Interrupted if a signal
    ended the ranks, SystemExit with the script's exit code.
    """
    with _rank_0_tells():
        if not script.is_file():
            raise UsageError(f"there is no script {script}", "name a Python file, then its own arguments")
        if options.level not in LEVELS:
            raise UsageError(f"--level {options.level} is unknown", f"it is one of {', '.join(LEVELS)}")
        unknown = [name for name in options.checks if name not in CHECKS]
        if unknown:
            raise UsageError(f"--checks {unknown[0]} is unknown", f"choose among {', '.join(CHECKS)}")
        if options.hang_after is not None and not 0 <= options.hang_after < 1e9:
            raise UsageError(f"--hang-after is {options.hang_after}", "give seconds, or 0 for no stacks")
        writers = choose_writers(options.output, sources=1, keeps_run=True)
        if options.out is not None:
            make_folder(options.out)
        if nproc is not None:
            _start(script, arguments, nproc, options)
        _run_here(script, arguments, options.level, writers, options)


@contextmanager
def _rank_0_tells() -> Iterator[None]:
    """Have a mistake reported once: launchers end the other ranks when rank 0 has reported it and left.

    A rank that is still there after a while made the mistake alone, and reports it itself.
    """
    try:
        yield
    except ShardtollError:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(RANK_0_TELLS_S)
        raise


def _start(script: Path, arguments: Sequence[str], nproc: int, options: RunOptions) -> NoReturn:
    """Run the script on ranks of this machine and leave with their exit code."""
    from shardtoll.profiler.live.entry.launching import Stopped, start_ranks

    words = ["run", *options.as_arguments(), str(script), *arguments]
    try:
        outcome = start_ranks(nproc, "shardtoll.cli", words)
        _tell_end(outcome.code, outcome.ended_by, options.out)
        sys.exit(outcome.code)
    except Stopped as stopped:
        number = stopped.number
    word = "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
    if options.out is not None and is_run_folder(options.out):
        kept, next_step = f"the finished steps are in {options.out}", f"shardtoll report {options.out}"
    elif options.out is not None:
        kept, next_step = "no step was recorded", "run it again"
    else:
        kept, next_step = "no steps were kept", "--out FOLDER keeps those that finish"
    raise Interrupted(f"{word}; {kept}", next_step, number)


def _tell_end(code: int, ended_by: str | None, out: Path | None) -> None:
    """Say in one line that a rank ended badly, and what names it."""
    kept = out is not None and is_run_folder(out)
    look = f"shardtoll hang {shlex.quote(str(out))}"
    # With exit code 2, a rank's own line has already said what to do.
    if ended_by is not None:
        typer.echo(f"shardtoll: {ended_by}" + (f"; where: {look}" if kept else ""), err=True)
    elif code not in (0, 2) and kept:
        typer.echo(f"shardtoll: a rank ended with exit code {code}; which one and where: {look}", err=True)


def _run_here(
    script: Path,
    arguments: Sequence[str],
    level: Level,
    writers: Sequence[tuple[Writer, Path]],
    options: RunOptions,
) -> None:
    # The script may change its directory: paths of the command are relative to the directory of its call.
    here = Path.cwd()

    def show(session: Session) -> None:
        report = session.report()
        if report is None:
            return
        if options.as_json:
            typer.echo(report.to_json())
        else:
            typer.echo()
            report.show(options.width)
        for write, target in writers:
            written = write(report, here / target)
            as_named = [file if target.is_absolute() else file.relative_to(here) for file in written]
            tell_written(as_named, as_json=options.as_json)

    from shardtoll.profiler.live.entry.script import ScriptOptions, run_script

    run_script(
        script,
        arguments,
        ScriptOptions(
            None if options.out is None else here / options.out,
            level,
            options.survey_every,
            options.trace,
            options.steps,
            options.step_on,
            options.checks,
            options.hang_after,
        ),
        show,
    )
