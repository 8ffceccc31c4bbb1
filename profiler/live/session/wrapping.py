"""Which wrapper reduces a parameter's gradient by itself, over which group, and which parts FSDP1 cut."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True, slots=True)
class Wrapped:
    """A wrapper's relation to one parameter."""

    wrapper: str
    group: Any
    """torch ProcessGroup; None if unknown."""
    reduces: bool | None
    """Whether it reduces the parameter's gradient; None if it was not asked."""
    shape: tuple[int, ...] | None = None
    """Shape of the whole parameter, if the parameter itself does not have it."""
    ignored: bool = False
    """Whether the program had the wrapper ignore it. FSDP2 does not keep which ones these are."""


def wrappers_of(
    *models: nn.Module, search_outside: bool = True, ask_buckets: bool = True
) -> dict[int, Wrapped]:
    """Return what wraps each parameter, by the parameter's id; the innermost wrapper counts.

    `search_outside`: look through all objects of the process for a DDP around the models, if none is inside
    them: some tenths of a second. `ask_buckets`: have a reducer make its buckets, if only they say what it
    reduces.
    """
    wrapped: dict[int, Wrapped] = {}
    ours = {id(parameter) for model in models for parameter in model.parameters()}
    for ddp in _ddps(models, ours, search_outside=search_outside):
        group, reduced = getattr(ddp, "process_group", None), _reduced(ddp, ask_buckets=ask_buckets)
        names, delayed = getattr(ddp, "parameters_to_ignore", ()), _delayed(ddp)
        for name, parameter in ddp.module.named_parameters():
            reduces = None if reduced is None else id(parameter) in reduced
            # The list has those whose reduction DDP delays, too.
            ignored = name in names and not reduces and id(parameter) not in delayed
            wrapped[id(parameter)] = Wrapped("DDP", group, False if ignored else reduces, ignored=ignored)
    modules = [module for model in models for module in model.modules()]
    for module in modules:
        _add_fsdp2(module, wrapped)
    for module in modules:
        _add_fsdp1(module, wrapped)
    return wrapped


def _ddps(models: Sequence[nn.Module], ours: set[int], *, search_outside: bool) -> Iterator[Any]:
    """Return the models' DDP modules, outermost first; else those that wrap (a part of) them from outside."""
    every = (module for model in models for module in model.modules())
    inside = [module for module in every if isinstance(module, DistributedDataParallel)]
    yield from inside
    if inside or not search_outside:
        return
    # By its type: torch.distributed holds an object that warns when it is asked for its class.
    for thing in gc.get_objects():
        is_ddp = issubclass(type(thing), DistributedDataParallel) and "module" in thing._modules
        if is_ddp and any(id(parameter) in ours for parameter in thing.module.parameters()):
            yield thing


def _reduced(ddp: Any, *, ask_buckets: bool) -> set[int] | None:
    """Return the ids of the parameters that DDP reduces: those that were there, and trained, on wrapping.

    Frozen ones count as known until they are trained again and the reducer has them not. None: only its
    buckets say so, and they are not to be asked.
    """
    parameters: Sequence[torch.Tensor] = list(getattr(ddp, "_module_parameters", ddp.module.parameters()))
    # The reducer has them not: DDP sends their gradients itself, from the hook of another parameter.
    delayed = _delayed(ddp)
    facts: Mapping[str, Any] = getattr(ddp, "_get_ddp_logging_data", dict)()
    training = sum(parameter.requires_grad for parameter in parameters)
    buckets = getattr(getattr(ddp, "reducer", None), "_get_zeros_like_grad_buckets", None)
    if buckets is None or facts.get("num_parameter_tensors", training) == training:
        return {id(parameter) for parameter in parameters} | delayed
    if not ask_buckets:
        return None
    # Some were frozen then or are now, and only its buckets say which: expensive, as they are made for this.
    return {id(parameter) for bucket in buckets() for parameter in bucket.parameters()} | delayed


def _delayed(ddp: Any) -> set[int]:
    return {id(parameter) for parameter in getattr(ddp, "_delay_all_reduce_params", ())}


def _add_fsdp2(module: nn.Module, wrapped: dict[int, Wrapped]) -> None:
    state_of = getattr(module, "_get_fsdp_state", None)
    if state_of is None:
        return
    state = state_of()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        single = getattr(state, "_fsdp_param_group", None)
        groups = [] if single is None else [single]
    for parameter in module.parameters():
        # DDP and replicate() keep parameters that they have.
        if id(parameter) not in wrapped:
            wrapped[id(parameter)] = Wrapped("FSDP2", None, False)
    for group in groups:
        info = group.mesh_info
        over = getattr(info, "shard_process_group", None) or getattr(info, "replicate_process_group", None)
        for managed in group.fsdp_params:
            for name in ("sharded_param", "_unsharded_param"):
                tensor: Any = getattr(managed, name, None)
                if tensor is not None:
                    wrapped[id(tensor)] = Wrapped("FSDP2", over, True)


def _add_fsdp1(module: nn.Module, wrapped: dict[int, Wrapped]) -> None:
    if not is_fsdp1(module):
        return
    listed = {id(parameter) for parameter in getattr(module, "_ignored_params", ())}
    for parameter in module.parameters():
        if id(parameter) not in wrapped:
            wrapped[id(parameter)] = Wrapped("FSDP1", None, False, ignored=id(parameter) in listed)
    handle: Any = getattr(module, "_handle", None)
    if handle is None:
        return
    flat, group = handle.flat_param, getattr(module, "process_group", None)
    whole = tuple(getattr(flat, "_unpadded_unsharded_size", flat.shape))
    wrapped[id(flat)] = Wrapped("FSDP1", group, True, whole)
    for parameter, shape in zip(getattr(flat, "_params", None) or (), flat._shapes, strict=False):
        wrapped[id(parameter)] = Wrapped("FSDP1", group, True, tuple(shape))


def is_fsdp1(module: nn.Module) -> bool:
    """Whether the module is FSDP1's wrapper."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    return kind is not None and isinstance(module, kind)


def flat_starts(model: nn.Module) -> dict[int, int]:
    """Return where the part that FSDP1 left to this rank begins in the flattened whole, by parameter's id."""
    starts: dict[int, int] = {}
    for module in model.modules():
        handle: Any = getattr(module, "_handle", None) if is_fsdp1(module) else None
        if handle is None:
            continue
        flat = handle.flat_param
        if getattr(handle, "uses_sharded_strategy", True):
            starts[id(flat)] = handle.rank * flat.shape[0]
        infos = getattr(flat, "_shard_param_infos", ())
        for parameter, info in zip(getattr(flat, "_params", None) or (), infos, strict=False):
            if info.intra_param_start_idx is not None and parameter.dim() == 1:
                starts[id(parameter)] = info.intra_param_start_idx
    return starts
