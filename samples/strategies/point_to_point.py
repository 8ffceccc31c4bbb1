"""Collectives by hand: one gradient exchange, written in six ways.

Every rank has the whole model and a batch of its own. After backward the gradients, B bytes in P tensors,
have to be averaged over n ranks. All ways but `neighbours` give the same ones; each costs something else:

    variant      issued in phase `other`, after backward
    one_by_one   P all_reduces: nearly all of the time is latency
    coalesced    1 all_reduce of B, of all tensors at once, under `_coalescing_manager`
    functional   1 all_reduce of B through the functional collectives, whose results are waited for when used
    sharded      1 reduce_scatter of B, then 1 all_gather of B: an all_reduce in its two halves
    ring         2 (n - 1) times a send and a recv of B / n, in batches: how a transport may do an all_reduce.
                 The bytes sent are the wire bytes that the bill gives for one all_reduce of B
    neighbours   a send of B to the next rank and a recv from the one before: gossip, no average of all

Sends and receives name their peer. A blocking `send` waits until its peer receives, so every second rank of
`neighbours` receives first; in batches nobody has to think of that.

Collectives over symmetric memory (torch.ops.symm_mem, torch 2.13) run on CUDA only; on the CPU they raise
NotImplementedError: "Could not run 'symm_mem::one_shot_all_reduce' with arguments from the 'CPU' backend".

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.point_to_point --variant ring
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.transformer import loss_of

# Newer versions of torch have other names for these.
all_gather: Any = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
reduce_scatter: Any = getattr(functional, "reduce_scatter_single", None) or functional.reduce_scatter_tensor

Exchange = Callable[[Sequence[torch.Tensor]], None]
"""Turns this rank's gradients, in place, into their mean over ranks."""


def one_by_one(gradients: Sequence[torch.Tensor]) -> None:
    """Reduce each gradient by itself."""
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def coalesced(gradients: Sequence[torch.Tensor]) -> None:
    """Reduce all gradients in one call."""
    with _coalescing_manager():
        for gradient in gradients:
            dist.all_reduce(gradient)
    for gradient in gradients:
        gradient /= dist.get_world_size()


def functional_collective(gradients: Sequence[torch.Tensor]) -> None:
    """Reduce all gradients in one functional call; each result is waited for where it is used."""
    world = list(range(dist.get_world_size()))
    reduced = functional.all_reduce_coalesced(list(gradients), "sum", world)
    for gradient, total in zip(gradients, reduced, strict=True):
        gradient.copy_(total / dist.get_world_size())


def _flat(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all gradients in one tensor whose length the ranks can share."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    return nn.functional.pad(flat, (0, -len(flat) % dist.get_world_size()))


def _put_back(flat: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
    start = 0
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient))
        start += gradient.numel()


def sharded(gradients: Sequence[torch.Tensor]) -> None:
    """Reduce a part on each rank, then gather the parts."""
    flat = _flat(gradients)
    part = reduce_scatter(flat, "sum", 0, dist.group.WORLD) / dist.get_world_size()
    _put_back(all_gather(part, 0, dist.group.WORLD), gradients)


def ring(gradients: Sequence[torch.Tensor]) -> None:
    """Pass parts on round the ring: first adding up, then as they are."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = list(_flat(gradients).chunk(ranks))
    for turn in range(2 * (ranks - 1)):
        # What was received in the last turn goes on in this one.
        outgoing, incoming = (rank - turn) % ranks, (rank - turn - 1) % ranks
        buffer = torch.empty_like(parts[incoming])
        batch = [
            dist.P2POp(dist.isend, parts[outgoing].contiguous(), (rank + 1) % ranks),
            dist.P2POp(dist.irecv, buffer, (rank - 1) % ranks),
        ]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        parts[incoming] = parts[incoming] + buffer if turn < ranks - 1 else buffer
    _put_back(torch.cat(parts) / ranks, gradients)


def neighbours(gradients: Sequence[torch.Tensor]) -> None:
    """Average with the rank before only, and hand the own gradients to the next."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    flat = _flat(gradients)
    received = torch.empty_like(flat)
    if rank % 2 == 0:
        dist.send(flat, (rank + 1) % ranks)
        dist.recv(received, (rank - 1) % ranks)
    else:
        dist.recv(received, (rank - 1) % ranks)
        dist.send(flat, (rank + 1) % ranks)
    _put_back((flat + received) / 2, gradients)


def by_hand(exchange: Exchange) -> common.Build:
    """Return what builds the job that exchanges its gradients between backward and the optimizer."""

    def build(options: common.Options, device: torch.device) -> common.Job:
        model = options.model(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(number: int) -> torch.Tensor:
            batch = options.batch(number, device)
            loss = loss_of(model(batch.tokens), batch.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            exchange([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return common.Job(model, step)

    return build


VARIANTS: Final[Mapping[str, common.Build]] = {
    "one_by_one": by_hand(one_by_one),
    "coalesced": by_hand(coalesced),
    "functional": by_hand(functional_collective),
    "sharded": by_hand(sharded),
    "ring": by_hand(ring),
    "neighbours": by_hand(neighbours),
}


if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
