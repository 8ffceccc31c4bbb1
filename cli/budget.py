"""`shardtoll budget`: the commands about budgets."""

from __future__ import annotations

from typing import Final

SUBCOMMANDS: Final = ("init",)
ALONE: Final = False


def command() -> None:
    """Write a budget from a run; `shardtoll check` holds later runs to it.

    \b
    Examples:
      shardtoll budget init runs/a
      shardtoll budget init runs/a -o tight.toml --slack 5%
    """
