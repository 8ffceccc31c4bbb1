"""What an audit adds to a real step on a GPU: a bf16 transformer, bare, watched, surveyed, by the schedule.

One GPU, one rank, NCCL: a decoder under DDP with an all-reduce of its own beside it. Its kernels are large
enough to keep the device busy, as in training; a group of one rank moves next to nothing, so that what is
measured is the audit.

Blocks of steps take turns: in every repeat each kind runs a block, and a block is timed from an idle device
to an idle device, which includes all that an audit leaves to the device. Sessions are opened and closed
outside the timed blocks. `ratio` is the median of the paired ratios to the bare block of the same repeat.
The kernels of a step are compared by name and order, stream by stream, bare against watched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from harness import Result, Spread, main
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardtoll.profiler import audit

LEVELS: Final = ("watch", "survey", "schedule")
AIMS: Final = {"watch.ratio": 1.01, "watch.kernels_differing": 0.0}
WARM_STEPS: Final = 3
_cuda: Any = torch.cuda  # torch leaves parts of it untyped


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

    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits for (batch, positions)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(self.norm(x))
        return out


def _program(arguments: argparse.Namespace) -> tuple[nn.Module, Callable[[], None]]:
    torch.manual_seed(0)
    decoder = Decoder(arguments.vocabulary, arguments.width, arguments.width // 64, arguments.layers)
    model = DistributedDataParallel(decoder.to("cuda", torch.bfloat16), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    shape = (arguments.batch, arguments.positions + 1)
    tokens = torch.randint(arguments.vocabulary, shape, device="cuda")
    shared = torch.ones(1 << 20, device="cuda")

    def step() -> None:
        logits = model(tokens[:, :-1])
        loss: Any = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(shared)

    return model, step


def _audit(model: nn.Module, level: str) -> Any:
    options: dict[str, Any] = {"level": level}
    return audit(model, **options)


def _block_s(work: Callable[[], None], steps: int) -> float:
    """Return the seconds a step of a block takes, from an idle device to an idle device."""
    _cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        work()
    _cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def _audited_s(model: nn.Module, step: Callable[[], None], level: str, steps: int) -> float:
    with _audit(model, level) as session:

        def one() -> None:
            with session.step():
                step()

        # The schedule surveys the first and the third step: a block is of a long run, not of its beginning.
        for _ in range(WARM_STEPS):
            one()
        return _block_s(one, steps)


def _kernels(step: Callable[[], None], around: Callable[[], Any]) -> list[list[str]]:
    """Return the names of what the device ran in one step, in order, a list for each stream."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with around(), torch.profiler.profile(activities=activities) as profiler:
        step()
        _cuda.synchronize()
    recording: Any = profiler.profiler
    events = [event for event in recording.kineto_results.events() if _on_device(event)]
    streams: dict[int, list[str]] = {}
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        streams.setdefault(event.device_resource_id(), []).append(event.name())
    return sorted(streams.values(), key=lambda names: (len(names), names))


def _on_device(event: Any) -> bool:
    # Annotations of the program are drawn on the device's time line too.
    annotation = getattr(event, "is_user_annotation", lambda: False)()
    return str(event.device_type()).endswith("CUDA") and not annotation


def _differing(model: nn.Module, step: Callable[[], None]) -> tuple[int, int]:
    """Return the kernels of a bare step, and in how many places a watched step's differ."""
    bare = _kernels(step, contextlib.nullcontext)
    with _audit(model, "watch") as session:
        watched = _kernels(step, session.step)
    pairs = sum(
        one != other
        for mine, theirs in zip(bare, watched, strict=False)
        for one, other in zip(mine, theirs, strict=False)
    )
    lengths = abs(sum(map(len, bare)) - sum(map(len, watched)))
    return sum(map(len, bare)), pairs + lengths + abs(len(bare) - len(watched))


def measure(arguments: argparse.Namespace) -> Result:
    """Measure on this machine's GPU; without one every figure is unknown."""
    aims = dict(AIMS)
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing is measured")
        return Result(dict.fromkeys(aims), aims)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.setdefault("NCCL_DEBUG", "ERROR")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    model, step = _program(arguments)
    for _ in range(WARM_STEPS):
        step()
    samples: dict[str, list[float]] = {"bare": [], **{level: [] for level in LEVELS}}
    names = list(samples)
    for repeat in range(arguments.repeats):
        for name in names[repeat % 4 :] + names[: repeat % 4]:
            if name == "bare":
                samples[name].append(_block_s(step, arguments.steps))
            else:
                samples[name].append(_audited_s(model, step, name, arguments.steps))
    figures: dict[str, float | None] = {"bare_ms": Spread.of(samples["bare"]).median * 1e3}
    for level in LEVELS:
        ratios = [one / bare for one, bare in zip(samples[level], samples["bare"], strict=True)]
        spread = Spread.of(ratios)
        figures[f"{level}.ratio"] = spread.median
        figures[f"{level}.ratio_q1"], figures[f"{level}.ratio_q3"] = spread.low, spread.high
        print(f"{level:9} {spread.median:.4f} ({spread.low:.4f} to {spread.high:.4f}) of the bare step")
    count, differing = _differing(model, step)
    figures["kernels_per_step"], figures["watch.kernels_differing"] = float(count), float(differing)
    print(f"bare step {figures['bare_ms']:.2f} ms, {count} kernels; {differing} differ when watched")
    dist.destroy_process_group()
    return Result(figures, aims)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=15, help="at least 15 for figures worth quoting")
    parser.add_argument("--steps", type=int, default=100, help="steps of a block; 100 hold one surveyed one")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--positions", type=int, default=1024)
    parser.add_argument("--width", type=int, default=1024, help="a multiple of 64")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocabulary", type=int, default=32_000)


if __name__ == "__main__":
    main(measure, about=__doc__ or "", options=_options)
