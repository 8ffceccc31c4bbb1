"""What the strategies share: options, how a job is run under an audit, and the bill it prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler import Session, audit
from shardtoll.profiler.live.session.schedule import LEVELS, Level
from shardtoll.samples.ranks import leave, process_group
from shardtoll.samples.strategies.transformer import Batch, Sizes, Transformer, loss_of, make_batch


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes and choices of one run."""

    sizes: Sizes = field(default_factory=Sizes)
    sequences: int = 4
    """Sequences of a batch, for each data-parallel rank."""
    steps: int = 2
    """Audited steps, after one that is not."""
    device: str = "auto"
    seed: int = 0
    level: Level = "survey"
    """A sample runs too few steps to watch most of them."""
    out: Path | None = None
    """Run folder for `shardtoll report`; None keeps no records."""

    def model(self, device: torch.device) -> Transformer:
        """Return the transformer with the seed's weights."""
        return Transformer(self.sizes, self.seed).to(device)

    def batch(self, step: int, device: torch.device, rank: int | None = None) -> Batch:
        """Return the batch of a step. `rank` is the data-parallel one, by default this rank itself."""
        rank = dist.get_rank() if rank is None else rank
        return make_batch(self.sizes, self.sequences, device, seed=1_000 * self.seed + step, rank=rank)


@dataclass(frozen=True, slots=True)
class Job:
    """A model made ready for its ranks, and one training step of it."""

    model: nn.Module
    step: Callable[[int], torch.Tensor]
    """Given the step's number: batch, forward, backward, optimizer; returns this rank's loss."""


Build = Callable[[Options, torch.device], Job]
"""What a variant of a strategy is: a function that makes its job."""


def plain_job(
    options: Options, device: torch.device, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Job:
    """Return the job whose step is the usual four lines."""

    def step(number: int) -> torch.Tensor:
        batch = options.batch(number, device)
        loss = loss_of(model(batch.tokens), batch.targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Job(model, step)


def train(job: Job, options: Options) -> tuple[Session, list[torch.Tensor]]:
    """Run one step unaudited, for it connects, allocates and plans, then the audited ones.

    Returns the session, closed, and the losses of all steps.
    """
    losses = [job.step(0)]
    with audit(job.model, out=options.out, level=options.level) as session:
        for number in range(1, options.steps + 1):
            with session.step():
                losses.append(job.step(number))
    return session, losses


def arguments(
    story: str | None, variants: Mapping[str, Build], given: Sequence[str] | None = None
) -> tuple[Build, Options]:
    """Return the variant chosen on the command line, and the options."""
    defaults = Options()
    parser = argparse.ArgumentParser(
        description=story, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--variant", choices=tuple(variants), default=next(iter(variants)))
    for name, meaning in (
        ("sequences", "sequences of a batch, for each data-parallel rank"),
        ("steps", "audited steps"),
        ("seed", "seed of weights and data"),
    ):
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (default {default})")
    parser.add_argument(
        "--level", choices=LEVELS, default=defaults.level, help="how closely to look at steps"
    )
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="auto")
    parser.add_argument("--out", type=Path, help="run folder that `shardtoll report` reads")
    chosen = vars(parser.parse_args(given))
    return variants[chosen.pop("variant")], Options(**chosen)


def main(story: str | None, variants: Mapping[str, Build], backend: str | None = None) -> None:
    """Run the chosen variant on the ranks of torchrun; rank 0 prints the bill."""
    build, options = arguments(story, variants)
    with process_group(options.device, backend) as device:
        session, losses = train(build(options, device), options)
        report = session.report()
        if report is not None:
            report.show()
            # A pipeline has its losses on the last stage, and rank 0 is on the first.
            if losses[-1].numel():
                print("losses of rank 0: " + " ".join(f"{float(loss):.4f}" for loss in losses))
    leave()
