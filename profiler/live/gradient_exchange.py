"""What moves between ranks in a gradient check: weights to the reference, true gradients back, totals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from shardtoll.ledger import UsageError
from shardtoll.profiler.live import gradient_reference
from shardtoll.profiler.live.gradient_compare import Pooled, overlap, pool
from shardtoll.profiler.live.gradient_diagnosis import Diagnosis, Measured, second_look
from shardtoll.profiler.live.gradient_pairs import Pair, modes
from shardtoll.profiler.live.gradient_ranks import Ranks
from shardtoll.profiler.live.gradient_shards import Layout, Partition, layout_of, local_gradient, whole
from shardtoll.profiler.live.gradient_tolerance import Tolerance


@dataclass(frozen=True, slots=True)
class Own:
    """One trained parameter on this rank."""

    pair: Pair
    layout: Layout
    gradient: torch.Tensor | None
    """As it came from backward, a Partial DTensor reduced; None where there is none."""

    def against(self, true: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this rank's gradient (zeros for none) and its slice of the true one."""
        true_part = self.layout.cut(true)
        own = torch.zeros_like(true_part) if self.gradient is None else self.gradient
        return own.to(true_part.device), true_part


def wire_device(ranks: Ranks, pairs: Sequence[Pair]) -> torch.device:
    """Return the device whose tensors the default group sends."""
    if ranks.backend is not None and "nccl" in ranks.backend and "cpu" not in ranks.backend:
        return torch.device("cuda", torch.cuda.current_device())
    if ranks.backend == "gloo" or not pairs:
        return torch.device("cpu")
    own = pairs[0].own
    return own.to_local().device if isinstance(own, DTensor) else own.device


def copy_weight(ranks: Ranks, pair: Pair, device: torch.device) -> float | None:
    """Put rank 0's tensor into the reference; return |w - w0| / |w0| of this rank's, None for no number."""
    own = whole(pair.own)
    first = ranks.from_first(own, own.shape, own.dtype, device)
    if not pair.reference.is_meta:
        pair.reference.copy_(first)
    apart = overlap(own.to(device), first)
    return 0.0 if apart.apart_sq == 0 else apart.error


Fetch = Callable[[Pair], torch.Tensor | None]


def true_gradients(
    ranks: Ranks,
    model: nn.Module,
    reference: nn.Module,
    pairs: Sequence[Pair],
    loss: Callable[[nn.Module], torch.Tensor],
    device: torch.device,
) -> Fetch:
    """Compute on rank 0; return what brings one true gradient to every rank (None: there is none)."""
    problem: UsageError | None = None
    computed: dict[str, torch.Tensor] = {}
    if ranks.rank == 0:
        try:
            computed = gradient_reference.compute(reference, pairs, modes(model), loss)
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
        return ranks.from_first(dense, pair.own.shape, dtype, device)

    return fetch


def own_gradients(ranks: Ranks, pairs: Sequence[Pair]) -> list[Own]:
    """Return what every rank compares; collectives where a gradient is Partial on all of its ranks."""
    layouts = [layout_of(pair.own if pair.own.grad is None else pair.own.grad) for pair in pairs]
    told = ranks.gather(
        [
            None if pair.own.grad is None else str((layout.placements, layout.was_partial))
            for pair, layout in zip(pairs, layouts, strict=True)
        ]
    )
    found: list[Own] = []
    for index, (pair, layout) in enumerate(zip(pairs, layouts, strict=True)):
        ways = {row[index] for row in told}
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
        gradient = pair.own.grad
        found.append(Own(pair, layout, None if gradient is None else local_gradient(gradient, layout)))
    return found


def measure(own: Sequence[Own], fetch: Fetch) -> tuple[list[Measured], float, int]:
    """Return this rank's numbers a parameter, and sum G^2 and elements of all true gradients."""
    rows: list[Measured] = []
    true_sq, numel = 0.0, 0
    for mine in own:
        true = fetch(mine.pair)
        whole_true = torch.zeros(mine.pair.own.shape) if true is None else true
        if true is not None:
            true_sq += overlap(true, true).true_sq
            numel += true.numel()
        gradient, part = mine.against(whole_true)
        rows.append(
            Measured(
                mine.gradient is not None, true is not None, overlap(gradient, part), mine.layout.slice_key
            )
        )
    return rows, true_sq, numel


def pooled_look(
    ranks: Ranks,
    own: Own,
    true: torch.Tensor | None,
    seen: Sequence[Measured],
    parts: Sequence[Partition],
    tolerance: Tolerance,
    known: dict[float, str],
) -> tuple[Diagnosis, float | None]:
    """Add up over every group that makes sense; return the cause and the relative error once reduced."""
    assert true is not None
    gradient, true_part = own.against(true)
    keys = [measured.slice_key for measured in seen]
    mine: dict[int, Pooled] = {
        index: pool(gradient, true_part, part.group, part.size)
        for index, part in enumerate(parts)
        if part.holds_equal_slices(keys)
    }
    told = ranks.gather(mine)
    pools = {index: [row[index] for row in told] for index in mine}
    sizes = {index: parts[index].size for index in mine}
    diagnosis = second_look(seen, pools, sizes, tolerance, known)
    if diagnosis.partition is None or not diagnosis.factor:
        return diagnosis, None
    factor = diagnosis.factor
    totals = [row.total for row in pools[diagnosis.partition]]
    true_sq = sum(total.true_sq for total in totals)
    apart_sq = sum((total.apart_from(factor) / factor) ** 2 for total in totals)
    return diagnosis, (apart_sq / true_sq) ** 0.5 if true_sq else None
