"""Weak and strong scaling of a measured run: collectives at other sizes of their groups, compute on another
GPU."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan.constants import fitted
from shardtoll.analyzers.forecast.plan.network import place_group
from shardtoll.analyzers.forecast.rescale.recorded import Recorded, Sent, recorded_step
from shardtoll.analyzers.roofline import Fabric, Placement, collective_cost
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.answers.forecast import Band, Scaling, ScalingPoint

REPLICAS: Final = ("dp", "data", "ddp", "fsdp", "dp_shard", "dp_replicate", "replicate", "shard", "batch")
"""Names of mesh dimensions over which more GPUs mean more replicas or shards."""

_COMPUTE_BAND: Final = 1.04
"""Factor of the band of compute that does not change: runs of one layout differ by so much between days."""
_UNPRICED: Final = 10.0
"""A collective without a price takes from nothing to so many times its measured time, and more in proportion
to its ranks: links between hosts are about ten times slower than links within."""
_LEAST: Final = 0.01
"""Least share of the expected step at which a band begins: a rate needs a time."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run ran, or shall run."""

    fabric: Fabric
    gpu: str | None
    per_node: int


def scale_run(
    report: Report, name: str, before: Machine, after: Machine, world: int, anchor: Report | None = None
) -> Scaling:
    """Return the run re-priced for `world` ranks and for numbers between, on another machine or the same.

    `anchor`: a run of the same job on another number of ranks, which corrects the forecast. Raises UsageError
    where the world does not divide by the groups that stay, or the run has no finished step.
    """
    recorded = recorded_step(report)
    measured = report.run.world_size
    fixed = _fixed_ranks(recorded, measured)
    if world % fixed:
        raise UsageError(
            f"--world {world} does not divide by the {fixed} ranks of groups that keep their size",
            f"give a multiple of {fixed}",
        )
    strides = _strides(report)
    notes: list[str] = []
    correction = _correction(report, anchor, before, strides, notes)
    points = {
        kind: tuple(
            _point(recorded, measured, each, before, after, strides, kind, correction, notes)
            for each in _worlds(measured, world, fixed)
        )
        for kind in ("weak", "strong")
    }
    return Scaling(
        name, measured, recorded.duration_ns, before.gpu, after.gpu, before.fabric.name, after.fabric.name,
        world, points["weak"], points["strong"], None if anchor is None else f"{anchor.run.world_size} ranks",
        tuple(dict.fromkeys(notes)), dry=report.run.source == "dry",
    )  # fmt: skip


def _scales(sent: Sent, measured: int) -> bool:
    if sent.mesh_dim is not None:
        return any(word == sent.mesh_dim.casefold() for word in REPLICAS) or sent.group_size == measured
    return sent.group_size == measured


def _fixed_ranks(recorded: Recorded, measured: int) -> int:
    """Return how many ranks share one replica: the product of the sizes of groups that keep them."""
    sizes = {sent.name: sent.group_size for sent in recorded.sent if not _scales(sent, measured)}
    product = math.prod(sizes.values())
    return product if product and measured % product == 0 else 1


def _worlds(measured: int, world: int, fixed: int) -> list[int]:
    low, high = min(measured, world), max(measured, world)
    sizes = {measured, world}
    size = low
    while size < high:
        if size % fixed == 0:
            sizes.add(size)
        size *= 2
    return sorted(sizes)


def _strides(report: Report) -> dict[str, int]:
    return {
        group.name: max(1, group.ranks[1] - group.ranks[0]) for group in report.groups if len(group.ranks) > 1
    }


def _correction(
    report: Report, anchor: Report | None, machine: Machine, strides: dict[str, int], notes: list[str]
) -> tuple[float, float]:
    """Return the logarithm of measured over forecast at the anchor, and the logarithm of how far away it
    is."""
    if anchor is None:
        return 0.0, 1.0
    recorded = recorded_step(report)
    measured, there = report.run.world_size, anchor.run.world_size
    point = _point(recorded, measured, there, machine, machine, strides, "weak", (0.0, 1.0), notes)
    ratio = math.log(recorded_step(anchor).duration_ns / point.step_ns.expected)
    return ratio, math.log(there / measured)


