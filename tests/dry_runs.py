"""Dry runs of samples and small programs, for tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from shardtoll.ledger import Ledger
from shardtoll.ledger.answers.dry_step import DryMachine
from shardtoll.profiler.dryrun.device.values import Policy
from shardtoll.profiler.dryrun.device.world import World
from shardtoll.profiler.dryrun.dry_options import DryOptions
from shardtoll.profiler.dryrun.run import dry
from shardtoll.samples.strategies import common

MACHINE = DryMachine(
    "h100-sxm", "H100", "NVIDIA H100 80GB HBM3", 80_000_000_000, 132, (9, 0), "h100x8-ib400", 8
)


def options(world: int = 1, rank: int = 0, machine: DryMachine = MACHINE, **choices: Any) -> DryOptions:
    """What tests play: a rank of a job on machines of eight H100."""
    return DryOptions(World(world, rank, 8), machine, **choices)


def recorded(program: Callable[[], Any], world: int = 1, rank: int = 0, **choices: Any) -> Ledger:
    """The ledger of a program that trains for at least two steps."""
    with dry(options(world, rank, **choices)) as run:
        program()
    assert run.ledger is not None, "the program made too few steps"
    return run.ledger


def sample(name: str, world: int, rank: int = 0, policy: Policy | None = None) -> Ledger:
    """The ledger of the second step of `module.variant` among the strategies, asked to run on CUDA."""
    module, variant = name.split(".")
    build = importlib.import_module(f"shardtoll.samples.strategies.{module}").VARIANTS[variant]

    def train() -> None:
        dist.init_process_group("nccl")
        job = build(common.Options(device="cuda"), torch.device("cuda"))
        for number in range(2):
            job.step(number)

    return recorded(train, world, rank, policy=policy or Policy())
