"""Data that a gradient check moves between ranks: weights to the reference, true gradients back, totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtoll.ledger import UsageError
from shardtoll.profiler.live.gradients import reference as gradient_reference
from shardtoll.profiler.live.gradients.compare import Pooled, overlap, pool
from shardtoll.profiler.live.gradients.diagnosis import Diagnosis, Measured, second_look
from shardtoll.profiler.live.gradients.gradient_held import Index, cut
from shardtoll.profiler.live.gradients.inputs import Inputs
from shardtoll.profiler.live.gradients.pairs import Buffer, Pair
from shardtoll.profiler.live.gradients.ranks import Ranks
from shardtoll.profiler.live.gradients.shards import Layout, Partition, layout_of, local_gradient, whole
from shardtoll.profiler.live.gradients.tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Own:
    """One trained parameter on this rank."""

    pair: Pair
    layout: Layout
    gradient: torch.Tensor | None
    """As it came from backward, a Partial DTensor reduced; None if there is none."""

    @property
    def held(self) -> bool:
        """Whether this rank holds an element of it; FSDP1 leaves many ranks without."""
        flat = self.layout.flat
        return self.pair.held is not None and (flat is None or flat.stop > flat.start)

    def against(self, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's gradient (zeros for none) and its slice of the true one."""
        if self.pair.held is None:
            return true.new_zeros(0), true.new_zeros(0)
        true_part = self.layout.cut(true)
        mine = torch.zeros_like(true_part) if self.gradient is None else self.gradient
        return mine.to(true_part.device), true_part


def wire_device(ranks: Ranks, pairs: Sequence[Pair]) -> torch.device:
    """Return the device whose tensors the default group sends."""
    if ranks.backend is not None and "nccl" in ranks.backend and "cpu" not in ranks.backend:
        return torch.device("cuda", torch.cuda.current_device())
    weight = next((pair.held.weight for pair in pairs if pair.held is not None), None)
    if ranks.backend == "gloo" or weight is None:
        return torch.device("cpu")
    return weight.to_local().device if isinstance(weight, DTensor) else weight.device


def copy_weight(ranks: Ranks, pair: Pair, device: torch.device) -> float | None:
    """Put the model's tensor into the reference, each part from the first rank that holds it.

    Returns |w - w0| / |w0| of this rank's w against that first rank's w0, None for no number.
    """
    mine = None if pair.held is None else whole(pair.held.weight, pair.held)
    first: dict[Index, int] = {}
    for rank in pair.holders:
        first.setdefault(pair.index(rank), rank)
    result: float | None = 0.0
    for index, source in first.items():
        shape = cut(pair.references[0], index).shape
        sent = ranks.sent(mine, shape, pair.first.dtype, device, source)
        for reference in pair.references:
            if not reference.is_meta:
                cut(reference, index).copy_(sent)
        if mine is not None and pair.index(ranks.rank) == index:
            apart = overlap(mine.to(device), sent)
            result = 0.0 if apart.apart_sq == 0 else apart.error
    return result


def copy_buffer(ranks: Ranks, buffer: Buffer, device: torch.device) -> None:
    """Put the model's buffer into the reference, from the first rank that has it."""
    source = buffer.holders[0]
    mine = None if buffer.mine is None else whole(buffer.mine)
    dtype = ranks.gather(None if mine is None else mine.dtype)[source]
    assert dtype is not None
    sent = ranks.sent(mine, buffer.reference.shape, dtype, device, source)
    if not buffer.reference.is_meta:
        buffer.reference.copy_(sent)


Fetch = Callable[[Pair], torch.Tensor | None]


def true_gradients(
    ranks: Ranks,
    inputs: Inputs,
    loss: Callable[[nn.Module], torch.Tensor],
    device: torch.device,
) -> Fetch:
    """Compute on rank 0; return what brings one true gradient to every rank (None: there is none)."""
    problem: UsageError | None = None
    computed: dict[str, torch.Tensor] = {}
    if ranks.rank == 0:
        try:
            computed = gradient_reference.compute(inputs.reference, inputs.pairs, inputs.modes, loss)
        except UsageError as error:
            problem = error
    ranks.agree(problem, name_rank=False)
    dtypes = ranks.gather({name: gradient.dtype for name, gradient in computed.items()})[0]

    def fetch(pair: Pair) -> torch.Tensor | None:
        dtype = dtypes.get(pair.name)
        if dtype is None:
            return None
        gradient = computed.get(pair.name)
        dense = gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient
        return ranks.sent(dense, pair.references[0].shape, dtype, device)

    return fetch