def _point(
    recorded: Recorded,
    measured: int,
    world: int,
    before: Machine,
    after: Machine,
    strides: dict[str, int],
    kind: str,
    correction: tuple[float, float],
    notes: list[str],
) -> ScalingPoint:
    work = measured / world if kind == "strong" else 1.0
    factors = _compute_factors(before.gpu, after.gpu)
    sent = [_times(each, measured, world, work, before, after, strides, notes) for each in recorded.sent]
    ratio = _corrected(correction, measured, world)
    steps = []
    for place, factor in enumerate(factors):
        times = [each[place] for each in sent]
        steps.append(recorded.step_ns(factor * work, times) * ratio)
    low, expected, high = steps
    low, high = max(low / _COMPUTE_BAND, expected * _LEAST), high * _COMPUTE_BAND
    expected = min(max(expected, low), high)
    step = Band(expected, low, high)
    exposed = _exposed(recorded, [each[1] for each in sent], factors[1] * work)
    compute = recorded.compute_ns * factors[1] * work
    compute = min(compute, expected)
    rest = max(0.0, expected - compute - sum(exposed.values()))
    gain = recorded.duration_ns * (measured / world if kind == "strong" else 1.0)
    return ScalingPoint(world, step, compute, exposed, rest, step.inverse(gain))


def _compute_factors(before: str | None, after: str | None) -> tuple[float, float, float]:
    """Return by what compute takes longer: at least, expected, at most.

    Matmuls go with sustained rates, the rest with memory bandwidth; how much is which, the band holds both.
    """
    if before is None or after is None or before == after:
        return 1.0, 1.0, 1.0
    one, two = card_of(before), card_of(after)
    constants = fitted()

    def rate(name: str) -> float:
        card = card_of(name)
        sustained = constants.get("sustained", f"{name}.bfloat16", name)
        return card.peak_tflops("bfloat16") * card.matmul_share * sustained

    matmul = rate(one.name) / rate(two.name)
    memory = one.memory_gbps / two.memory_gbps
    return min(matmul, memory), matmul**0.7 * memory**0.3, max(matmul, memory)


def _times(
    sent: Sent,
    measured: int,
    world: int,
    work: float,
    before: Machine,
    after: Machine,
    strides: dict[str, int],
    notes: list[str],
) -> tuple[float, float, float]:
    """Return low, expected and high of one collective. What was measured is scaled by the model's ratio."""
    own = float(max(0, sent.duration_ns - sent.wait_ns))
    scales = _scales(sent, measured)
    size = max(1, round(sent.group_size * world / measured)) if scales else sent.group_size
    message = None if sent.message_bytes is None else sent.message_bytes * (1.0 if scales else work)
    unchanged = size == sent.group_size and before.fabric is after.fabric and work == 1.0
    if unchanged:
        return (float(sent.duration_ns),) * 3
    stride = strides.get(sent.group, 1)
    old = _cost(before, sent.op, sent.message_bytes, place_group(sent.group_size, stride, before.per_node))
    new = _cost(after, sent.op, message, place_group(size, stride, after.per_node))
    if old is None or new is None or old[1] <= 0:
        notes.append(
            f"the price of {sent.op} over {sent.name} is unknown: it keeps its recorded time, and the band "
            "holds up to ten times of it"
        )
        grown = max(1.0, size / sent.group_size, work)
        return 0.0, float(sent.duration_ns), sent.duration_ns * _UNPRICED * grown
    low, expected, high = (own * each / old[1] + sent.wait_ns for each in new)
    return low, expected, high


def _cost(
    machine: Machine, op: str, message: float | None, placement: Placement
) -> tuple[float, float, float] | None:
    if message is None:
        return None
    cost = collective_cost(machine.fabric, op, round(message), placement)
    return None if cost is None else (float(cost.low_ns), float(cost.time_ns), float(cost.high_ns))


def _corrected(correction: tuple[float, float], measured: int, world: int) -> float:
    ratio, distance = correction
    if not ratio:
        return 1.0
    if not distance:
        return math.exp(ratio)
    part = math.log(world / measured) / distance
    return math.exp(ratio * min(1.5, max(0.0, part)))


def _exposed(recorded: Recorded, times: Sequence[float], factor: float) -> dict[str, float]:
    """Return what the step would gain if each kind of collective took no time, scaled to add up to their
    sum."""
    whole = recorded.step_ns(factor, times)
    bare = recorded.step_ns(factor, [0.0] * len(times))
    parts: dict[str, float] = defaultdict(float)
    for sent, time in zip(recorded.sent, times, strict=True):
        hidden = max(0.0, sent.duration_ns - sent.exposed_ns)
        parts[sent.name] += max(0.0, time - hidden)
    total = sum(parts.values())
    return {name: value * (whole - bare) / total for name, value in parts.items()} if total else {}
