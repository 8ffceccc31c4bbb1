"""`shardtoll demo --incidents`: every incident is run on this machine and the tool is marked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from shardtoll.cli.incidents import scoreboard
from shardtoll.cli.incidents.job import chosen, verdict_again
from shardtoll.cli.incidents.verdict import Verdict, total
from shardtoll.cli.inputs.outputs import make_folder
from shardtoll.cli.jobs.forked import Forked
from shardtoll.cli.jobs.stages import Stages
from shardtoll.dashboards.words.files import write
from shardtoll.ledger import CheckFailed, Interrupted

_CTRL_C = 2


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
