"""The time of one recorded collective in a group of another size, on another fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import Card
from shardtoll.analyzers.forecast.plan.network import place_group
from shardtoll.analyzers.forecast.rescale.inside import Sent
from shardtoll.analyzers.roofline import Fabric, Placement, collective_cost
from shardtoll.ledger.records.mesh_names import is_of

_UNPRICED: Final = 10.0
"""A collective without a price takes from nothing to so many times its measured time. Links between hosts are
about ten times slower than links within. The number of ranks hardly changes what each rank sends."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Place where a run ran, or shall run."""

    fabric: Fabric
    gpu: Card | None
    """None on CPUs and if the GPU is unknown."""
    per_node: int


def scales_with_world(sent: Sent, measured: int) -> bool:
    """Return whether the collective's group grows with the number of ranks, which was `measured`."""
    if sent.mesh_dim is not None:
        # Over these dimensions more GPUs mean more replicas or shards.
        return is_of(sent.mesh_dim, "data") or sent.group_size == measured
    return sent.group_size == measured


def times_ns(
    sent: Sent,
    measured: int,
    world: int,
    work: float,
    before: Machine,
    after: Machine,
    strides: dict[str, int],
    notes: list[str],
    *,
    forecast: bool = False,
    unpriced: list[str] | None = None,
) -> tuple[float, float, float]:
    """Return low, expected and high of one collective. A measured time is scaled by the model's ratio.

    `forecast`: the time is itself a price, whose uncertainty is in the band of the dry step. A collective
    without a price is named in `unpriced`, and `notes` say why.
    """
    moving_ns = float(max(0, sent.duration_ns - sent.wait_ns))
    scales = scales_with_world(sent, measured)
    size = max(1, round(sent.group_size * world / measured)) if scales else sent.group_size
    message = None if sent.message_bytes is None else sent.message_bytes * (1.0 if scales else work)
    unchanged = size == sent.group_size and before.fabric == after.fabric and work == 1.0
    # One outside its step takes none of the step's time at any price.
    if unchanged or not sent.duration_ns:
        return (float(sent.duration_ns),) * 3
    stride = strides.get(sent.group, 1)
    old = _cost(before, sent.op, sent.message_bytes, place_group(sent.group_size, stride, before.per_node))
    new = _cost(after, sent.op, message, place_group(size, stride, after.per_node))
    if old is None or new is None or old[1] <= 0:
        what = f"{sent.op} over {sent.name}"
        if unpriced is not None:
            unpriced.append(what)
        # The old or the new machine has no price: the reason is that machine's.
        if old is None or old[1] <= 0:
            why = _why(before, sent.message_bytes, sent.group_size)
        else:
            why = _why(after, message, size)
        notes.append(
            f"the price of {what} is unknown: {why}. Bands count none to ten times its recorded time"
        )
        return 0.0, float(sent.duration_ns), sent.duration_ns * _UNPRICED
    low, expected, high = (moving_ns * each / old[1] + sent.wait_ns for each in new)
    return (expected,) * 3 if forecast else (low, expected, high)


def _why(machine: Machine, message: float | None, size: int) -> str:
    """Return why a collective of so many ranks has no price there."""
    if message is None:
        return "its message size is not on record"
    fabric = machine.fabric
    if fabric.inter is None and size > machine.per_node:
        return f"{fabric.name} has no links between hosts (name a fabric with --fabric)"
    return f"{fabric.name} has no figures for it"


def _cost(
    machine: Machine, op: str, message: float | None, placement: Placement
) -> tuple[float, float, float] | None:
    if message is None:
        return None
    cost = collective_cost(machine.fabric, op, round(message), placement)
    return None if cost is None else (float(cost.low_ns), float(cost.time_ns), float(cost.high_ns))
