"""Runs a script dry, as its own main program, and ends it once enough was recorded."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from shardtoll.ledger import Ledger, ShardtollError, UsageError
from shardtoll.profiler.dryrun.device.errors import Endless, Enough, line_of, one_line
from shardtoll.profiler.dryrun.dry_options import DryOptions
from shardtoll.profiler.dryrun.run import DryRun, dry


def run_dry(script: Path, arguments: Sequence[str], options: DryOptions) -> Ledger:
    """Return the ledger of the script's recorded steps.

    Raises UsageError if the script cannot be read, fails, or ends without enough optimizer steps. Also if it
    makes no process group for a job of more than one rank. The message names the script's own line.
    """
    if not script.is_file():
        raise UsageError(f"there is no script {script}", "name a Python file, then its own arguments")
    before = sys.argv, list(sys.path)
    sys.path[0] = str(script.resolve().parent)
    sys.argv = [str(script), *arguments]
    try:
        with dry(options) as run:
            ended: SystemExit | None = None
            try:
                runpy.run_path(str(script), run_name="__main__")
            except (Endless, Enough, ShardtollError, KeyboardInterrupt):
                if run.ledger is None:
                    raise
            except SystemExit as leaving:
                ended = leaving
            except Exception as error:
                # Any exception of the script is reported in one line. BaseException passes, as it is
                # somebody's wish to end this process, not a mistake of the script's.
                if run.ledger is None:
                    where = line_of(error.__traceback__, script)
                    raise UsageError(
                        f"{where}: {one_line(error)}",
                        "the program fails there; see docs/dryrun.md for what a dry run supports",
                    ) from error
            if ended is None or ended.code in (None, 0):
                run.settle()
            if run.ledger is None:
                raise _too_few(script, run, options.steps + 1, ended)
            run.refuse_alone(str(script))
            run.refuse_idle(str(script))
            return run.ledger
    finally:
        sys.argv, sys.path[:] = before


def _too_few(script: Path, run: DryRun, needed: int, ended: SystemExit | None) -> UsageError:
    """Return the error of a script that made too few optimizer steps, and exited if it did so itself.

    `needed`: optimizer steps that a dry run needs. A script that exits before the first step has a reason of
    its own, as argparse has for a wrong option. More steps help nobody then.
    """
    code, steps = None if ended is None else ended.code, run.steps
    if not steps and ended is not None:
        said = "" if not code else f" with {code}" if isinstance(code, int) else f": {_in_one_line(code)}"
        advice = "options after the script's name are its own"
        if not code or isinstance(code, int):
            # A text that it exits with is the reason, and stands there already.
            advice = f"its own output says why; {advice}"
        if run.values.asked:
            advice += "; --item answers for values that no dry run has"
        return UsageError(f"{script} exited before an optimizer step{said}", advice)
    if not steps:
        return UsageError(
            f"{script} made no optimizer step; a dry run needs {needed}",
            "have it train: only calls of a torch optimizer's step() count",
        )
    made = "1 optimizer step" if steps == 1 else f"{steps} optimizer steps"
    exited = f" and exited with {_in_one_line(code)}" if code else ""
    return UsageError(
        f"{script} made {made}{exited}; a dry run needs {needed}",
        "have it train for more steps: the first one builds the optimizer's state",
    )


def _in_one_line(said: object) -> str:
    return " ".join(str(said).split())
