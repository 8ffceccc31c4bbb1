"""How long `shardtoll --help` takes, as a whole process, beside a bare interpreter.

Help is asked for in shells and scripts all day; it must not import torch, pandas or plotly. The two
commands take turns; times are wall clock of the whole process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from harness import Result, Spread, main

AIM_S: Final = 0.35
BARE: Final = [sys.executable, "-c", "pass"]
HELP: Final = [str(Path(sys.executable).with_name("shardtoll")), "--help"]


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, help="runs of each command")


def _seconds(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def measure(chosen: argparse.Namespace) -> Result:
    """Time both commands in turn; the first round fills the file cache and is not counted."""
    rounds = [(_seconds(BARE), _seconds(HELP)) for _ in range(chosen.repeats + 1)][1:]
    bare, shown = (Spread.of(samples) for samples in zip(*rounds, strict=True))
    print(
        f"shardtoll --help {shown.median:.3f} s ({shown.low:.3f} to {shown.high:.3f}), "
        f"python {bare.median:.3f} s"
    )
    figures = {
        "help_s": shown.median,
        "help_q1_s": shown.low,
        "help_q3_s": shown.high,
        "bare_python_s": bare.median,
        "help_over_bare_python": shown.median / bare.median,
    }
    return Result(figures, {"help_s": AIM_S})


if __name__ == "__main__":
    main(measure, about=__doc__, options=_options)
