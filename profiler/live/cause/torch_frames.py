"""Facts in torch's own frames about the operators below them: who asked, in which phase, and for what.

Frames are recognized by file and function. Only these short functions of torch have their locals read.
Reading the locals of a user's frame could keep large tensors alive longer than the user's program does
(Python < 3.13).
"""

from __future__ import annotations

from types import FrameType
from typing import Any, Final

from torch import nn
from torch.fx import GraphModule

from shardtoll.ledger.records import ddp_causes
from shardtoll.profiler.live.cause import pipelining
from shardtoll.profiler.live.cause.cause import Cause, Reader


def engine(_: FrameType, cause: Cause) -> None:
    """Note that autograd's engine runs the frames below."""
    if cause.phase is None:
        cause.phase = "backward"
    cause.settled = True


def _ddp_setup(_: FrameType, cause: Cause) -> None:
    cause.phase = cause.phase or "other"
    if not cause.settled:
        cause.api, cause.settled = ddp_causes.SETUP, True


def _ddp(purpose: str, asked_in_python: str | None = None) -> Reader:
    """Name what DDP's C++ sends below this frame; `asked_in_python`: what a call from Python is named."""

    def read(_: FrameType, cause: Cause) -> None:
        if not cause.settled:
            cause.api = purpose if asked_in_python is None or cause.issuer is None else asked_in_python
            cause.settled = True

    return read


def _comm_hook(frame: FrameType, cause: Cause) -> None:
    # A hook may go on from a thread of gloo's, where no engine is on the stack.
    cause.phase = cause.phase or "backward"
    if not cause.settled:
        _api()(frame, cause)
        cause.api = f"{ddp_causes.DDP}.{cause.api}"


def _zero(_: FrameType, cause: Cause) -> None:
    _optimizer(_, cause)
    if not cause.settled:
        cause.api = "ZeroRedundancyOptimizer"


def _saving(name: str) -> Reader:
    def read(_: FrameType, cause: Cause) -> None:
        cause.phase = cause.phase or "other"
        if not cause.settled:
            cause.api = name

    return read


def _recompute(_: FrameType, cause: Cause) -> None:
    if cause.phase is None:
        cause.phase = "recompute"


def _optimizer(_: FrameType, cause: Cause) -> None:
    # A module called below `step` is the forward pass of its closure.
    if cause.phase is None and cause.root is None and not cause.in_closure:
        cause.phase = "optimizer"


def closure(_: FrameType, cause: Cause) -> None:
    """Note that an optimizer's closure asked: the loss, say, outside of every module."""
    cause.in_closure = True


_WRAPPED_CALL: Final = getattr(getattr(nn.Module, "_wrapped_call_impl", None), "__code__", None)
"""The usual caller of `_call_impl`: it has the same `self`, and few other locals to be read with it."""


def _module_call(frame: FrameType, cause: Cause) -> None:
    by = frame.f_back
    module = (frame if by is None or by.f_code is not _WRAPPED_CALL else by).f_locals.get("self")
    if isinstance(module, GraphModule):
        cause.graph = cause.graph or module
    elif isinstance(module, nn.Module):
        # A module called below the engine is a recomputed one; the engine's own module comes from autograd.
        if cause.module is None and cause.phase not in ("backward", "optimizer"):
            cause.module = module
        cause.root = module
        cause.settled = True


def _compiled(_: FrameType, cause: Cause) -> None:
    # A graph's operators are called from code that nobody wrote: what asked for them is gone by now.
    if cause.api is None and not cause.settled:
        cause.api = "torch.compile"


def redistribute(frame: FrameType, cause: Cause) -> None:
    """Note from where to where DTensor redistributes, and which local tensor."""
    if cause.from_spec is None:
        values = frame.f_locals
        cause.from_spec, cause.to_spec = values.get("current_spec"), values.get("target_spec")
        cause.redistributed = values.get("local_tensor")


def _redistribute_args(frame: FrameType, cause: Cause) -> None:
    cause.implicit = cause.implicit or not cause.settled
    if not cause.settled and cause.operand is None:
        values = frame.f_locals
        place = values.get("i")
        if isinstance(place, int):
            cause.operand = values.get("suggested_input_schema"), place, values.get("arg_spec")


