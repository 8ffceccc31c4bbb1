"""Who asked for this operator: one walk up the Python stack, no hooks.

The stack at an operator tells its phase (the nearest of autograd's engine, a checkpoint's recompute, an
optimizer), its module (the nearest `nn.Module` call), the user's own line, and, for what DTensor or
FSDP2 inserted, from which placements to which and for which operator. Nothing has to be installed in
the model, so nothing can be left behind in it.

Only frames of torch's own short functions have their locals read: reading the locals of a user's
frame could keep large tensors alive for longer than the user's program does (Python < 3.13).
"""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch import nn
from torch.fx import GraphModule

from shardtoll.profiler.live import deepspeed_frames, pipelining

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_OURS: Final = tuple(
    os.path.join(_HERE, folder) + os.sep
    for folder in ("profiler", "analyzers", "ledger", "cli", "dashboards")
)
_READS_FOR_ITSELF: Final = os.path.join(_TORCH, "optim") + os.sep
_MACHINE_MADE: Final = ("<frozen", "<eval_with_key", "<__", "<attrs")
"""File names of code that nobody wrote; `<string>`, `<stdin>` and notebook cells are the user's."""
_NOBODYS: Final = (*_MACHINE_MADE, *_OURS)
_GENERATED: Final = "torchinductor"
"""Part of the path of code that torch.compile wrote; the line that called it is the user's."""
_LIBRARIES: Final = tuple(
    {
        path + os.sep
        for path in (
            *site.getsitepackages(),
            site.getusersitepackages(),
            sysconfig.get_path("stdlib"),
            sysconfig.get_path("purelib"),
        )
    }
)
_PACKAGES: Final = ("site-packages", "dist-packages")
"""Folders of installed libraries, in whichever environment."""


class Cause:
    """What the stack says about one operator; None where it says nothing.

    The defaults are the class's: one is made for each operator that is looked at, and few fields are set.
    """

    phase: str | None = None
    module: nn.Module | None = None
    module_name: str | None = None
    """Name that a wrapper API itself keeps, as FSDP2 does."""
    graph: nn.Module | None = None
    """The nearest fx graph being called: a compiler's, unless it has a name in the user's model."""
    root: nn.Module | None = None
    """Outermost module being called."""
    source: str | None = None
    api: str | None = None
    """The API that asked: `FSDP.unshard`, `RowwiseParallel`, `all_reduce`, ..."""
    issuer: str | None = None
    """The Python function that issued the collective; None where C++ did, and waits for it unseen."""
    from_spec: Any = None
    to_spec: Any = None
    redistributed: torch.Tensor | None = None
    """The local tensor a DTensor redistribution started from."""
    implicit: bool = False
    dtensor_op: str | None = None
    """The DTensor operator on whose behalf this runs."""
    dtensor_info: Any = None
    """DTensor's own description of the operator it runs."""
    operand: str | None = None
    """The argument of `dtensor_op` that is redistributed, as `argument 1 (mat2), [32, 16]`."""
    parameter_name: str | None = None
    """Name of the one parameter it is for, where a wrapper API itself says so."""
    fsdp_group: Any = None
    """FSDP2's parameter group, where its code is on the stack."""
    fsdp1_handle: Any = None
    """FSDP1's handle of a unit's flat parameter, where its code is on the stack."""
    parameters: tuple[Any, ...] = ()
    """The parameters it is for, where a library keeps the objects themselves."""
    settled: bool = False
    """A module call or the engine was passed: what lies further out did not ask for this operator."""
    in_library: str | None = None
    """`file:line (function)` of the nearest frame outside torch that is not the user's either."""


Reader = Callable[[FrameType, Cause], None]
"""What one known function tells about the operators below it; nearer frames are read first."""


def _engine(_: FrameType, cause: Cause) -> None:
    if cause.phase is None:
        cause.phase = "backward"
    cause.settled = True


def _ddp_buffers(_: FrameType, cause: Cause) -> None:
    if not cause.settled:
        cause.api = "DistributedDataParallel.buffers"
        cause.settled = True


def _comm_hook(frame: FrameType, cause: Cause) -> None:
    # A hook may go on from a thread of gloo's, where no engine is on the stack.
    cause.phase = cause.phase or "backward"
    if not cause.settled:
        _api()(frame, cause)
        cause.api = f"DistributedDataParallel.{cause.api}"


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
    if cause.phase is None and cause.root is None:
        cause.phase = "optimizer"


