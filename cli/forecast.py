"""`shardtoll forecast`: what a step takes on another number of GPUs, another fabric or another GPU."""

from __future__ import annotations

from typing import Final

SUBCOMMANDS: Final = ("run", "eval")
ALONE: Final = False
DEFAULT: Final = "run"
"""The command meant if the first word names none: `shardtoll forecast RUN` is `shardtoll forecast run
RUN`."""


def command() -> None:
    """Forecast step time: `forecast RUN` re-prices a run for other machines, `forecast eval` prices a table.

    \b
    Examples:
      shardtoll forecast runs/a --world 16
      shardtoll forecast eval rows.csv
    """