def operand_text(schema: Any, place: int, spec: Any) -> str:
    """Return which argument of an operator a spec is of: its place, its name there, its whole shape."""
    given = getattr(schema, "args_schema", ())
    declared = getattr(getattr(schema, "op", None), "_schema", None)
    names = [argument.name for argument in getattr(declared, "arguments", ())]
    # Arguments that are lists were flattened: their places are others.
    listed = place >= len(names) or any(isinstance(argument, (list, tuple)) for argument in given)
    name = "" if listed else f" ({names[place]})"
    shape = getattr(getattr(spec, "tensor_meta", None), "shape", None)
    return f"argument {place}{name}" + ("" if shape is None else f", {list(shape)}")


def _dispatch(frame: FrameType, cause: Cause) -> None:
    if cause.dtensor_op is None and not cause.settled:
        values = frame.f_locals
        cause.dtensor_op = values.get("op_call")
        cause.dtensor_info = values.get("op_info")


MOVES: Final = (redistribute, _redistribute_args, _dispatch)
"""Readers of what DTensor moves, and for which operator: nothing of where the program stands."""


def _fsdp2(api: str) -> Reader:
    def read(frame: FrameType, cause: Cause) -> None:
        if cause.settled:
            return
        group = frame.f_locals.get("self")
        cause.api = api
        if cause.fsdp_group is None and hasattr(group, "fsdp_params"):
            cause.fsdp_group = group
            cause.module_name = getattr(group, "_module_fqn", None)

    return read


def _fsdp1(api: str | None = None) -> Reader:
    def read(frame: FrameType, cause: Cause) -> None:
        if cause.settled:
            return
        if api is not None or not (cause.api or "").startswith("FSDP1"):
            cause.api = api or "FSDP1"
        handle = frame.f_locals.get("handle")
        if cause.fsdp1_handle is None and hasattr(handle, "flat_param"):
            cause.fsdp1_handle = handle

    return read


def _fsdp2_gradient(frame: FrameType, cause: Cause) -> None:
    # A gradient that lies partial on another mesh dimension is brought to its parameter's placements first.
    if not cause.settled and cause.from_spec is not None:
        cause.parameter_name = getattr(frame.f_locals.get("self"), "_param_fqn", None)


def _api(name: str | None = None, *, issues: bool = False) -> Reader:
    """Name the cause; a wrapper further out, as `full_tensor` around `redistribute`, names it better."""

    def read(frame: FrameType, cause: Cause) -> None:
        code = frame.f_code
        if issues and cause.issuer is None:
            cause.issuer = code.co_name
        if not cause.settled:
            # co_qualname is there from Python 3.11 on; before, the bare function name has to do.
            qualified = getattr(code, "co_qualname", code.co_name)
            cause.api = name or str(qualified).split(".")[0]

    return read


_CHECKPOINT = "utils/checkpoint.py"
_SCHEDULES = "distributed/pipelining/schedules.py"
_STAGES = "distributed/pipelining/stage.py"
_FSDP2_GROUPS = (
    "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
    "distributed/_composable/fsdp/_fsdp_param_group.py",
)

_COMM_HOOKS: Final = ("default_hooks", "powerSGD_hook", "post_localSGD_hook", "quantization_hooks")