def _module_call(frame: FrameType, cause: Cause) -> None:
    module = frame.f_locals.get("self")
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


def _redistribute(frame: FrameType, cause: Cause) -> None:
    if cause.from_spec is None:
        found = frame.f_locals
        cause.from_spec, cause.to_spec = found.get("current_spec"), found.get("target_spec")
        cause.redistributed = found.get("local_tensor")


def _redistribute_args(frame: FrameType, cause: Cause) -> None:
    cause.implicit = cause.implicit or not cause.settled
    if not cause.settled and cause.operand is None:
        found = frame.f_locals
        cause.operand = _operand(found.get("suggested_input_schema"), found.get("i"), found.get("arg_spec"))


def _operand(schema: Any, place: Any, spec: Any) -> str | None:
    """Return which argument of an operator a spec is of: its place, its name there, its whole shape."""
    if not isinstance(place, int):
        return None
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
        found = frame.f_locals
        op = found.get("op_call")
        cause.dtensor_op = str(op) if op is not None else None
        cause.dtensor_info = found.get("op_info")


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
_FSDP2_GROUPS = (
    "distributed/fsdp/_fully_shard/_fsdp_param_group.py",
    "distributed/_composable/fsdp/_fsdp_param_group.py",
)

_COMM_HOOKS: Final = ("default_hooks", "powerSGD_hook", "post_localSGD_hook", "quantization_hooks")

_READERS: Final[dict[tuple[str, str], Reader]] = {
    ("autograd/graph.py", "_engine_run_backward"): _engine,
    ("autograd/__init__.py", "backward"): _engine,
    ("autograd/__init__.py", "grad"): _engine,
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
    ("distributed/tensor/_redistribute.py", "redistribute_local_tensor"): _redistribute,
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
    ("nn/parallel/distributed.py", "_sync_buffers"): _ddp_buffers,
    ("nn/parallel/distributed.py", "*"): _api("DistributedDataParallel"),
    ("distributed/fsdp/_fully_shard/_fsdp_param.py", "_get_grad_inner_tensor"): _fsdp2_gradient,
    **{(path, "unshard"): _fsdp2("FSDP.unshard") for path in _FSDP2_GROUPS},
    **{(path, "post_backward"): _fsdp2("FSDP.post_backward") for path in _FSDP2_GROUPS},
    **{(path, "finalize_backward"): _fsdp2("FSDP.finalize_backward") for path in _FSDP2_GROUPS},
    ("_functorch/_aot_autograd/runtime_wrappers.py", "*"): _compiled,
    (_SCHEDULES, "_batch_p2p"): pipelining.batch_p2p,
    (_SCHEDULES, "_perform_action"): pipelining.perform_action,
    (_SCHEDULES, "step"): pipelining.step,
    ("distributed/pipelining/stage.py", "perform_reduce_grad"): pipelining.reduce_grad,
    ("distributed/fsdp/_runtime_utils.py", "_unshard"): _fsdp1("FSDP1.unshard"),
    ("distributed/fsdp/_runtime_utils.py", "_post_backward_hook"): _fsdp1("FSDP1.post_backward"),
    ("distributed/fsdp/_runtime_utils.py", "*"): _fsdp1(),
    ("distributed/fsdp/_flat_param.py", "*"): _fsdp1(),
}
"""(file under torch, function or `*`) -> what it tells."""

FUNCOL: Final = "funcol."
"""Prefix of functional collectives; DTensor calls them, so they name a cause only where nothing else does."""

_PUBLIC_APIS: Final = ("distributed/distributed_c10d.py", "distributed/_functional_collectives.py")
"""Functions here are what a user calls; the outermost of them names the cause."""


_PUBLIC_IN_ALL_BUT_NAME: Final = ("_coalescing_manager",)


