"""Which machine a dry run plays: a GPU and a fabric, each by its name or TOML file."""

from __future__ import annotations

from shardtoll.analyzers.forecast.compute.cards import capacity_of, card_of
from shardtoll.analyzers.forecast.plan.check import usual_fabric
from shardtoll.analyzers.roofline import fabric_names, gpu_to_toml, load_fabric, to_toml
from shardtoll.analyzers.shared.gpu_maker import gpu_maker
from shardtoll.ledger.answers.dry_step import DryMachine
from shardtoll.ledger.report.dry_entries import MACHINE

_PER_HOST = 8
_CAPABILITY = (9, 0)
"""Compute capability assumed for a GPU whose file does not give it."""


@MACHINE.entry
def machine_of(gpu: str, fabric: str | None = None) -> DryMachine:
    """Return the machine; without a fabric with the usual one of this GPU.

    Raises UsageError for an unknown GPU or one without a usual fabric. Raises FabricError for an unknown
    fabric and for a file that describes none.
    """
    found = card_of(gpu)
    card = found.gpu
    asked = fabric or usual_fabric(gpu)
    machines = load_fabric(asked)
    ranks = machines.ranks_per_node
    return DryMachine(
        gpu=card.name,
        title=card.title,
        device=card.device_names[0] if card.device_names else card.title,
        memory_bytes=capacity_of(gpu),
        multiprocessors=card.sms or 0,
        capability=card.capability or _CAPABILITY,
        fabric=machines.name,
        per_host=_PER_HOST if ranks is None else int(ranks.value),
        # A file may be gone or changed when the run is read.
        gpu_toml=None if found.shipped else gpu_to_toml(card),
        fabric_toml=None if asked in fabric_names() else to_toml(machines),
        has_cudnn=gpu_maker(" ".join((card.name, *card.device_names))) != "amd",
    )
