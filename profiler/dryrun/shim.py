"""Everything of torch that a dry run replaces while it lasts: CUDA, process groups, DDP, the compiler, files."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from shardtoll.profiler.dryrun.devices import DeviceMode, Tensors, is_gpu
from shardtoll.profiler.dryrun.machine import Gpu
from shardtoll.profiler.dryrun.reducer import DryFuture, DryLogger, DryReducer, register_hook
from shardtoll.profiler.dryrun.replaced import Replaced
from shardtoll.profiler.dryrun.timeline import DryEvent, DryStream, DryStreamContext, Timeline

_GROUP_MODULES: Final = (
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.distributed.device_mesh",
)

_ISSUING: Final = (
    *("allreduce", "allreduce_coalesced", "allgather", "allgather_coalesced", "_allgather_base"),
    *("allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base", "broadcast", "reduce"),
    *("reduce_scatter_tensor_coalesced", "gather", "scatter", "alltoall", "alltoall_base", "send", "recv"),
    *("recv_anysource", "barrier"),
)
"""Methods of a process group that return a Work."""


@dataclass(frozen=True, slots=True)
class World:
    """Which rank of which job this process plays."""

    size: int
    rank: int
    per_host: int

    @property
    def local_rank(self) -> int:
        """Place among the ranks of its host."""
        return self.rank % self.per_host

    @property
    def local_size(self) -> int:
        """Ranks of its host."""
        return min(self.per_host, self.size)

    def variables(self) -> dict[str, str]:
        """Return what torchrun tells each process."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_size),
            "GROUP_RANK": str(self.rank // self.per_host),
            "GROUP_WORLD_SIZE": str(-(-self.size // self.per_host)),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "dry",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        }


class Memory:
    """What torch.cuda's memory functions answer: set by what records storages."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.live_bytes: Callable[[], int] = lambda: 0
        self.peak_bytes: Callable[[], int] = lambda: 0


class Shim:
    """Replaces all of it on `install`, and puts it back on `remove`."""

    def __init__(
        self, world: World, gpu: Gpu, tensors: Tensors, mode: DeviceMode, timeline: Timeline, memory: Memory
    ) -> None:
        self.world = world
        self.gpu = gpu
        self.tensors = tensors
        self.mode = mode
        self.timeline = timeline
        self.memory = memory
        self.last_sent: Any = None
        """Tensors of the last collective, which its future holds."""
        self.work_waited: Callable[[Any], None] = lambda _: None
        self.work_handed: Callable[[Any], None] = lambda _: None
        self.resized: Callable[[Any, int], None] = lambda *_: None
        self.fused_regions = 0
        self.region: int | None = None
        """Number of the region that torch.compile would fuse and that runs now; None outside all."""
        self.skipped_files: list[str] = []
        """What was not saved or loaded, one line each."""
        self._replaced = Replaced()

    def install(self) -> None:
        """Replace everything; `remove` must follow, also where this raises."""
        replaced = self._replaced
        replaced.environment(self.world.variables())
        self._cuda(replaced)
        self._accelerator(replaced)
        self._memory(replaced)
        self._random(replaced)
        self._autocast(replaced)
        self._groups(replaced)
        self._modules(replaced)
        self._compiler(replaced)
        self._storage(replaced)
        self._loader(replaced)
        self._files(replaced)
        optimizers: Any = sys.modules["torch.optim.optimizer"]
        replaced.put(
            optimizers, "_foreach_supported_types", [*optimizers._foreach_supported_types, FakeTensor]
        )
        checkpoint: Any = sys.modules["torch.utils.checkpoint"]
        checks = {**checkpoint._allowed_determinism_checks_to_fns, "default": _shape_and_dtype}
        replaced.put(checkpoint, "_allowed_determinism_checks_to_fns", checks)
        engine: Any = sys.modules["torch.autograd.graph"]
        original = engine._engine_run_backward
        for owner in (engine, torch.autograd):
            if getattr(owner, "_engine_run_backward", None) is original:
                replaced.put(owner, "_engine_run_backward", self.mode.around_engine(original))
        self.mode.__enter__()

    def remove(self) -> None:
        """Put everything back."""
        with contextlib.suppress(AssertionError, RuntimeError, IndexError):
            self.mode.__exit__(None, None, None)
        self._replaced.restore()

    # -- devices -------------------------------------------------------------------------------------

    def _cuda(self, replaced: Replaced) -> None:
        cuda: Any = torch.cuda
        timeline, gpu = self.timeline, self.gpu
        local = self.tensors.gpu.index

        class Stream(DryStream):
            def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
                super().__init__(timeline, timeline.name(_wish(sys._getframe(1))), priority)

        class Event(DryEvent):
            def __init__(self, *_: Any, **__: Any) -> None:
                super().__init__(timeline)

        properties = SimpleNamespace(
            name=gpu.name,
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
            "init": _nothing,
            "_lazy_init": _nothing,
            "_lazy_call": lambda call, **_: None,
            "device_count": lambda: self.world.local_size,
            "current_device": lambda: local,
            "set_device": _nothing,
            "get_device_name": lambda device=None: gpu.name,
            "get_device_capability": lambda device=None: gpu.capability,
            "get_device_properties": lambda device=None: properties,
            "get_arch_list": lambda: [f"sm_{gpu.capability[0]}{gpu.capability[1]}"],
            "is_bf16_supported": lambda including_emulation=True: gpu.capability[0] >= 8,
            "is_tf32_supported": lambda: gpu.capability[0] >= 8,
            "can_device_access_peer": lambda *_: True,
            "synchronize": lambda device=None: timeline.wait(None, "", timeline.order),
            "current_stream": lambda device=None: timeline.current,
            "default_stream": lambda device=None: timeline.default,
            "set_stream": self._set_stream,
            "stream": lambda stream: DryStreamContext(timeline, stream),
            "StreamContext": lambda stream: DryStreamContext(timeline, stream),
            "Stream": Stream,
            "Event": Event,
            "device": _Passing,
            "device_of": _Passing,
            "ipc_collect": _nothing,
            "_sleep": _nothing,
            "utilization": lambda device=None: 100,
            "get_sync_debug_mode": lambda: 0,
            "set_sync_debug_mode": _nothing,
            "_check_capability": _nothing,
            "is_current_stream_capturing": lambda: False,
        }
        for name, answer in answers.items():
            replaced.put_where_it_is(cuda, name, answer)
        for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
            replaced.put_where_it_is(cuda.nvtx, name, _nothing)
        replaced.put_where_it_is(cuda.nvtx, "range", lambda *_, **__: contextlib.nullcontext())
        fake_device: Any = vars(FakeTensor)["device"].fget
        replaced.put(
            FakeTensor,
            "device",
            property(lambda tensor: self.tensors.device_of(tensor, fake_device(tensor))),
        )
        replaced.put(torch, "device", _Device)
        # torch itself takes only streams of its own types.
        replaced.put(
            torch.Tensor,
            "record_stream",
            lambda tensor, stream: self.mode.values.record_stream(tensor, stream),
        )
        replaced.put(torch.version, "cuda", "12.8")
        replaced.put_where_it_is(torch.backends.cuda, "is_built", lambda: True)
        replaced.put_where_it_is(torch.backends.cuda, "is_flash_attention_available", lambda: True)
        replaced.put_where_it_is(torch, "Stream", Stream)
        replaced.put_where_it_is(torch, "Event", Event)

    def _set_stream(self, stream: DryStream) -> None:
        self.timeline.current = stream

    def _accelerator(self, replaced: Replaced) -> None:
        owner: Any = getattr(torch, "accelerator", None)
        if owner is None:
            return
        cuda: Any = torch.cuda
        answers: dict[str, Any] = {
            "is_available": lambda: True,
            "device_count": lambda: self.world.local_size,
            "current_accelerator": lambda check_available=False: torch.device("cuda"),
            "current_device_index": lambda: self.tensors.gpu.index,
            "current_device_idx": lambda: self.tensors.gpu.index,
            "set_device_index": _nothing,
            "set_device_idx": _nothing,
            "current_stream": lambda device=None: self.timeline.current,
            "set_stream": self._set_stream,
            "synchronize": cuda.synchronize,
            "device_index": _Passing,
        }
        for name, answer in answers.items():
            replaced.put_where_it_is(owner, name, answer)

    def _memory(self, replaced: Replaced) -> None:
        memory = self.memory

        def stats(device: Any = None) -> dict[str, int]:
            live, peak = memory.live_bytes(), memory.peak_bytes()
            made: dict[str, int] = _Counters()
            for kind in ("allocated", "reserved", "active", "requested"):
                made[f"{kind}_bytes.all.current"] = live
                made[f"{kind}_bytes.all.peak"] = peak
            return made

        answers: dict[str, Any] = {
            "memory_allocated": lambda device=None: memory.live_bytes(),
            "max_memory_allocated": lambda device=None: memory.peak_bytes(),
            "memory_reserved": lambda device=None: memory.live_bytes(),
            "max_memory_reserved": lambda device=None: memory.peak_bytes(),
            "memory_cached": lambda device=None: memory.live_bytes(),
            "max_memory_cached": lambda device=None: memory.peak_bytes(),
            "memory_stats": stats,
            "memory_summary": lambda *_, **__: "",
            "memory_snapshot": lambda *_, **__: [],
            "mem_get_info": lambda device=None: (
                max(memory.total_bytes - memory.live_bytes(), 0),
                memory.total_bytes,
            ),
            "get_memory_info": lambda device=None: (memory.total_bytes, memory.total_bytes),
        }
        nothings = ("empty_cache", "reset_peak_memory_stats", "reset_accumulated_memory_stats")
        nothings += (
            "reset_max_memory_allocated",
            "reset_max_memory_cached",
            "set_per_process_memory_fraction",
        )
        for owner in (torch.cuda, torch.cuda.memory, getattr(torch, "accelerator", None)):
            for name, answer in answers.items():
                if owner is not None:
                    replaced.put_where_it_is(owner, name, answer)
            for name in nothings:
                if owner is not None:
                    replaced.put_where_it_is(owner, name, _nothing)
        replaced.put_where_it_is(torch.cuda.memory, "_record_memory_history", _nothing)
        replaced.put_where_it_is(torch.cuda.memory, "_dump_snapshot", _nothing)

    def _random(self, replaced: Replaced) -> None:
        state = torch.zeros(16, dtype=torch.uint8)
        answers: dict[str, Any] = {
            "manual_seed": _nothing,
            "manual_seed_all": _nothing,
            "seed": _nothing,
            "seed_all": _nothing,
            "initial_seed": lambda: 0,
            "get_rng_state": lambda device="cuda": state.clone(),
            "get_rng_state_all": lambda: [state.clone()],
            "set_rng_state": _nothing,
            "set_rng_state_all": _nothing,
        }
        for owner in (torch.cuda, torch.cuda.random):
            for name, answer in answers.items():
                replaced.put_where_it_is(owner, name, answer)

        class Generator(torch.Generator):
            def __new__(cls, device: Any = "cpu") -> Any:
                return super().__new__(cls, device="cpu" if is_gpu(device) else device)

        replaced.put(torch, "Generator", Generator)

    def _autocast(self, replaced: Replaced) -> None:
        owner: Any = torch.amp.autocast_mode.autocast
        original = owner.__init__

        def __init__(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
            if is_gpu(device_type):
                dtype = kwargs.get("dtype", args[0] if args else None)
                if dtype is None:
                    # CUDA's default; the CPU's is bfloat16.
                    kwargs["dtype"], args = torch.float16, ()
                device_type = "cpu"
            original(self, device_type, *args, **kwargs)

        replaced.put(owner, "__init__", __init__)
        for name in (
            "is_autocast_enabled",
            "get_autocast_dtype",
            "set_autocast_enabled",
            "set_autocast_dtype",
        ):
            replaced.put_where_it_is(torch, name, _on_cpu(getattr(torch, name)))
        replaced.put_where_it_is(torch, "get_autocast_gpu_dtype", lambda: torch.get_autocast_dtype("cpu"))

    # -- process groups and DDP ----------------------------------------------------------------------

    def _groups(self, replaced: Replaced) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        world = self.world
        c10d: Any = dist.distributed_c10d
        original = c10d.init_process_group

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            timeout = kwargs.get("timeout")
            original(
                "fake",
                rank=world.rank,
                world_size=world.size,
                store=FakeStore(),
                **({} if timeout is None else {"timeout": timeout}),
            )

        for name in _GROUP_MODULES:
            owner = sys.modules[name]
            if getattr(owner, "init_process_group", None) is original:
                replaced.put(owner, "init_process_group", init_process_group)
        new_group = c10d._new_group_with_tag

        @functools.wraps(new_group)
        def _new_group_with_tag(*args: Any, **kwargs: Any) -> Any:
            args = (*args[:2], "fake", None, *args[4:]) if len(args) > 2 else args
            if len(args) <= 2:
                kwargs |= {"backend": "fake", "backend_options": None}
            kwargs.pop("device_id", None)
            return new_group(*args, **kwargs)

        replaced.put(c10d, "_new_group_with_tag", _new_group_with_tag)
        replaced.put_where_it_is(c10d, "is_nccl_available", lambda: True)
        replaced.put_where_it_is(dist, "is_nccl_available", lambda: True)
        waited = dist.Work.wait

        def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            self.work_waited(work)
            return waited(work, *args, **kwargs)

        replaced.put(dist.Work, "wait", wait)
        for name in _ISSUING:
            method = getattr(dist.ProcessGroup, name, None)
            if method is not None:
                replaced.put(dist.ProcessGroup, name, self._handing(method))
        replaced.put(
            dist.Work,
            "get_future",
            lambda work: DryFuture(self.last_sent).waits_with(functools.partial(self.work_waited, work)),
        )
        replaced.put(dist, "Reducer", DryReducer)
        replaced.put(dist, "Logger", DryLogger)
        replaced.put(dist, "_register_comm_hook", register_hook(dist._register_comm_hook))
        replaced.put(dist, "_verify_params_across_processes", _nothing)
        ddp: Any = nn.parallel.distributed
        replaced.put_where_it_is(ddp, "_verify_param_shape_across_processes", _nothing)
        self._objects(replaced)

    def _handing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def issue(*args: Any, **kwargs: Any) -> Any:
            work = method(*args, **kwargs)
            self.work_handed(work)
            return work

        return issue

    def _objects(self, replaced: Replaced) -> None:
        """Have collectives of Python objects answer with what this rank gave."""
        world = self.world

        def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
            object_list[:] = [obj] * len(object_list)

        def gather_object(obj: Any, object_gather_list: Any = None, *_: Any, **__: Any) -> None:
            if object_gather_list is not None:
                object_gather_list[:] = [obj] * len(object_gather_list)

        def scatter_object_list(
            scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, *_: Any, **__: Any
        ) -> None:
            given = scatter_object_input_list
            scatter_object_output_list[0] = given[world.rank % len(given)] if given else None

        for owner in (dist, dist.distributed_c10d):
            replaced.put(owner, "all_gather_object", all_gather_object)
            replaced.put(owner, "gather_object", gather_object)
            replaced.put(owner, "broadcast_object_list", _nothing)
            replaced.put(owner, "scatter_object_list", scatter_object_list)

    # -- modules, the compiler, loaders and files ----------------------------------------------------

    def _modules(self, replaced: Replaced) -> None:
        tensors = self.tensors
        original = nn.Module.register_parameter

        @functools.wraps(original)
        def register_parameter(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
            if (
                type(param) is nn.Parameter
                and type(param.data) is torch.Tensor
                and param.device.type == "cpu"
            ):
                param = tensors.parameter(param)
            original(module, name, param)

        replaced.put(nn.Module, "register_parameter", register_parameter)
        applied = nn.Module._apply

        @functools.wraps(applied)
        def _apply(module: nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> nn.Module:
            # torch swaps fake parameters, which it refuses while somebody holds a weak reference to one.
            own = module._parameters
            fakes = {name: value for name, value in own.items() if isinstance(value, FakeTensor)}
            everything = dict(own)
            for name, parameter in fakes.items():
                everything[name] = _converted(parameter, fn)
                del own[name]
            try:
                applied(module, fn, recurse)
            finally:
                everything |= own
                own.clear()
                own.update(everything)
            return module

        replaced.put(nn.Module, "_apply", _apply)

    def _storage(self, replaced: Replaced) -> None:
        original = torch.UntypedStorage.resize_

        def resize_(storage: Any, size: int) -> Any:
            self.resized(storage, int(size))
            return original(storage, size)

        replaced.put(torch.UntypedStorage, "resize_", resize_)

    def _compiler(self, replaced: Replaced) -> None:
        def compiled(model: Any = None, *_: Any, **__: Any) -> Any:
            if model is None:
                return compiled
            if isinstance(model, nn.Module):
                model.forward = self._fused(model.forward)
                return model
            return self._fused(model)

        replaced.put(torch, "compile", compiled)

        def compile_in_place(module: nn.Module, *_: Any, **__: Any) -> None:
            compiled(module)

        replaced.put(nn.Module, "compile", compile_in_place)

    def _fused(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Run eagerly what would be compiled, and mark what runs in it."""
        if getattr(function, "_dry_fused", False):
            return function

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.region is not None:
                return function(*args, **kwargs)
            self.region = self.fused_regions
            self.fused_regions += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.region = None

        run._dry_fused = True  # type: ignore[attr-defined]
        return run

    def _loader(self, replaced: Replaced) -> None:
        owner: Any = torch.utils.data.DataLoader
        original = owner.__init__

        @functools.wraps(original)
        def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
            names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
            kwargs |= dict(zip(names, args, strict=False))
            kwargs |= {"num_workers": 0, "pin_memory": False, "persistent_workers": False}
            for name in ("prefetch_factor", "multiprocessing_context", "timeout"):
                kwargs.pop(name, None)
            rest = args[len(names) :]
            if rest:
                kwargs |= dict(zip(("collate_fn", "pin_memory_", "drop_last"), rest, strict=False))
                kwargs.pop("pin_memory_", None)
            original(loader, **kwargs)

        replaced.put(owner, "__init__", __init__)

    def _checkpoints(self, replaced: Replaced) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

        def skip(what: str) -> Callable[..., Any]:
            def skipped(*_: Any, **__: Any) -> Any:
                self.skipped_files.append(f"{what}: a distributed checkpoint")
                return DryFuture(None)

            return skipped

        for owner in (dcp, state_dict_saver):
            for name in ("save", "async_save", "_save_state_dict"):
                replaced.put_where_it_is(owner, name, skip("not saved"))
        for owner in (dcp, state_dict_loader):
            for name in ("load", "_load_state_dict"):
                replaced.put_where_it_is(owner, name, skip("not loaded"))

    def _files(self, replaced: Replaced) -> None:
        def save(obj: Any, f: Any, *_: Any, **__: Any) -> None:
            self.skipped_files.append(
                f"not saved: {f if isinstance(f, (str, bytes)) or hasattr(f, '__fspath__') else 'a stream'}"
            )

        replaced.put(torch, "save", save)
        self._checkpoints(replaced)
        original = torch.load

        @functools.wraps(original)
        def load(f: Any, *args: Any, map_location: Any = None, **kwargs: Any) -> Any:
            if map_location is not None and is_gpu(map_location):
                map_location = "cpu"
            return original(f, *args, map_location=map_location, **kwargs)

        replaced.put(torch, "load", load)


def _converted(parameter: Any, fn: Callable[[Any], Any]) -> Any:
    """Return the fake parameter after `fn`, the same object wherever its data can be exchanged."""
    with torch.no_grad():
        data = fn(parameter)
    if data is parameter:
        return parameter
    if not isinstance(data, FakeTensor):
        return nn.Parameter(data, parameter.requires_grad)
    parameter.data = data
    if parameter.grad is not None:
        with torch.no_grad():
            parameter.grad.data = fn(parameter.grad)
    return parameter


def _shape_and_dtype(tensor: torch.Tensor) -> dict[str, Any]:
    """Return what checkpointing compares of a recomputed tensor: where it is depends on who asks."""
    return {"shape": tensor.shape, "dtype": tensor.dtype}


def _wish(frame: Any) -> str:
    """Return what a stream is called where it is made: `self.all_gather_stream = Stream()`."""
    import linecache

    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    name = line.partition("=")[0].strip().rpartition(".")[2]
    return name.removesuffix("_stream") if name.isidentifier() else "stream"


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with a GPU's device type, its first argument, as the CPU's."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str) and is_gpu(args[0]):
            args = ("cpu", *args[1:])
        elif not args and not kwargs:
            args = ("cpu",)
        return original(*args, **kwargs)

    return called


_real_device: Any = torch.device


class _DeviceKind(type):
    """Has real devices count as instances of what stands for their type."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _real_device)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _real_device)


class _Device(metaclass=_DeviceKind):
    """Stands for torch.device, where a number means a GPU although this torch knows none."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], int):
            args = ("cuda", args[0])
        return _real_device(*args, **kwargs)


class _Passing:
    """Stands for a context that selects a device."""

    def __init__(self, device: Any = None) -> None:
        self.idx = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Counters(dict[str, int]):
    """Statistics of the allocator: what is not known counts as none."""

    def __missing__(self, key: str) -> int:
        return 0


@contextlib.contextmanager
def shimmed(shim: Shim) -> Iterator[Shim]:
    """Have everything replaced inside."""
    try:
        shim.install()
        yield shim
    finally:
        shim.remove()
