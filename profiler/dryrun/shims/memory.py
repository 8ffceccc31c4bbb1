"""torch.cuda's memory and random functions.

No allocator runs here: reserved bytes are answered by the live ones. The forecast says how much an allocator
would reserve, in `analyzers.forecast.dry.memory`.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

import torch
import torch.distributed as dist

from shardtoll.profiler.dryrun.device.devices import is_gpu
from shardtoll.profiler.dryrun.device.stand_ins import Counters, nothing
from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.replaced import Replaced


def replace_memory(shim: Playing, replaced: Replaced) -> None:
    """Have memory functions answer by the storages that live."""
    memory = shim.memory

    def stats(*_: Any) -> dict[str, int]:
        live, peak = memory.live_bytes(), memory.peak_bytes()
        made: dict[str, int] = Counters()
        for kind in ("allocated", "reserved", "active", "requested"):
            made[f"{kind}_bytes.all.current"] = live
            made[f"{kind}_bytes.all.peak"] = peak
        return made

    answers: dict[str, Any] = {
        "memory_allocated": lambda *_, **__: memory.live_bytes(),
        "max_memory_allocated": lambda *_, **__: memory.peak_bytes(),
        "memory_reserved": lambda *_, **__: memory.live_bytes(),
        "max_memory_reserved": lambda *_, **__: memory.peak_bytes(),
        "memory_cached": lambda *_, **__: memory.live_bytes(),
        "max_memory_cached": lambda *_, **__: memory.peak_bytes(),
        "memory_stats": stats,
        "memory_summary": lambda *_, **__: "",
        "memory_snapshot": lambda *_, **__: [],
        "mem_get_info": lambda *_, **__: (
            max(memory.total_bytes - memory.live_bytes(), 0),
            memory.total_bytes,
        ),
        "get_memory_info": lambda *_, **__: (memory.total_bytes, memory.total_bytes),
    }
    nothings = (
        *("empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats"),
        *("reset_max_memory_allocated", "reset_max_memory_cached", "set_per_process_memory_fraction"),
    )
    for owner in (torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None)):
        for name, answer in answers.items():
            if owner is not None:
                replaced.put_where_it_is(owner, name, answer)
        for name in nothings:
            if owner is not None:
                replaced.put_where_it_is(owner, name, nothing)
    replaced.put_where_it_is(torch.cuda.memory, "_set_allocator_settings", memory.set_up)
    replaced.put_where_it_is(torch._C, "_accelerator_setAllocatorSettings", memory.set_up)
    replaced.put_where_it_is(torch.cuda.memory, "_record_memory_history", nothing)
    replaced.put_where_it_is(torch.cuda.memory, "_dump_snapshot", nothing)


def replace_random(_: Playing, replaced: Replaced) -> None:
    """Have random states of the GPU be there."""
    state = torch.zeros(16, dtype=torch.uint8)
    answers: dict[str, Any] = {
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda *_, **__: state.clone(),
        "get_rng_state_all": lambda: [state.clone()],
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
    }
    for owner in (torch.cuda, torch.cuda.random):
        for name, answer in answers.items():
            replaced.put_where_it_is(owner, name, answer)

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            made: Any = super().__new__
            return made(cls, device="cpu" if is_gpu(device) else device)

    replaced.put(torch, "Generator", Generator)
    _tracker(replaced)


def _tracker(replaced: Replaced) -> None:
    """Have DTensor draw random numbers without states to keep in step: there are no numbers to draw."""
    with contextlib.suppress(ImportError):
        from torch.distributed.tensor import _random

        original: Any = _random.OffsetBasedRNGTracker
        if "run_state_sync" not in inspect.signature(original.__init__).parameters:
            # This is an older torch, which makes and keeps it otherwise.
            return

        class Tracker(original):  # type: ignore[misc]
            def __init__(self, device_mesh: Any, run_state_sync: bool = True) -> None:
                super().__init__(device_mesh, run_state_sync=False)
                if run_state_sync:
                    dist.broadcast(torch.zeros(16, dtype=torch.uint8, device=self._device), 0)

            def _distribute_region(self, *_: Any, **__: Any) -> Any:
                return contextlib.nullcontext()

        replaced.put(_random, "OffsetBasedRNGTracker", Tracker)
        # The next program makes one of its own.
        replaced.put(_random, "_rng_tracker", None)
