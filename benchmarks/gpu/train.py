"""Train one model of `models` for three steps: what `foreseen` runs dry. `SIZE VARIANT DTYPE`, on `cuda`."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gpu.decoder import SIZES, TINY, Decoder, batch, trainer


def main(name: str, variant: str, dtype: str) -> None:
    """Train as `models` does."""
    size = {**SIZES, "tiny": TINY}[name]
    torch.manual_seed(0)
    model: Any = Decoder.on("cuda", getattr(torch, dtype), size, recompute=variant == "recompute")
    if variant == "compile":
        model = torch.compile(model)
    step = trainer(model, batch(size, "cuda"))
    for _ in range(3):
        step()


if __name__ == "__main__":
    main(*sys.argv[1:4])