def _reader_of(path: str, function: str) -> Reader | None:
    if path.startswith("optim/") and function == "step":
        return _optimizer
    public = not function.startswith("_") or function in _PUBLIC_IN_ALL_BUT_NAME
    if path in _PUBLIC_APIS and public:
        return _api(f"{FUNCOL if 'functional' in path else ''}{function}", issues=True)
    return _READERS.get((path, function)) or _READERS.get((path, "*"))


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of a code object; kept so that its id cannot be reused."""

    code: CodeType
    reader: Reader | None
    place: str | None
    """`file.py` to show where the frame is the user's or a library's."""
    is_user: bool


_of_torch: dict[int, _Known] = {}
"""Code objects of torch itself: what they tell is the same in every session."""


def _remember(code: CodeType, path: str) -> _Known:
    reader = _reader_of(path[len(_TORCH) :].replace(os.sep, "/"), code.co_name)
    _of_torch[id(code)] = known = _Known(code, reader, None, False)
    return known


class Stack:
    """Walks stacks; remembers each code object it has met."""

    def __init__(self) -> None:
        self.known: dict[int, _Known] = {}
        self._lines: dict[tuple[int, int], str] = {}

    def classify(self, code: CodeType) -> _Known:
        """Find out what is to be known of a code object, and remember it."""
        path = code.co_filename
        if path.startswith(_TORCH):
            known = _of_torch.get(id(code)) or _remember(code, path)
        elif (inside := deepspeed_frames.path_inside(path)) is not None:
            reader = deepspeed_frames.reader_of(inside, code.co_name)
            known = _Known(code, reader, _short(path, os.getcwd()), False)
        elif path.startswith(_NOBODYS) or _is_generated(path):
            known = _Known(code, None, None, False)
        else:
            known = _Known(code, None, _short(path, os.getcwd()), not _is_library(path))
        self.known[id(code)] = known
        return known

    def _line(self, known: _Known, frame: FrameType) -> str:
        # Only the instruction is at hand: its line is found in a table that is read from its start.
        key = (id(known), frame.f_lasti)
        found = self._lines.get(key)
        if found is None:
            found = f"{known.place}:{frame.f_lineno} ({known.code.co_name})"
            self._lines[key] = found
        return found

    def reads_for_itself(self, frame: FrameType) -> bool:
        """Whether torch reads a value for its own purposes: an optimizer its count of steps, on the host."""
        known = self.known.get(id(frame.f_code)) or self.classify(frame.f_code)
        return known.place is None and frame.f_code.co_filename.startswith(_READS_FOR_ITSELF)

    def user_line(self, frame: FrameType | None) -> str | None:
        """Return the nearest line of the user's own code; None where there is none."""
        while frame is not None:
            known = self.known.get(id(frame.f_code)) or self.classify(frame.f_code)
            if known.is_user and known.place is not None:
                return self._line(known, frame)
            frame = frame.f_back
        return None

    def redistributed(self, frame: FrameType | None) -> torch.Tensor | None:
        """Return the local tensor that the nearest DTensor redistribution started from; None without one."""
        table = self.known
        while frame is not None:
            known = table.get(id(frame.f_code)) or self.classify(frame.f_code)
            if known.reader is _redistribute:
                found: torch.Tensor | None = frame.f_locals.get("local_tensor")
                return found
            frame = frame.f_back
        return None

    def cause(self, frame: FrameType | None, *, to_engine: bool = False, to_module: bool = False) -> Cause:
        """Return what the stack from `frame` outward says; all of it, unless told where to stop.

        `to_engine` stops at autograd's engine, for who knows the forward line from elsewhere.
        `to_module` stops once the nearest module and user line are known: outside of backward nothing
        further out says more about an operator.
        """
        cause = Cause()
        table = self.known
        while frame is not None:
            code = frame.f_code
            known = table.get(id(code))
            if known is None:
                known = self.classify(code)
            if known.reader is not None:
                known.reader(frame, cause)
            if known.place is not None:
                if known.is_user:
                    if cause.source is None:
                        cause.source = self._line(known, frame)
                elif cause.in_library is None and cause.source is None:
                    cause.in_library = self._line(known, frame)
            if to_module and cause.source is not None and cause.module is not None:
                break
            if to_engine and cause.phase is not None:
                break
            frame = frame.f_back
        if cause.source is None:
            cause.source = cause.in_library
        return cause


def _is_generated(path: str) -> bool:
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return _GENERATED in path or (bool(folder) and path.startswith(str(folder)))


def _is_library(path: str) -> bool:
    """Whether a file was installed: also where another environment's packages are on the path."""
    return path.startswith(_LIBRARIES) or any(f"{os.sep}{name}{os.sep}" in path for name in _PACKAGES)


@functools.lru_cache(maxsize=1024)
def _short(path: str, folder: str) -> str:
    """Return the path as a user would name it: below the working folder, else its last two parts."""
    if path.startswith("<"):
        return path
    relative = os.path.relpath(path, folder) if not _is_library(path) else path
    if relative.startswith(("..", os.sep)):
        return os.path.join(*path.split(os.sep)[-2:])
    return relative
