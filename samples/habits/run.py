"""Runs a habit under an audit."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

import torch

from shardtoll.ledger import Report
from shardtoll.profiler import Session, audit
from shardtoll.samples.habits.programs import PROGRAMS
from shardtoll.samples.ranks import leave, process_group

STEPS: Final = 8


def trained(name: str, *, fixed: bool = False, steps: int = STEPS, out: Path | None = None) -> Session:
    """Train with a habit, or without it, and return the closed session."""
    torch.manual_seed(0)
    loop = PROGRAMS[name](fixed)
    with audit(loop.model, out=out) as session:
        for number in range(steps):
            with session.step():
                loop.step(number)
    return session


def audited(name: str, *, fixed: bool = False, steps: int = STEPS, out: Path | None = None) -> Report | None:
    """Train with a habit, or without it, and return rank 0's report."""
    return trained(name, fixed=fixed, steps=steps, out=out).report()


def main() -> None:
    """Run what the command line names, and print the bill on rank 0."""
    parser = argparse.ArgumentParser(prog="shardtoll.samples.habits")
    parser.add_argument("name", choices=sorted(PROGRAMS))
    parser.add_argument("--fixed", action="store_true", help="the same loop without the habit")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, help="run folder; without it no records are kept")
    asked = parser.parse_args()
    with process_group("cpu"):
        report = audited(asked.name, fixed=asked.fixed, steps=asked.steps, out=asked.out)
        if report is not None:
            report.show()
    leave()