def own_gradients(ranks: Ranks, pairs: Sequence[Pair]) -> list[Own]:
    """Return what every rank compares; collectives if a gradient is Partial on all of its ranks."""
    layouts = [_layout(pair, ranks.rank) for pair in pairs]
    gathered = ranks.gather(
        [
            None
            if pair.held is None or pair.held.gradient is None
            else str((layout.placements, layout.was_partial))
            for pair, layout in zip(pairs, layouts, strict=True)
        ]
    )
    gradients: list[Own] = []
    for index, (pair, layout) in enumerate(zip(pairs, layouts, strict=True)):
        ways = {gathered[rank][index] for rank in pair.holders}
        if len(ways - {None}) > 1:
            ranks.agree(
                UsageError(
                    f"the gradient of {pair.name} is placed in different ways on the ranks",
                    "every rank must run the same operations on DTensors",
                )
            )
        if None in ways:
            # Reducing a Partial one would wait for the ranks that have none.
            layout = replace(layout, was_partial=None)
        gradient = None if pair.held is None else pair.held.gradient
        gradients.append(Own(pair, layout, None if gradient is None else local_gradient(gradient, layout)))
    return gradients


def _layout(pair: Pair, rank: int) -> Layout:
    held = pair.held
    if held is None:
        return Layout()
    flat = None if held.gradient_whole else held.flat
    return layout_of(held.weight if held.gradient is None else held.gradient, pair.index(rank), flat)


def measure(gradients: Sequence[Own], fetch: Fetch) -> tuple[list[Measured], float, int]:
    """Return this rank's numbers per parameter, and sum G^2 and elements of all true gradients."""
    rows: list[Measured] = []
    true_sq, numel = 0.0, 0
    for mine in gradients:
        true = fetch(mine.pair)
        whole_true = torch.zeros(mine.pair.references[0].shape) if true is None else true
        if true is not None:
            true_sq += overlap(true, true).true_sq
            numel += true.numel()
        gradient, part = mine.against(whole_true)
        rows.append(
            Measured(
                present=mine.gradient is not None,
                in_reference=true is not None,
                overlap=overlap(gradient, part),
                slice_key=mine.layout.slice_key if mine.held else None,
                held=mine.held,
            )
        )
    return rows, true_sq, numel


def _pooled(
    ranks: Ranks, mine: Own, true: torch.Tensor, part: Partition, keys: Sequence[object], size: int
) -> Pooled:
    gradient, true_part = mine.against(true)
    if not mine.held and any(keys[peer] is not None for peer in part.ranks[ranks.rank]):
        # A rank that holds nothing adds nothing, but has to take part in its group's reduction.
        total = pool(torch.zeros_like(true), true, part.group, size)
        return replace(total, spread_sq=0.0, own_sq=0.0)
    return pool(gradient, true_part, part.group, size)


def pooled_look(
    ranks: Ranks,
    gradient: Own,
    true: torch.Tensor | None,
    seen: Sequence[Measured],
    parts: Sequence[Partition],
    tolerance: Tolerance,
    factors: dict[float, str],
) -> tuple[Diagnosis, float | None]:
    """Add up over every group that makes sense; return the cause and the relative error once reduced."""
    assert true is not None
    keys = [measured.slice_key for measured in seen]
    mine: dict[int, Pooled] = {}
    sizes: dict[int, int] = {}
    for index, part in enumerate(parts):
        sizes[index] = part.holders(keys)
        if sizes[index]:
            mine[index] = _pooled(ranks, gradient, true, part, keys, sizes[index])
    gathered = ranks.gather(mine)
    pools = {index: [row[index] for row in gathered] for index in mine}
    diagnosis = second_look(seen, pools, sizes, tolerance, factors)
    if diagnosis.partition is None or not diagnosis.factor:
        return diagnosis, None
    factor = diagnosis.factor
    totals = [row.total for row in pools[diagnosis.partition]]
    true_sq = sum(total.true_sq for total in totals)
    apart_sq = sum((total.apart_from(factor) / factor) ** 2 for total in totals)
    return diagnosis, (apart_sq / true_sq) ** 0.5 if true_sq else None
