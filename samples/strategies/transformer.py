"""The one small transformer that all strategies train: its sizes, its weights and its batches.

Weights depend on the seed alone, a batch on seed, step and data-parallel rank, so that every strategy
can be held against one device. Linear layers have no bias: the bytes of a block are easy to add up.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, silu


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the transformer is; the default holds about 0.1 M parameters, 400 kB in fp32."""

    layers: int = 2
    dim: int = 64
    heads: int = 8
    hidden: int = 128
    """Width of the feed-forward part."""
    vocab: int = 128
    context: int = 16
    """Tokens of a sequence."""

    @property
    def block_elements(self) -> int:
        """Parameters of one block: four attention and two feed-forward matrices, two norms."""
        return 4 * self.dim * self.dim + 2 * self.dim * self.hidden + 2 * self.dim

    @property
    def rest_elements(self) -> int:
        """Parameters outside the blocks: embedding, last norm, head."""
        return 2 * self.vocab * self.dim + self.dim

    @property
    def elements(self) -> int:
        """All parameters."""
        return self.layers * self.block_elements + self.rest_elements


class Attention(nn.Module):
    """Causal self-attention; the number of heads follows from the width, so it may be sharded by heads."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_dim = sizes.dim // sizes.heads
        self.wq = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.wk = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.wv = nn.Linear(sizes.dim, sizes.dim, bias=False)
        self.wo = nn.Linear(sizes.dim, sizes.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, dim] for the same."""
        batch, tokens, _ = x.shape
        query, key, value = (
            projected.view(batch, tokens, -1, self.head_dim).transpose(1, 2)
            for projected in (self.wq(x), self.wk(x), self.wv(x))
        )
        # By way of its module: context_parallel() of torch puts its own there.
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: torch.Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, tokens, -1))
        return out


class FeedForward(nn.Module):
    """Two matrices with a SiLU between them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.up = nn.Linear(sizes.dim, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, sizes.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, dim] for the same."""
        out: torch.Tensor = self.down(silu(self.up(x)))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(sizes.dim, bias=False)
        self.attention = Attention(sizes)
        self.ffn_norm = nn.LayerNorm(sizes.dim, bias=False)
        self.ffn = FeedForward(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, dim] for the same."""
        x = x + self.attention(self.attention_norm(x))
        out: torch.Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class Transformer(nn.Module):
    """Embedding, blocks, norm, head. A pipeline stage deletes what it does not hold: it is then skipped."""

    positions: torch.Tensor

    def __init__(self, sizes: Sizes, seed: int = 0) -> None:
        super().__init__()
        self.sizes = sizes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed: nn.Embedding | None = nn.Embedding(sizes.vocab, sizes.dim)
            self.blocks = nn.ModuleDict({str(layer): Block(sizes) for layer in range(sizes.layers)})
            self.norm: nn.LayerNorm | None = nn.LayerNorm(sizes.dim, bias=False)
            self.head: nn.Linear | None = nn.Linear(sizes.dim, sizes.vocab, bias=False)
        # A constant table, as rotary frequencies are: a buffer like any other to those who broadcast them.
        self.register_buffer("positions", _positions(sizes), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, tokens, vocab] for tokens [batch, tokens] (a stage: what it makes of it)."""
        if self.embed is not None:
            x = self.embed(x) + self.positions[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None:
            x = self.norm(x)
        if self.head is not None:
            x = self.head(x)
        return x


def _positions(sizes: Sizes) -> torch.Tensor:
    """Return sinusoidal positions [context, dim]."""
    rates = 10_000.0 ** (-torch.arange(0, sizes.dim, 2) / sizes.dim)
    angles = torch.arange(sizes.context).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens and the ones that follow them, both [sequences, tokens]."""

    tokens: torch.Tensor
    targets: torch.Tensor


def make_batch(sizes: Sizes, sequences: int, device: torch.device, *, seed: int = 0, rank: int = 0) -> Batch:
    """Return a batch; `rank` is the data-parallel one: ranks that share a batch pass the same."""
    generator = torch.Generator().manual_seed(1_000 * seed + rank)
    drawn = torch.randint(sizes.vocab, (sequences, sizes.context + 1), generator=generator).to(device)
    return Batch(drawn[:, :-1], drawn[:, 1:])


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy over all tokens."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten())