_READERS: Final[dict[tuple[str, str], Reader]] = {
    ("autograd/graph.py", "_engine_run_backward"): engine,
    ("autograd/__init__.py", "backward"): engine,
    ("autograd/__init__.py", "grad"): engine,
    (_CHECKPOINT, "recompute_fn"): _recompute,
    (_CHECKPOINT, "unpack_hook"): _recompute,
    # The reentrant kind runs the forward again inside its own backward.
    (_CHECKPOINT, "backward"): _recompute,
    ("nn/modules/module.py", "_call_impl"): _module_call,
    ("nn/utils/clip_grad.py", "*"): _optimizer,
    ("distributed/optim/zero_redundancy_optimizer.py", "*"): _zero,
    ("distributed/checkpoint/state_dict_saver.py", "*"): _saving("checkpoint.save"),
    ("distributed/checkpoint/state_dict_loader.py", "*"): _saving("checkpoint.load"),
    ("distributed/checkpoint/state_dict.py", "*"): _saving("checkpoint.state_dict"),
    **{(f"distributed/algorithms/ddp_comm_hooks/{name}.py", "*"): _comm_hook for name in _COMM_HOOKS},
    ("distributed/tensor/_redistribute.py", "redistribute_local_tensor"): redistribute,
    ("distributed/tensor/_dispatch.py", "redistribute_local_args"): _redistribute_args,
    ("distributed/tensor/_dispatch.py", "_dispatch_get_local_results_slow_path"): _dispatch,
    ("distributed/tensor/_dispatch.py", "_dispatch_fast_path_python_tail"): _dispatch,
    ("distributed/tensor/_dispatch.py", "dispatch"): _dispatch,
    ("distributed/tensor/parallel/style.py", "*"): _api(),
    ("distributed/tensor/parallel/loss.py", "*"): _api("loss_parallel"),
    ("distributed/tensor/_api.py", "full_tensor"): _api("DTensor.full_tensor"),
    ("distributed/tensor/_api.py", "redistribute"): _api("DTensor.redistribute"),
    ("distributed/tensor/_api.py", "distribute_tensor"): _api("distribute_tensor"),
    ("distributed/tensor/_api.py", "to_local"): _api("DTensor.to_local"),
    ("distributed/tensor/_api.py", "from_local"): _api("DTensor.from_local"),
    ("nn/parallel/distributed.py", "_sync_buffers"): _ddp(ddp_causes.BUFFERS),
    ("nn/parallel/distributed.py", "__init__"): _ddp_setup,
    # Its C++ lays the buckets out anew; from Python it asks only whether some rank has run out of data.
    ("nn/parallel/distributed.py", "_pre_forward"): _ddp(ddp_causes.BUCKET_ORDER, ddp_causes.JOIN),
    ("nn/parallel/distributed.py", "*"): _api(ddp_causes.DDP),
    ("distributed/fsdp/_fully_shard/_fsdp_param.py", "_get_grad_inner_tensor"): _fsdp2_gradient,
    **{(path, "unshard"): _fsdp2("FSDP.unshard") for path in _FSDP2_GROUPS},
    **{(path, "post_backward"): _fsdp2("FSDP.post_backward") for path in _FSDP2_GROUPS},
    **{(path, "finalize_backward"): _fsdp2("FSDP.finalize_backward") for path in _FSDP2_GROUPS},
    ("_functorch/_aot_autograd/runtime_wrappers.py", "*"): _compiled,
    (_SCHEDULES, "_batch_p2p"): pipelining.batch_p2p,
    (_SCHEDULES, "_perform_action"): pipelining.perform_action,
    (_SCHEDULES, "step"): pipelining.step,
    **{(_SCHEDULES, name): pipelining.set_up for name in pipelining.SETS_UP},
    **{(_STAGES, name): pipelining.set_up for name in pipelining.SETS_UP},
    (_STAGES, "perform_reduce_grad"): pipelining.reduce_grad,
    ("distributed/fsdp/_runtime_utils.py", "_unshard"): _fsdp1("FSDP1.unshard"),
    ("distributed/fsdp/_runtime_utils.py", "_post_backward_hook"): _fsdp1("FSDP1.post_backward"),
    ("distributed/fsdp/_runtime_utils.py", "*"): _fsdp1(),
    ("distributed/fsdp/_flat_param.py", "*"): _fsdp1(),
}
"""(file under torch, function or `*`) -> reader of its facts."""

FUNCOL: Final = "funcol."
"""Prefix of functional collectives; DTensor calls them, so they name a cause only if nothing else does."""

_PUBLIC_APIS: Final = ("distributed/distributed_c10d.py", "distributed/_functional_collectives.py")
"""Functions here are what a user calls; the outermost of them names the cause."""


_PUBLIC_IN_ALL_BUT_NAME: Final = ("_coalescing_manager",)


def reader_of(path: str, function: str) -> Reader | None:
    """Return what reads a function of a file of torch, named by its path inside the package."""
    if path.startswith("optim/") and function == "step":
        return _optimizer
    public = not function.startswith("_") or function in _PUBLIC_IN_ALL_BUT_NAME
    if path in _PUBLIC_APIS and public:
        return _api(f"{FUNCOL if 'functional' in path else ''}{function}", issues=True)
    return _READERS.get((path, function)) or _READERS.get((path, "*"))
