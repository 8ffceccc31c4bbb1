"""What the four attempts share: sizes, the data, the model on one device, the process group."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from shardtoll.ledger import Finding
from shardtoll.samples import ranks
from shardtoll.samples.ranks import leave as leave


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes and choices of one run."""

    hidden: int = 256
    """Channels of a token, and of a sample's conditioning."""
    tokens: int = 128
    """Tokens of a sample."""
    samples: int = 8
    """Samples of the global batch, over all ranks."""
    steps: int = 4
    device: str = "auto"
    out: Path | None = None
    """Run folder for `shardtoll report`; None keeps no records."""
    seed: int = 0
    check_every_step: bool = False

    def checked(self, step: int) -> bool:
        """Whether the gradients of this step are compared with one device's."""
        return step == 0 or self.check_every_step


def arguments(story: str | None, given: Sequence[str] | None = None) -> Options:
    """Return the options of the command line; a size that the ranks cannot share ends the program."""
    defaults = Options()
    parser = argparse.ArgumentParser(
        description=story, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    for name, meaning in (
        ("hidden", "channels of a token"),
        ("tokens", "tokens of a sample"),
        ("samples", "samples of the global batch"),
        ("steps", "training steps"),
        ("seed", "seed of weights and data"),
    ):
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (default {default})")
    parser.add_argument("--device", choices=("cpu", "cuda", "auto"), default="auto")
    parser.add_argument("--out", type=Path, help="run folder that `shardtoll report` reads")
    parser.add_argument("--check-every-step", action="store_true", help="check gradients on every step")
    options = Options(**vars(parser.parse_args(given)))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    for name in ("hidden", "tokens", "samples"):
        size = getattr(options, name)
        if size < world_size or size % world_size:
            parser.error(f"--{name} {size} cannot be divided among {world_size} ranks: give a multiple")
    return options


def process_group(options: Options) -> AbstractContextManager[torch.device]:
    """Join the ranks that torchrun started (or be one alone); gives this rank's device."""
    return ranks.process_group(options.device)


@dataclass(frozen=True, slots=True)
class Batch:
    """One global batch, the same on every rank."""

    cond: torch.Tensor
    """[samples, hidden]"""
    tokens: torch.Tensor
    """[samples, tokens, hidden]"""
    target: torch.Tensor
    """[samples, tokens, hidden]"""


def make_batch(options: Options, step: int, device: torch.device) -> Batch:
    """Return the global batch of a step; it depends on seed and step alone."""
    generator = torch.Generator().manual_seed(1000 * options.seed + step)
    shape = (options.samples, options.tokens, options.hidden)
    cond = torch.randn(options.samples, options.hidden, generator=generator)
    tokens, target = (torch.randn(shape, generator=generator) for _ in range(2))
    return Batch(cond.to(device), tokens.to(device), target.to(device))


class Modulation(nn.Module):
    """The three lines on one device. Every attempt has to train `weight` exactly as this does."""

    def __init__(self, options: Options, device: torch.device) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(options.seed)
        weight = torch.randn(options.hidden, options.hidden, generator=generator) / options.hidden**0.5
        self.weight = nn.Parameter(weight.to(device))

    def forward(self, cond: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return all tokens, each scaled by its sample's conditioning: [samples, tokens, hidden]."""
        scale = cond @ self.weight
        return scale.unsqueeze(1) * tokens


def global_loss(module: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean squared error over all tokens of all samples."""
    return mse_loss(module(batch.cond, batch.tokens), batch.target)


def own_rows(samples: int) -> slice:
    """Return which samples this rank's tokens belong to."""
    each = samples // dist.get_world_size()
    return slice(dist.get_rank() * each, (dist.get_rank() + 1) * each)


def gather_rows(own: torch.Tensor) -> torch.Tensor:
    """Return the rows of all ranks, [samples, ...]; autograd reaches this rank's own.

    The plain collective knows nothing of autograd, so the other ranks' rows come as constants. The own
    rows are put back in their place, as nearly everybody does.
    """
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, own.detach())
    rows[dist.get_rank()] = own
    return torch.cat(rows)


def warm_up(forward_backward: Callable[[], object], optimizer: torch.optim.Optimizer) -> None:
    """Run one step that is not audited: the first one connects, allocates and plans.

    The optimizer steps by zero, so weights stay as they are, and the gradients are dropped.
    """
    forward_backward()
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()


def show(findings: Sequence[Finding], step: int) -> None:
    """Print on rank 0 what the gradient check found."""
    if dist.get_rank() != 0:
        return
    if not findings:
        print(f"step {step}: every gradient equals one device's")
    for finding in findings:
        print(f"step {step}: {finding.kind}: {finding.title}")
        if finding.remedy is not None and finding.remedy.code is not None:
            print(f"        try: {finding.remedy.code}")
