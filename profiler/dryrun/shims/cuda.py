"""torch.cuda and torch.accelerator as a program on the chosen GPU would see them."""

from __future__ import annotations

import contextlib
import linecache
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from shardtoll.profiler.dryrun.device.stand_ins import Passing, nothing
from shardtoll.profiler.dryrun.device.timeline import DryEvent, DryStream, DryStreamContext
from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.replaced import Replaced


def replace_cuda(shim: Playing, replaced: Replaced) -> None:
    """Have torch.cuda answer for the chosen GPU."""
    cuda: Any = torch.cuda
    timeline, gpu = shim.timeline, shim.machine
    local = shim.tensors.gpu.index

    class Stream(DryStream):
        def __init__(self, _: Any = None, priority: int = 0, **__: Any) -> None:
            super().__init__(timeline, timeline.name(_wish(sys._getframe(1))), priority)

    class Event(DryEvent):
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(timeline)

    properties = SimpleNamespace(
        name=gpu.device,
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.multiprocessors,
        major=gpu.capability[0],
        minor=gpu.capability[1],
        gcnArchName="",
        warp_size=32,
        is_integrated=False,
        is_multi_gpu_board=False,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block_optin=232448,
        uuid="dry",
    )
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        # Only what torch itself made would be; the audit asks it whether devices are to be timed.
        "is_initialized": lambda: False,
        "_is_compiled": lambda: True,
        "init": nothing,
        "_lazy_init": nothing,
        "_lazy_call": nothing,
        "device_count": lambda: shim.world.local_size,
        "current_device": lambda: local,
        "set_device": nothing,
        "get_device_name": lambda *_, **__: gpu.device,
        "get_device_capability": lambda *_, **__: gpu.capability,
        "get_device_properties": lambda *_, **__: properties,
        "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
        "is_bf16_supported": lambda *_, **__: gpu.capability[0] >= 8,
        "is_tf32_supported": lambda: gpu.capability[0] >= 8,
        "can_device_access_peer": lambda *_: True,
        "synchronize": lambda *_, **__: timeline.wait(None, "", timeline.order),
        "current_stream": lambda *_, **__: timeline.current,
        "default_stream": lambda *_, **__: timeline.default,
        "set_stream": partial(_set_stream, shim),
        "stream": lambda stream: DryStreamContext(timeline, stream),
        "StreamContext": lambda stream: DryStreamContext(timeline, stream),
        "Stream": Stream,
        "Event": Event,
        "device": Passing,
        "device_of": Passing,
        "ipc_collect": nothing,
        "_sleep": nothing,
        "utilization": lambda *_, **__: 100,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": nothing,
        "_check_capability": nothing,
        "is_current_stream_capturing": lambda: False,
    }
    for name, answer in answers.items():
        replaced.put_where_it_is(cuda, name, answer)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        replaced.put_where_it_is(cuda.nvtx, name, nothing)
    replaced.put_where_it_is(cuda.nvtx, "range", lambda *_, **__: contextlib.nullcontext())
    replaced.put(torch.version, "cuda", "12.8")
    replaced.put_where_it_is(torch.backends.cuda, "is_built", lambda: True)
    replaced.put_where_it_is(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    replaced.put_where_it_is(torch, "Stream", Stream)
    replaced.put_where_it_is(torch, "Event", Event)


def _set_stream(shim: Playing, stream: DryStream) -> None:
    shim.timeline.current = stream


def replace_accelerator(shim: Playing, replaced: Replaced) -> None:
    """Have torch.accelerator answer as torch.cuda does."""
    owner: Any = getattr(torch, "accelerator", None)
    if owner is None:
        return
    cuda: Any = torch.cuda
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: shim.world.local_size,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": lambda: shim.tensors.gpu.index,
        "current_device_idx": lambda: shim.tensors.gpu.index,
        "set_device_index": nothing,
        "set_device_idx": nothing,
        "current_stream": lambda *_, **__: shim.timeline.current,
        "set_stream": partial(_set_stream, shim),
        "synchronize": cuda.synchronize,
        "device_index": Passing,
    }
    for name, answer in answers.items():
        replaced.put_where_it_is(owner, name, answer)
    for name in ("_get_accelerator", "_accelerator_getAccelerator"):
        # FSDP2 makes its own mesh of what this says.
        replaced.put_where_it_is(torch._C, name, lambda *_: torch.device("cuda"))


def _wish(frame: Any) -> str:
    """Return a stream's name where it is made: `self.all_gather_stream = Stream()`."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    name = line.partition("=")[0].strip().rpartition(".")[2]
    return name.removesuffix("_stream") if name.isidentifier() else "stream"
