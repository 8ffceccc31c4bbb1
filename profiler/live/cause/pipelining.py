"""Facts in the frames of torch.distributed.pipelining about a send or a receive.

A schedule moves activations and their gradients between modules, outside every module call and outside
autograd. Only its own frames know which of the two a message is, and which stage it is for. Locals are read
of frames that end with the action, and of `step`, whose tensors live as long as it runs anyhow.
"""

from __future__ import annotations

from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from shardtoll.ledger.records.pipeline_messages import SET_UP

if TYPE_CHECKING:
    from shardtoll.profiler.live.cause.cause import Cause

_KINDS: Final = {"isend": "send", "irecv": "recv", "send": "send", "recv": "recv"}
"""The function that issued a message -> the word torch's schedules use for it."""
_ACTIONS: Final = {
    "SEND_F": ("forward", "send_forward"),
    "RECV_F": ("forward", "recv_forward"),
    "SEND_B": ("backward", "send_backward"),
    "RECV_B": ("backward", "recv_backward"),
}
"""Actions of a schedule that send or receive -> their phase, and what to call them."""

SETS_UP: Final = (
    "_initialize_stage",
    "_initialize_stages",
    "_initialize_pp_stages",
    "_warmup_p2p",
    "_prepare_forward_infra",
    "_prepare_backward_infra",
    "_shape_inference",
)
"""Functions of schedules and stages, of one version of torch or another, that only set up."""


def batch_p2p(frame: FrameType, cause: Cause) -> None:
    """Read `_batch_p2p`: its description says which messages of the batch belong to which phase."""
    if cause.settled:
        return
    kind = _KINDS.get(cause.issuer or "")
    description = frame.f_locals.get("desc")
    for phase, short in (("forward", "fwd"), ("backward", "bwd")):
        if kind and description and f"{short}_{kind}" in description:
            cause.phase = phase
            cause.api = f"{kind}_{phase}"


def perform_action(frame: FrameType, cause: Cause) -> None:
    """Read the runtime's `_perform_action`: its action names phase and stage."""
    if cause.settled:
        return
    values = frame.f_locals
    name = getattr(values.get("comp_type"), "name", "")
    if name in _ACTIONS:
        cause.phase, cause.api = _ACTIONS[name]
    _take_module(values.get("stage"), cause)


def set_up(_: FrameType, cause: Cause) -> None:
    """Read what a schedule does once, before its first micro-batch: agree on shapes, and connect.

    These messages go both ways whatever the schedule, and do not belong to it.
    """
    if cause.settled or cause.issuer is None:
        return
    cause.phase, cause.api = "other", SET_UP


def step(frame: FrameType, cause: Cause) -> None:
    """Read a schedule's `step`: the schedule names the cause; one of a single stage also has that."""
    if cause.settled:
        return
    schedule = frame.f_locals.get("self")
    # Other collectives that run here, as FSDP2's reductions, have a name of their own.
    if cause.api is not None and (cause.issuer in _KINDS or cause.api == SET_UP):
        cause.api = f"{type(schedule).__name__}.{cause.api}"
    _take_module(getattr(schedule, "_stage", None), cause)


def reduce_grad(_: FrameType, cause: Cause) -> None:
    """Read a stage's `perform_reduce_grad`: the end of backward, though autograd does not run then."""
    if cause.phase is None and not cause.settled:
        cause.phase = "backward"


def _take_module(stage: Any, cause: Cause) -> None:
    module = getattr(stage, "submod", None)
    if cause.module is None and isinstance(module, nn.Module):
        cause.module = module
        cause.root = module
