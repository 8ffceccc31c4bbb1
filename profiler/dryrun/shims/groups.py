"""Process groups that move nothing, with the ranks of the job, and DDP's reducer on them."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn

from shardtoll.profiler.dryrun.device.stand_ins import nothing
from shardtoll.profiler.dryrun.device.world import World
from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.reducer import DryFuture, DryLogger, DryReducer, register_hook
from shardtoll.profiler.dryrun.shims.replaced import Replaced

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


def replace_groups(shim: Playing, replaced: Replaced) -> None:
    """Have process groups move nothing, and DDP reduce in Python."""
    # It registers the backend. Its own store has no methods, and programs keep values in that of the job.
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    world = shim.world
    c10d: Any = dist.distributed_c10d
    original = c10d.init_process_group
    backends: dict[str, str] = {}
    """Name of a group -> the backend that the program asked for."""

    @functools.wraps(original)
    def init_process_group(
        backend: Any = None,
        _method: Any = None,
        timeout: Any = None,
        world_size: int | None = -1,
        rank: int | None = -1,
        *_: Any,
        **__: Any,
    ) -> None:
        _check(world, world_size, rank)
        original(
            "fake",
            rank=world.rank,
            world_size=world.size,
            store=torch._C._distributed_c10d.HashStore(),
            **({} if timeout is None else {"timeout": timeout}),
        )
        # Names of groups that a program destroyed come again.
        backends.clear()
        backends[_name_of(None)] = _backend_of(backend)

    for name in _GROUP_MODULES:
        owner = sys.modules[name]
        if getattr(owner, "init_process_group", None) is original:
            replaced.put(owner, "init_process_group", init_process_group)
    new_group = c10d._new_group_with_tag

    # Versions of torch differ in what they name, and where.
    signature = inspect.signature(new_group)
    none = {"backend_options", "pg_options", "device_id"} & signature.parameters.keys()

    @functools.wraps(new_group)
    def _new_group_with_tag(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        asked = call.arguments.get("backend")
        call.arguments |= {"backend": "fake"} | dict.fromkeys(none)
        group = new_group(*call.args, **call.kwargs)
        if isinstance(group, dist.ProcessGroup):
            backends[group.group_name] = _backend_of(asked) if asked else backends[_name_of(None)]
        return group

    replaced.put(c10d, "_new_group_with_tag", _new_group_with_tag)
    known = dist.get_backend

    @functools.wraps(known)
    def get_backend(group: Any = None) -> str:
        # It refuses a group that does not exist, and one that this rank is no member of.
        known(group)
        return backends.get(_name_of(group), "nccl")

    # Only for the program: torch's own code asks its own name for it, to choose what a backend can do.
    replaced.put(dist, "get_backend", get_backend)
    # It counts the ranks that came to a barrier: asked for by TORCH_DIST_INIT_BARRIER=1, as OLMo does.
    replaced.put_where_it_is(c10d, "_store_based_barrier", nothing)
    # Hosts meet in it: gloo has it, and the fake group has not.
    for place in (dist, c10d, dist.ProcessGroup):
        replaced.put_where_it_is(place, "monitored_barrier", nothing)
    replaced.put_where_it_is(c10d, "is_nccl_available", lambda: True)
    replaced.put_where_it_is(dist, "is_nccl_available", lambda: True)
    # Newer torch: the fake group's Work has a method of its own, which the base's replacement does not reach.
    fake: Any = getattr(vars(torch._C)["_distributed_c10d"], "FakeWork", dist.Work)
    for kind in {dist.Work, fake}:
        if "wait" in vars(kind):
            replaced.put(kind, "wait", _noted(shim, kind.wait))
    for name in _ISSUING:
        method = getattr(dist.ProcessGroup, name, None)
        if method is not None:
            replaced.put(dist.ProcessGroup, name, _handing(shim, method))
    replaced.put(
        dist.Work,
        "get_future",
        lambda work: DryFuture(shim.last_sent).waits_with(functools.partial(shim.work_waited, work)),
    )

    def reducer(*args: Any) -> DryReducer:
        made = DryReducer(*args)
        shim.reducers.add(made)
        return made

    replaced.put(dist, "Reducer", reducer)
    replaced.put(dist, "Logger", DryLogger)
    replaced.put(dist, "_register_comm_hook", register_hook(vars(dist)["_register_comm_hook"]))
    replaced.put(dist, "_verify_params_across_processes", nothing)
    ddp: Any = nn.parallel.distributed
    replaced.put_where_it_is(ddp, "_verify_param_shape_across_processes", nothing)
    _objects(shim, replaced)
    _spawning(shim, replaced)


def _backend_of(asked: Any) -> str:
    """Return what torch says of a program's choice: `cpu:gloo,cuda:nccl` as it is, `undefined` for none."""
    return str(asked).lower() if asked else "undefined"


