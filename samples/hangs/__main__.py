"""Runs one of the programs under an audit."""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from shardtoll.profiler import audit
from shardtoll.samples.hangs.programs import PROGRAMS, Step
from shardtoll.samples.ranks import leave, process_group


def run(make: Step, out: Path, hang_after_s: float, steps: int) -> None:
    """Run so many steps of a program."""
    with audit(out=out, hang_after_s=hang_after_s) as session:
        for number in range(steps):
            with session.step():
                make(number)


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m shardtoll.samples.hangs", description=__doc__)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("--out", type=Path, required=True, help="run folder, for shardtoll hang")
    parser.add_argument("--hang-after", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--limit", type=float, metavar="SECONDS", help="end the process after so long")
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    if arguments.limit is not None:
        timer = threading.Timer(arguments.limit, leave)
        timer.daemon = True
        timer.start()
    with process_group("cpu"):
        run(PROGRAMS[arguments.program](), arguments.out, arguments.hang_after, arguments.steps)
    leave()


if __name__ == "__main__":
    main()
