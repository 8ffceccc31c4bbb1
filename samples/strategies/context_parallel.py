"""Context parallelism: every rank holds a part of each sequence, and attention needs all of it.

Outside of attention tokens do not know of each other, so only attention communicates, in one of three ways,
on the mesh dimension `cp`. With A = 4 x sequences x tokens x dim bytes of a rank's own activations, and n
ranks, a layer issues

    variant   forward                              backward
    ulysses   all_to_all of 3 A, all_to_all of A   all_to_all of A, all_to_all of 3 A
    gather    all_gather of 2 n A                  reduce_scatter of 2 n A
    ring      all_gather of 2 n A, or, after set_rotate_method("alltoall"), n - 1 all_to_all of 2 A

and the step one all_reduce of all gradients (DDP over the same ranks: each has seen other tokens).

ulysses: queries, keys and values change places: before, a rank has some tokens of all heads, after, all
tokens of some heads. Bytes do not grow with n; the heads must be divisible by it.
gather: every rank fetches all keys and values and keeps its queries. Bytes grow with n; any number of heads.
ring: `context_parallel` of torch, for accelerators: keys and values come round, a rank merges what it saw.

Two limits of torch 2.13. `context_parallel` has no attention for the CPU; it raises NotImplementedError:
"Operator aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy
registered." And it works by replacing `scaled_dot_product_attention` in `torch.nn.functional`: a program that
has imported the function by its name goes on calling the old one, and attends to its own tokens alone without
an error. The bill shows it: nothing is issued on `cp` but the gradients' all_reduce.

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.context_parallel --variant ulysses
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from shardtoll.samples.strategies import common
from shardtoll.samples.strategies.transformer import Attention, Block, Sizes, Transformer, loss_of

# Newer versions of torch call the first by the second name.
all_gather: Final = getattr(functional, "all_gather_single_autograd", functional.all_gather_tensor_autograd)


class Shared(Attention):
    """Attention over sequences that lie in parts on the ranks of a mesh."""

    def __init__(self, sizes: Sizes, mesh: DeviceMesh) -> None:
        super().__init__(sizes)
        self.mesh = mesh

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        """Return queries, keys and values of the own tokens: [3, batch, heads, tokens, head_dim]."""
        batch, tokens, _ = x.shape
        projected = torch.stack([self.wq(x), self.wk(x), self.wv(x)])
        return projected.view(3, batch, tokens, -1, self.head_dim).transpose(2, 3)

    def merged(self, mixed: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, dim] of [batch, heads, tokens, head_dim]."""
        out: torch.Tensor = self.wo(mixed.transpose(1, 2).flatten(2))
        return out


class Ulysses(Shared):
    """All tokens of some heads, in exchange for some tokens of all heads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, own tokens, dim] for the same."""
        ranks = self.mesh.size()
        # [3, batch, heads, own tokens, head_dim] -> [own heads, tokens, 3, batch, head_dim], as asked
        query, key, value = self._turn(self.heads(x).permute(2, 3, 0, 1, 4), ranks).permute(2, 3, 0, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        # [batch, own heads, tokens, head_dim] -> [tokens, heads, batch, head_dim], tokens now the own ones.
        back = self._turn(mixed.permute(2, 1, 0, 3), ranks)
        return self.merged(back.permute(2, 1, 0, 3))

    def _turn(self, x: torch.Tensor, ranks: int) -> torch.Tensor:
        """Share out the first dimension among the ranks, and join up the second."""
        parts = x.reshape(ranks, -1, *x.shape[1:]).contiguous()  # torch 2.11 sends nothing else
        got = functional.all_to_all_single_autograd(parts, None, None, self.mesh)
        return got.transpose(0, 1).flatten(1, 2)


class Gathered(Shared):
    """The own queries, everybody's keys and values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, own tokens, dim] for the same."""
        query, *rest = self.heads(x)
        key, value = all_gather(torch.stack(rest), 3, self.mesh)
        own, seen = query.shape[2], key.shape[2]
        place = self.mesh.get_local_rank() * own + torch.arange(own, device=x.device)
        allowed = place.unsqueeze(1) >= torch.arange(seen, device=x.device)
        return self.merged(scaled_dot_product_attention(query, key, value, attn_mask=allowed))


def over_ranks(model: Transformer, mesh: DeviceMesh) -> DistributedDataParallel:
    """Have gradients reduced; every rank keeps the positions of its own tokens."""
    ignore: Any = DistributedDataParallel._set_params_and_buffers_to_ignore_for_model
    ignore(model, ["positions"])
    return DistributedDataParallel(model, process_group=mesh.get_group("cp"))


def by_hand(kind: type[Shared]) -> common.Build:
    """Return what builds the job of an attention that exchanges what it needs itself."""

    def build(options: common.Options, device: torch.device) -> common.Job:
        mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("cp",))
        model = options.model(device)
        for block in model.blocks.values():
            attention = kind(options.sizes, mesh).to(device)
            assert isinstance(block, Block)
            attention.load_state_dict(block.attention.state_dict())
            block.attention = attention
        each = options.sizes.context // mesh.size()
        own = slice(mesh.get_local_rank() * each, (mesh.get_local_rank() + 1) * each)
        model.positions = model.positions[own].clone()
        shared = over_ranks(model, mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(number: int) -> torch.Tensor:
            batch = options.batch(number, device, rank=0)
            loss = loss_of(shared(batch.tokens[:, own]), batch.targets[:, own].contiguous())
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return common.Job(shared, step)

    return build


def ring(options: common.Options, device: torch.device) -> common.Job:
    """Return the job that leaves the exchange to torch, which wants an accelerator."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("cp",))
    model = options.model(device)
    shared = over_ranks(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> torch.Tensor:
        batch = options.batch(number, device, rank=0)
        tokens, targets = batch.tokens.contiguous(), batch.targets.contiguous()
        # Inside, each of these holds this rank's own tokens.
        with context_parallel(mesh, buffers=[tokens, targets, model.positions], buffer_seq_dims=[1, 1, 0]):
            loss = loss_of(shared(tokens), targets)
            loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return common.Job(shared, step)


VARIANTS: Final[Mapping[str, common.Build]] = {
    "ulysses": by_hand(Ulysses),
    "gather": by_hand(Gathered),
    "ring": ring,
}


if __name__ == "__main__":
    common.main(__doc__, VARIANTS)