def _name_of(group: Any) -> str:
    one = dist.group.WORLD if group is None else group
    return str(getattr(one, "group_name", one))


def _spawning(shim: Playing, replaced: Replaced) -> None:
    """Have the processes that a program starts be one: that of the rank that is played, in this process."""

    def spawn(fn: Callable[..., Any], args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> Any:
        world = shim.world
        if nprocs <= world.local_rank:
            raise ValueError(f"spawn(nprocs={nprocs}) starts no process of local rank {world.local_rank}")
        fn(world.local_rank, *args)
        # For those who ask to join themselves.
        return SimpleNamespace(join=lambda *_, **__: True, processes=[])

    def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> Any:
        return spawn(fn, args, nprocs)

    for name in ("torch.multiprocessing", "torch.multiprocessing.spawn"):
        owner = sys.modules[name]
        replaced.put_where_it_is(owner, "spawn", spawn)
        replaced.put_where_it_is(owner, "start_processes", start_processes)


def _check(world: World, size: int | None, rank: int | None) -> None:
    """Refuse a job of another size, or another rank of it, than the one that is played."""
    if size not in (None, -1, world.size):
        raise ValueError(f"init_process_group(world_size={size}), but --world is {world.size}")
    if rank not in (None, -1, world.rank):
        raise ValueError(f"init_process_group(rank={rank}), but --rank is {world.rank}")


def _noted(shim: Playing, waited: Callable[..., Any]) -> Callable[..., Any]:
    def wait(work: Any, *args: Any, **kwargs: Any) -> Any:
        shim.work_waited(work)
        return waited(work, *args, **kwargs)

    return wait


def _handing(shim: Playing, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with its Work handed on."""

    def issue(*args: Any, **kwargs: Any) -> Any:
        work = method(*args, **kwargs)
        shim.work_handed(work)
        return work

    return issue


def _objects(shim: Playing, replaced: Replaced) -> None:
    """Have collectives of Python objects answer with this rank's own object."""
    world = shim.world

    def all_gather_object(object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
        object_list[:] = [obj] * len(object_list)

    def gather_object(obj: Any, object_gather_list: Any = None, *_: Any, **__: Any) -> None:
        if object_gather_list is not None:
            object_gather_list[:] = [obj] * len(object_gather_list)

    def scatter_object_list(
        scatter_object_output_list: list[Any], scatter_object_input_list: Any = None, *_: Any, **__: Any
    ) -> None:
        given = scatter_object_input_list
        scatter_object_output_list[0] = given[world.rank % len(given)] if given else None
        if not given:
            shim.guess("scatter_object_list gave None, as no other rank runs")

    def broadcast_object_list(
        object_list: list[Any],  # noqa: ARG001 (programs pass it by name)
        src: int | None = None,
        group: Any = None,
        device: Any = None,  # noqa: ARG001
        group_src: int | None = None,
    ) -> None:
        sender = src
        if group_src is not None:
            sender = group_src if group is None else dist.get_global_rank(group, group_src)
        if sender not in (None, world.rank):
            shim.guess("broadcast_object_list left the list as it was, as no other rank runs")

    last: list[Any] = []

    def send_object_list(object_list: list[Any], *_: Any, **__: Any) -> None:
        last[:] = object_list

    def recv_object_list(object_list: list[Any], *_: Any, **__: Any) -> int:
        if len(last) == len(object_list):
            object_list[:] = [_answered(given) for given in last]
            shim.guess("recv_object_list gave what this rank sent last, as no other rank runs")
        else:
            shim.guess("recv_object_list left the list as it was, as no other rank runs")
        return world.rank

    for owner in (dist, dist.distributed_c10d):
        replaced.put(owner, "send_object_list", send_object_list)
        replaced.put(owner, "recv_object_list", recv_object_list)
        replaced.put(owner, "all_gather_object", all_gather_object)
        replaced.put(owner, "gather_object", gather_object)
        replaced.put(owner, "broadcast_object_list", broadcast_object_list)
        replaced.put(owner, "scatter_object_list", scatter_object_list)


def _answered(sent: Any) -> Any:
    """Return a peer's answer to an object: a pipeline's next stage has gradients shaped as its inputs."""
    from torch.distributed.pipelining import _utils as pipelining

    forward = getattr(pipelining, "_StageForwardMeta", None)
    if forward is None or not isinstance(sent, forward):
        return sent
    answer: Any = vars(pipelining)["_StageBackwardMeta"]
    return answer(backward_metas=sent.forward_metas)
