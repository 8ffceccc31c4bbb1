"""Small transformers, parallelised as torch's documentation recommends, whose reductions tests break."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

Loss = Callable[[nn.Module], torch.Tensor]
VOCABULARY, WIDTH, HEADS, TOKENS, SAMPLES = 16, 8, 4, 4, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # A column-parallel projection leaves this rank's heads.
        parts = (each(x).unflatten(-1, (-1, WIDTH // HEADS)) for each in (self.query, self.key, self.value))
        query, key, value = (part.transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block()])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@dataclass
class Trained:
    """A model, how to run its step, and what one device needs to run the same."""

    model: nn.Module
    reference: nn.Module
    loss: Loss
    step: Callable[[], None]
    other_group: Mapping[Any, Any] = field(default_factory=dict)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return tuple(torch.randint(VOCABULARY, (SAMPLES, TOKENS), generator=generator) for _ in range(2))  # type: ignore[return-value]


def loss_of(module: nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(module(tokens).flatten(0, 1), targets.flatten())


def pair() -> tuple[nn.Module, nn.Module]:
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(Transformer())
        for name, parameter in made[-1].named_parameters():
            if "norm" in name:  # ones and zeros would make two halves of a norm alike
                nn.init.uniform_(parameter.detach(), 0.5, 1.5)
    return made[0], made[1]


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallel, the plan of torch's tutorial."""
    plan = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, plan)
    whole_input = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    for block in model.blocks:
        layers = {
            "norm1": SequenceParallel(),
            "norm2": SequenceParallel(),
            "attention": whole_input,
            **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            "attention.out": RowwiseParallel(output_layouts=Shard(1)),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh, layers)


def other_groups(mesh: DeviceMesh) -> dict[tuple[int, ...], Any]:
    """By a group of one mesh dimension: this rank's group of the other."""
    one, other = mesh.get_group(0), mesh.get_group(1)
    ranks = dist.get_process_group_ranks
    return {tuple(ranks(one)): other, tuple(ranks(other)): one}


def two_dims() -> Trained:
    """FSDP2 over dp x tensor and sequence parallel over tp."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model, reference = pair()
    tensor_parallel(model, mesh["tp"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return Trained(model, reference, *own_share(model, mesh["dp"].get_local_rank(), 2), other_groups(mesh))


def hybrid() -> Trained:
    """FSDP2 that shards within pairs of ranks and replicates over them."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model, reference = pair()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return Trained(model, reference, *own_share(model, dist.get_rank(), 4), other_groups(mesh))


def tensor_parallel_alone() -> Trained:
    """Tensor and sequence parallel over two ranks; the norms' gradients stay Partial."""
    model, reference = pair()
    tensor_parallel(model, init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)))
    return Trained(model, reference, *own_share(model, 0, 1))


def data_parallel() -> Trained:
    """DDP in two buckets, whose reductions pass a hook as users write them."""
    model, reference = pair()
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.002)

    def average(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        dist.all_reduce(bucket.buffer())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer() / dist.get_world_size())
        return done

    # DDP looks at the hook's annotations, and wants classes.
    average.__annotations__.update(bucket=dist.GradBucket, **{"return": torch.futures.Future[torch.Tensor]})
    wrapped.register_comm_hook(None, average)
    half = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][dist.get_rank() // 2]
    return Trained(wrapped, reference, *own_share(wrapped, dist.get_rank(), 4), {(0, 1, 2, 3): half})


def own_share(model: nn.Module, place: int, shares: int) -> tuple[Loss, Callable[[], None]]:
    """Return the global batch's loss of any module, and a step of the model on one of equal shares of it."""
    tokens, targets = data()
    each = SAMPLES // shares
    mine = slice(place * each, (place + 1) * each)

    def step() -> None:
        loss_of(model, tokens[mine], targets[mine]).backward()

    return lambda module: loss_of(module, tokens, targets), step


FAMILIES: dict[str, Callable[[], Trained]] = {
    "2-D": two_dims,
    "HSDP": hybrid,
    "TP": tensor_parallel_alone,
    "DDP": data_parallel,
}
