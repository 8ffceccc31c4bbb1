"""What incidents share: how one is described, run under an audit, and what has to be found in it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch import nn

from shardtoll.ledger import Report
from shardtoll.profiler import Session, audit
from shardtoll.profiler.live.session.schedule import Level
from shardtoll.samples.incidents.expected import Expected as Expected
from shardtoll.samples.incidents.expected import Proven as Proven
from shardtoll.samples.incidents.expected import Wanted
from shardtoll.samples.ranks import leave, process_group


class Program(NamedTuple):
    """A model and how it trains."""

    model: nn.Module | None
    train: Callable[[Session], None]
    """Runs all steps, each inside `session.step()`."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One mistake: a program, what has to be found in it, and where the story comes from."""

    name: str
    source: str
    """Where it happened: a link, or who tells it."""
    ranks: int
    build: Callable[[bool], Program]
    """Given whether it is to be mended, makes the program; called on every rank."""
    expected: tuple[Expected, ...]
    """None: the program is right, and nothing but what is `proven` may be found in it."""
    proven: tuple[Proven, ...] = ()
    checks: Sequence[str] = ()
    level: Level = "survey"
    backend: str = "gloo"
    trace: bool = False
    fabric: str | None = None
    """Fabric that the bill stands against, by name; None: the one of the machine."""
    environment: Callable[[int], Mapping[str, str]] = field(default=lambda _: {})
    """Given a rank, variables that it starts with, as a launcher on several hosts would set them."""

    def wanted(self) -> Wanted:
        """Return what can be told of it where its program cannot be imported."""
        return Wanted(self.name, self.ranks, self.expected, self.proven, self.source, self.fabric)


def run(incident: Incident, fixed: bool, out: Path | None) -> Session:
    """Run one of the two programs in the process group that is there; the session, closed."""
    program = incident.build(fixed)
    with audit(
        program.model, out, level=incident.level, checks=incident.checks, trace=incident.trace
    ) as session:
        program.train(session)
    return session


def audited(incident: Incident, fixed: bool, out: Path | None) -> Report | None:
    """Run one of the two programs in the process group that is there; the report on rank 0."""
    return run(incident, fixed, out).report()


def main(incident: Incident, story: str | None, given: Sequence[str] | None = None) -> None:
    """Run an incident from the command line, under torchrun, and print its bill on rank 0."""
    parser = argparse.ArgumentParser(
        description=story, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--fixed", action="store_true", help="run the mended program")
    parser.add_argument("--out", type=Path, help="run folder that `shardtoll report` reads")
    options = parser.parse_args(given)
    with process_group("cpu", incident.backend):
        if dist.get_world_size() != incident.ranks:
            parser.error(
                f"{incident.name} needs {incident.ranks} ranks: torchrun --nproc-per-node {incident.ranks}"
            )
        report = audited(incident, options.fixed, options.out)
        if report is not None:
            report.show()
        dist.barrier()
    leave()
