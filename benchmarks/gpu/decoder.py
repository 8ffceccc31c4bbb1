"""A decoder as large language models are built, in the sizes that `make gpu` trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a decoder and of its batch."""

    layers: int
    width: int
    heads: int
    vocabulary: int = 50_304
    positions: int = 2_048
    batch: int = 4

    @property
    def parameters(self) -> int:
        """Return how many parameters it has: embedding and head apart, two norms a block and one after."""
        block = 12 * self.width**2 + 13 * self.width
        return self.layers * block + 2 * self.vocabulary * self.width + 2 * self.width

    @property
    def flops_per_token(self) -> float:
        """Return the FLOPs that one token needs in a training step, causal attention counted once.

        6 for each parameter that multiplies (the embedding only looks up), and for attention 12 x layers x
        width x positions, half of which causality leaves (PaLM, arXiv:2204.02311, appendix B).
        """
        matrices = self.layers * 12 * self.width**2 + self.vocabulary * self.width
        return 6.0 * matrices + 6.0 * self.layers * self.width * self.positions


SIZES: Final = {
    "125M": Size(12, 768, 12, batch=8),
    "350M": Size(24, 1_024, 16, batch=8),
    "760M": Size(24, 1_536, 16),
    "1.3B": Size(24, 2_048, 16),
    "2.7B": Size(32, 2_560, 32, batch=2),
    "8B": Size(36, 4_096, 32, batch=1),
}
TINY: Final = Size(2, 64, 2, vocabulary=256, positions=32, batch=2)


class Block(nn.Module):
    """A decoder block: attention and MLP, each with its norm and residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output for (batch, positions, width)."""
        batch, positions, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        split = (batch, positions, self.heads, width // self.heads)
        mixed = nn.functional.scaled_dot_product_attention(
            q.view(split).transpose(1, 2),
            k.view(split).transpose(1, 2),
            v.view(split).transpose(1, 2),
            is_causal=True,
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, positions, width))
        out: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))
        return out


class Decoder(nn.Module):
    """Embedding, blocks, and the logits of the next token."""

    def __init__(self, size: Size, *, recompute: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.norm, self.head = nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary, bias=False)
        self.recompute = recompute

    @classmethod
    def on(cls, device: str, dtype: torch.dtype, size: Size, *, recompute: bool = False) -> Decoder:
        """Return one made on the device in the dtype: by way of float32 the largest would not fit."""
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device):
                return cls(size, recompute=recompute)
        finally:
            torch.set_default_dtype(before)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits for (batch, positions)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


def batch(size: Size, device: str) -> torch.Tensor:
    """Return tokens for one step, one more than positions in each row: the last is only predicted."""
    return torch.randint(size.vocabulary, (size.batch, size.positions + 1), device=device)


def trainer(model: nn.Module, tokens: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return a training step over these tokens, which returns its loss.

    On a card the optimizer is fused: the other kinds hold copies as large as the parameters for a moment.
    """
    fused = tokens.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused, foreach=not fused)

    def step() -> torch.Tensor:
        logits = model(tokens[:, :-1])
        loss: Any = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        detached: torch.Tensor = loss.detach()
        return detached

    return step
