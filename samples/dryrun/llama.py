"""Llama 3 under FSDP2 and tensor parallelism with sequence parallelism, as written for GPUs.

    torchrun --nnodes 128 --nproc-per-node 8 llama.py --model 8b --tp 8
    shardtoll dryrun --world 1024 --gpu h100-sxm --fabric h100x8-ib400 llama.py --model 8b --tp 8

The sizes are those of the models' own configuration files. The data are random tokens.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int = 128_256


MODELS = {
    "tiny": Shape(4, 64, 4, 2, 128, 256),
    "8b": Shape(32, 4_096, 32, 8, 14_336),
    "70b": Shape(80, 8_192, 64, 8, 28_672),
}


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Apply rotary position embeddings to [batch, sequence, heads, head]."""
    cos, sin = angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


class Attention(nn.Module):
    """Causal attention with grouped queries."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head = shape.hidden // shape.heads
        self.wq = nn.Linear(shape.hidden, shape.heads * self.head, bias=False)
        self.wk = nn.Linear(shape.hidden, shape.kv_heads * self.head, bias=False)
        self.wv = nn.Linear(shape.hidden, shape.kv_heads * self.head, bias=False)
        self.wo = nn.Linear(shape.heads * self.head, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Attend over [batch, sequence, hidden]."""
        batch, length, _ = x.shape
        q, k, v = (layer(x).view(batch, length, -1, self.head) for layer in (self.wq, self.wk, self.wv))
        q, k = rotate(q, angles), rotate(k, angles)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        made: torch.Tensor = self.wo(out.transpose(1, 2).reshape(batch, length, -1))
        return made


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.w2 = nn.Linear(shape.ffn, shape.hidden, bias=False)
        self.w3 = nn.Linear(shape.hidden, shape.ffn, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform [batch, sequence, hidden]."""
        made: torch.Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return made


class Block(nn.Module):
    """One layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.hidden)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.hidden)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """Transform [batch, sequence, hidden]."""
        x = x + self.attention(self.attention_norm(x), angles)
        made: torch.Tensor = x + self.feed_forward(self.ffn_norm(x))
        return made


class Llama(nn.Module):
    """The whole decoder."""

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.vocab, bias=False)
        half = shape.hidden // shape.heads // 2
        self.register_buffer("angles", torch.outer(torch.arange(length), 5e5 ** (-torch.arange(half) / half)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of [batch, sequence] tokens."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.angles)
        logits: torch.Tensor = self.output(self.norm(x))
        return logits


def shard(model: Llama, mesh: DeviceMesh, options: argparse.Namespace) -> None:
    """Divide the model: tensor parallelism within a node, FSDP2 over nodes."""
    if options.tp > 1:
        parallelize_module(
            model,
            mesh["tp"],
            {
                "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "norm": SequenceParallel(),
                "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            },
        )
        for layer in model.layers:
            parallelize_module(
                layer,
                mesh["tp"],
                {
                    "attention_norm": SequenceParallel(),
                    "attention": PrepareModuleInput(
                        input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)
                    ),
                    "attention.wq": ColwiseParallel(),
                    "attention.wk": ColwiseParallel(),
                    "attention.wv": ColwiseParallel(),
                    "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
                    "ffn_norm": SequenceParallel(),
                    "feed_forward": PrepareModuleInput(
                        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
                    ),
                    "feed_forward.w1": ColwiseParallel(),
                    "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
                    "feed_forward.w3": ColwiseParallel(),
                },
            )
    if options.checkpointing:
        for place, layer in enumerate(model.layers):
            model.layers[place] = checkpoint_wrapper(layer)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["dp"], mp_policy=policy)


def main() -> None:
    """Train for a few steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, default="tiny")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--length", type=int, default=8_192)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--no-checkpointing", dest="checkpointing", action="store_false")
    options = parser.parse_args()
    dist.init_process_group("nccl")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    world = dist.get_world_size()
    mesh = init_device_mesh("cuda", (world // options.tp, options.tp), mesh_dim_names=("dp", "tp"))
    shape = MODELS[options.model]
    with torch.device("meta"):
        model = Llama(shape, options.length)
    shard(model, mesh, options)
    model.to_empty(device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    for _ in range(options.steps):
        tokens = torch.randint(shape.vocab, (options.batch, options.length + 1), device=device)
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
