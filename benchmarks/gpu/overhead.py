"""What an audit adds to a real step on one GPU, beside what other tools add.

One rank, NCCL: a decoder under DDP with an all-reduce of its own beside it. Its kernels are large enough to
keep the device busy, as in training; a group of one rank moves next to nothing, so that what is measured is
the audit.

Blocks of steps take turns: in every repeat each tool runs a block, timed from an idle device to an idle
device, which includes all that a tool leaves to the device. Sessions are opened and closed outside the timed
blocks. `ratio` is the median of the paired ratios to the bare block of the same repeat. Watching, which adds
least, has short blocks in many pairs with bare ones: the host's pace drifts by more in a few seconds. The
kernels of a step are compared by name and order, stream by stream, bare against watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from harness import Spread
from torch import nn
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel

from gpu.decoder import TINY, Decoder, Size, batch, trainer
from gpu.place import Place, one_rank, part
from gpu.sheet import Sheet
from shardtoll.profiler import audit

LEVELS: Final = ("watch", "survey", "schedule")
WATCH_AIM: Final = 1.01
WARM_STEPS: Final = 3
REAL: Final = Size(12, 1_024, 16, vocabulary=32_000, positions=1_024, batch=8)
STEPS, REPEATS = 60, 3
"""Steps of a block, and blocks of each tool: 9 minutes are all there is for all parts."""
PAIR_STEPS, PAIRS = 12, 36
"""The same for watching and bare steps alone."""
PAIR_WARM_STEPS: Final = 12
"""A third of a second: what a session does at its beginning only, as rows after each step, is over then."""

_CommDebugMode: Any = CommDebugMode  # torch leaves its constructor untyped


def _audit(model: nn.Module, level: str) -> Any:
    options: dict[str, Any] = {"level": level}
    return audit(model, **options)


def _audited_s(
    place: Place,
    model: nn.Module,
    step: Callable[[], Any],
    level: str,
    steps: int,
    warm_steps: int = WARM_STEPS,
) -> float:
    with _audit(model, level) as session:

        def one() -> None:
            with session.step():
                step()

        # The schedule surveys the first and the third step: a block is of a long run, not of its beginning.
        for _ in range(warm_steps):
            one()
        return place.block_s(one, steps)


def _counted_s(place: Place, step: Callable[[], Any], steps: int) -> float:
    def one() -> None:
        with _CommDebugMode():
            step()

    return place.block_s(one, steps)


def _profiled_s(place: Place, step: Callable[[], Any], steps: int) -> float:
    with torch.profiler.profile(activities=place.activities):
        return place.block_s(step, steps)


def kernels(place: Place, step: Callable[[], Any], around: Callable[[], Any]) -> list[list[str]]:
    """Return the names of what the device ran in one step, in order, a list for each stream."""
    with around(), torch.profiler.profile(activities=place.activities) as profiler:
        step()
        place.synchronize()
    recording: Any = profiler.profiler
    events = [event for event in recording.kineto_results.events() if _on_device(event)]
    streams: dict[int, list[str]] = {}
    for event in sorted(events, key=lambda event: int(event.start_ns())):
        streams.setdefault(event.device_resource_id(), []).append(event.name())
    return sorted(streams.values(), key=lambda names: (len(names), names))


def _on_device(event: Any) -> bool:
    # Annotations of the program are drawn on the device's time line too, as are its waits.
    annotation = getattr(event, "is_user_annotation", lambda: False)()
    synchronises = event.name().endswith((" Sync", "Synchronize"))
    return str(event.device_type()).endswith("CUDA") and not annotation and not synchronises


def _compare_kernels(sheet: Sheet, place: Place, model: nn.Module, step: Callable[[], Any]) -> None:
    bare = kernels(place, step, contextlib.nullcontext)
    with _audit(model, "watch") as session:
        watched = kernels(place, step, session.step)
    sheet.figure("kernels_per_step", sum(map(len, bare)))
    sheet.check("a watched step runs the bare step's kernels", watched == bare, True)


def measure(sheet: Sheet, place: Place, _out: Path) -> None:
    """Measure each tool's blocks in turn."""
    size = TINY if place.rehearses else REAL
    steps, repeats = (2, 2) if place.rehearses else (STEPS, REPEATS)
    pair_steps, pairs = (2, 2) if place.rehearses else (PAIR_STEPS, PAIRS)
    with one_rank(place):
        torch.manual_seed(0)
        decoder = Decoder(size).to(place.device, place.dtype)
        model = DistributedDataParallel(decoder, gradient_as_bucket_view=True)
        train = trainer(model, batch(size, place.device))
        shared = torch.ones(1 << 20, device=place.device)

        def step() -> None:
            train()
            dist.all_reduce(shared)

        for _ in range(WARM_STEPS):
            step()
        few = max(1, steps // 6)
        paired: dict[str, Callable[[], float]] = {
            "bare": lambda: place.block_s(step, pair_steps),
            "watch": lambda: _audited_s(place, model, step, "watch", pair_steps, PAIR_WARM_STEPS),
        }
        tools: dict[str, Callable[[], float]] = {
            "bare": lambda: place.block_s(step, steps),
            "survey": lambda: _audited_s(place, model, step, "survey", few),
            "schedule": lambda: _audited_s(place, model, step, "schedule", steps),
            "comm_debug_mode": lambda: _counted_s(place, step, few),
            "torch_profiler": lambda: _profiled_s(place, step, few),
        }
        _compare_kernels(sheet, place, model, step)
        _ratios(sheet, _taken(paired, pairs))
        taken = _taken(tools, repeats)
        sheet.figure("bare_ms", Spread.of(taken["bare"]).median * 1e3)
        _ratios(sheet, taken)
        if not place.rehearses:
            watched = sheet.figures["watch.ratio"]
            sheet.check("watching adds at most 1 %", watched, WATCH_AIM, ok=watched <= WATCH_AIM)


def _ratios(sheet: Sheet, taken: dict[str, list[float]]) -> None:
    """Record each tool's ratio to the bare blocks."""
    for name in list(taken)[1:]:
        ratios = [one / bare for one, bare in zip(taken[name], taken["bare"], strict=True)]
        spread = Spread.of(ratios)
        sheet.figure(f"{name}.ratio", spread.median)
        sheet.figure(f"{name}.ratio_q1", spread.low)
        sheet.figure(f"{name}.ratio_q3", spread.high)
        print(f"{name:16} {spread.median:.4f} ({spread.low:.4f} to {spread.high:.4f}) of the bare step")


def _taken(tools: dict[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Return the seconds of each tool's blocks; each repeat begins with another tool."""
    taken: dict[str, list[float]] = {name: [] for name in tools}
    names = list(tools)
    for repeat in range(repeats):
        first = repeat % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(tools[name]())
    return taken


if __name__ == "__main__":
    part("overhead", measure, __doc__ or "")
