"""The table of parameters: what a rank holds and what reduces it, without its values.

It is made as the session closes, from names that the capture has anyway: no hook, no look at a value.
"""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from shardtoll.ledger.records.value import Parameter
from shardtoll.profiler.live.capture.recorder import Recorder
from shardtoll.profiler.live.cause.module_names import Names
from shardtoll.profiler.live.cause.positions import layout_of
from shardtoll.profiler.live.session.wrapping import Wrapped, wrappers_of


def unchecked_rows(recorder: Recorder, names: Names) -> tuple[Parameter, ...]:
    """Return a row for each parameter that the capture knows by name, in a run without checks.

    Only what an optimizer has stepped with, in a surveyed step, has `used_in`.
    """
    for root in names.roots:
        # FSDP2 and the program itself may have put others in place since.
        names.add_root(root)
    wrappers = wrappers_of(*names.roots, search_outside=recorder.attribution.saw_reducer, ask_buckets=False)
    return tuple(
        parameter_row(recorder, name, parameter, wrappers.get(id(parameter)), checked=False)
        for name, parameter in names.parameters()
        if not is_lazy(parameter)
    )


def parameter_row(
    recorder: Recorder,
    name: str,
    parameter: nn.Parameter,
    wrapped: Wrapped | None,
    *,
    checked: bool,
    has_grad: bool | None = None,
    tied_to: str | None = None,
    checked_right: bool | None = None,
) -> Parameter:
    """Return the row of one parameter as it is now; the last three are of checks."""
    placements, dims = layout_of(parameter)
    local = getattr(parameter, "_local_tensor", parameter)
    whole = parameter.shape if wrapped is None or wrapped.shape is None else wrapped.shape
    group = None if wrapped is None or wrapped.group is None else str(wrapped.group.group_name)
    return Parameter(
        rank=recorder.rank,
        name=name,
        shape=str(list(whole)),
        local_shape=str(list(local.shape)),
        dtype=str(parameter.dtype).removeprefix("torch."),
        numel=local.numel(),
        requires_grad=parameter.requires_grad,
        has_grad=has_grad,
        placements=placements,
        mesh_dims=dims,
        wrapper=None if wrapped is None else wrapped.wrapper,
        group=group,
        reduced_by_wrapper=None if wrapped is None else wrapped.reduces,
        tied_to=tied_to,
        checked_right=checked_right,
        used_in=recorder.used.get(id(parameter)),
        carried=name in recorder.attribution.carried,
        checked=checked,
        ignored=None if wrapped is None else wrapped.ignored,
    )
