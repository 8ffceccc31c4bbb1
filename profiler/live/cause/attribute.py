"""From a stack's raw facts to a place in the user's program."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from types import FrameType
from typing import Any, Final

import torch
from torch import nn

from shardtoll.ledger.records import ddp_causes
from shardtoll.profiler.live.cause.call import Tensors
from shardtoll.profiler.live.cause.callsite import LEAF
from shardtoll.profiler.live.cause.cause import Cause
from shardtoll.profiler.live.cause.frames import Stack, in_backward
from shardtoll.profiler.live.cause.groups import Groups
from shardtoll.profiler.live.cause.module_names import Names, clean
from shardtoll.profiler.live.cause.pending import Place
from shardtoll.profiler.live.cause.torch_frames import FUNCOL, operand_text

_MANY: Final = 3
"""Parameters named one by one; of more, the first and how many follow."""
_LATE: Final = ("optimizer", "other")
"""Phases in which gradients are whole, and a tensor may be one or a parameter's values."""
_MAX_JUMP: Final = 64


def placements_text(spec: Any) -> str | None:
    """Return a DTensorSpec's placements as `(Shard(0), Replicate())`."""
    placements = getattr(spec, "placements", None)
    return None if placements is None else "(" + ", ".join(_placement(p) for p in placements) + ")"


def _placement(placement: Any) -> str:
    if getattr(placement, "reduce_op", None) is not None:
        # Partial's private kinds, as an embedding's, print all that they hold.
        return f"{type(placement).__name__.lstrip('_')}({placement.reduce_op})"
    text = repr(placement)
    # Shard prints as Shard(dim=0), Partial as Partial(sum): one short form for both.
    return text.replace("dim=", "")


def _listed(names: list[str]) -> str | None:
    """Return a few names, or the first of many and their number; None for no name."""
    if len(names) <= _MANY:
        return ", ".join(names) or None
    return f"{names[0]}, ... ({len(names)} parameters)"


class OperandSpecs:
    """The input specs of the matmul-like DTensor operator now being run, which show what is replicated.

    The placements before and after a redistribution are in `Cause.from_spec` and `Cause.to_spec`.

    If DTensor runs the local operator on its inputs as they are, it does so from C++ and leaves no Python
    frame. The specs are those of the call seen just before. If it redistributes first, its own frame has the
    specs that the operator really runs on.
    """

    def __init__(self) -> None:
        self._func: Any = None
        self._specs: list[Any] = []

    def note(self, func: Any, args: Any) -> None:
        """Note a matmul-like operator called on tensor subclasses, about to be taken apart."""
        self._func = func
        self._specs = [spec for spec in (getattr(arg, "_spec", None) for arg in args) if spec is not None]

    def of(self, func: Any, cause: Cause) -> list[Any]:
        """Return the input specs of a local operator that has run; empty if no DTensor is behind it."""
        pending, self._func = self._func, None
        sharding = getattr(cause.dtensor_info, "output_sharding", None)
        if sharding is not None and sharding.needs_redistribute:
            schema = getattr(sharding, "redistribute_schema", None)
            return [spec for spec in getattr(schema, "args_schema", ()) if hasattr(spec, "placements")]
        return self._specs if pending is func else []


def replicated_dims(specs: list[Any]) -> str | None:
    """Return the mesh dims on which every spec is Replicate, comma separated; None if there is none."""
    if not specs:
        return None
    dims = [
        dim
        for dim, placement in enumerate(specs[0].placements)
        if placement.is_replicate() and all(spec.placements[dim].is_replicate() for spec in specs[1:])
    ]
    if not dims:
        return None
    mesh = specs[0].mesh
    names = mesh.mesh_dim_names or tuple(str(dim) for dim in range(mesh.ndim))
    return ",".join(names[dim] for dim in dims if mesh.size(dim) > 1) or None


def _is_reducers(node: Any) -> bool:
    """Whether DDP's reducer may be what runs in a backward: where a gradient is finished, or at its end."""
    return node is None or bool(node._sequence_nr() == LEAF)


def _of_whole_numbers(tensors: Tensors) -> bool:
    return bool(tensors) and not any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)


def _is_bare(module: nn.Module) -> bool:
    """Whether the module holds neither modules nor parameters, as a loss or an activation."""
    children = (*module._modules.values(), *module._parameters.values())
    return all(each is None for each in children)


class Attribution:
    """Turns stacks into places; remembers which forward line each autograd node came from."""

    def __init__(self, names: Names, groups: Groups) -> None:
        self._names = names
        self._groups = groups
        self._thread = get_ident()
        self.stack = Stack()
        self.specs = OperandSpecs()
        self.met_root: Callable[[], None] | None = None
        """Called when the names of a further module tree are known."""
        self._nodes: dict[int, tuple[str | None, str | None, str | None, str | None]] = {}
        self.next_node = torch._C._autograd._get_sequence_nr()
        """The sequence number that the next autograd node had when last looked at."""
        self._backward_ran = False
        self._gradients_noted = False
        self._called_at: dict[str, tuple[str | None, str | None, bool]] = {}
        """Module that FSDP gathers -> the line that calls it, and whether that module itself was on it."""
        self._strangers: dict[int, tuple[weakref.ref[nn.Module], str | None]] = {}
        """Modules of no root in this step, by their ids, and what they are called."""
        self.carried: set[str] = set()
        """Parameters in calls that hold more of them than a place names."""
        self.saw_reducer = False
        """Whether a collective of DDP's reducer was placed."""
        self._looked_through: set[int] = set()
        """Ids of the roots whose names were taken in this step."""

    def new_step(self) -> None:
        """Forget what belongs to the last step: nodes, addresses."""
        self._nodes.clear()
        self._strangers.clear()
        self._looked_through.clear()
        self._names.forget_addresses()
        self._backward_ran = self._gradients_noted = False

    def note_nodes(self, next_node: int, frame: FrameType | None) -> None:
        """Note that the autograd nodes made since the last call belong to the line now running, if any."""
        if frame is None or get_ident() != self._thread:
            # A thread of autograd's, which counts nodes of its own.
            return
        first = max(self.next_node, next_node - _MAX_JUMP)
        self.next_node = next_node
        cause = self.stack.cause(frame, to_module=True, moves=False)
        place = (self._module(cause, frame), cause.source, cause.api, cause.library)
        for node in range(first, next_node):
            self._nodes[node] = place

    def _before(self, fsdp_group: Any) -> str:
        """Return what our names have before FSDP2's, which begin at the outermost module it was given."""
        theirs = clean(getattr(fsdp_group, "_module_fqn", None) or "")
        modules = getattr(fsdp_group, "modules", ())
        ours = (self._names.module(modules[0]) if modules else None) or ""
        if not ours.endswith(theirs):
            return ""
        return ours.removesuffix(theirs) if theirs else f"{ours}." if ours else ""

    def _module(self, cause: Cause, frame: FrameType | None) -> str | None:
        if cause.module_name is not None:
            return (self._before(cause.fsdp_group) + clean(cause.module_name)).rstrip(".")
        if cause.fsdp1_handle is not None:
            return self._names.module(cause.fsdp1_handle._fully_sharded_module)
        if cause.graph is not None:
            name = self._names.module(cause.graph)
            if name is not None:
                return name
        if cause.module is None:
            return None
        name = self._names.module(cause.module)
        return name if name is not None else self._stranger(cause.module, frame)

    def _stranger(self, module: nn.Module, frame: FrameType | None) -> str | None:
        """Return the name of a module that no known root had: made just for this call, or new in the model.

        Each is looked for once per step, and each root looked through once per step.
        """
        held = self._strangers.get(id(module))
        if held is not None and held[0]() is module:
            return held[1]
        # The walk may have stopped at the nearest module: names come from the outermost one.
        root = self.stack.cause(frame).root
        root = module if root is None else root
        name: str | None = None
        if self._names.roots and _is_bare(root):
            # A loss, say, often made anew for each call: it has a name, but is not kept for it.
            name = type(root).__name__ if root is module else None
        elif id(root) not in self._looked_through:
            self._looked_through.add(id(root))
            if self._names.add_root(root):
                self._groups.note_tensors(parameter for _, parameter in self._names.parameters())
                if self.met_root is not None:
                    self.met_root()
            name = self._names.module(module)
            if name is not None:
                return name
        self._strangers[id(module)] = weakref.ref(module), name
        return name

    def graph_of(self, roots: Any) -> int:
        """Return a number for the parameters that a backward from these tensors will reach."""
        return hash(tuple(map(self._names.parameter, leaves(roots))))

    def backward_ran(self) -> None:
        """Note that a backward is over, even if nothing was placed in it."""
        self._backward_ran = True

    def _phase(self, cause: Cause, in_backward: bool) -> str:
        if in_backward:
            self._backward_ran = True
            self._gradients_noted = False
            return "recompute" if cause.phase == "recompute" else "backward"
        if cause.phase is not None:
            return cause.phase
        if cause.module is not None:
            self._backward_ran = False
            return "forward"
        return "forward" if torch.is_grad_enabled() and not self._backward_ran else "other"

    def place(self, frame: FrameType | None, inputs: Tensors = ()) -> tuple[Place, Cause]:
        """Return where the operator called from `frame` came from, and the stack's raw facts."""
        backward = in_backward()
        node = torch._C._current_autograd_node() if backward else None
        number = node._sequence_nr() if node is not None else None
        forward = self._nodes.get(number) if number is not None else None
        cause = self.stack.cause(frame, to_engine=forward is not None, to_module=not backward)
        for spec in (cause.from_spec, cause.to_spec):
            mesh = getattr(spec, "mesh", None)
            if mesh is not None:
                self._groups.note_mesh(mesh)
        phase = self._phase(cause, backward)
        module = self._module(cause, frame)
        source, api, library = cause.source, cause.api, cause.library
        parameter = self._parameter(cause, phase, inputs)
        by_tensor = cause.fsdp_group is None and cause.fsdp1_handle is None and cause.parameter_name is None
        if cause.redistributed is not None and backward:
            # The node shows which parameter's gradient DTensor moves.
            by_tensor = False
        if phase == "backward":
            if cause.issuer is None and api is None and _is_reducers(node) and _of_whole_numbers(inputs):
                # Gradients are none: it is the map of the parameters that this backward reached.
                module, parameter, api = None, None, ddp_causes.USED_PARAMETERS
            elif number == LEAF:
                variable = getattr(node, "variable", None)
                parameter = parameter or self._names.parameter(variable)
                # Nothing in Python asked, and a gradient was just finished: DDP's reducer.
                api = api if cause.issuer else ddp_causes.REDUCER
                self.saw_reducer |= not cause.issuer
            elif forward is not None:
                forward_module, forward_source, forward_api, forward_library = forward
                module = module if module is not None else forward_module
                if forward_source:
                    source, library = forward_source, forward_library
                if api is None or api.startswith(FUNCOL):
                    api = forward_api or api
        if module is not None and (cause.fsdp_group is not None or cause.fsdp1_handle is not None):
            source, library = self._line_of_call(module, source, library, cause, phase)
        if module is None and parameter is not None and "," not in parameter:
            module = self._names.owner(parameter)
        asked_by = api
        if cause.implicit:
            asked_by = None if cause.dtensor_op is None else str(cause.dtensor_op)
        place = Place(
            phase=phase,
            module=module,
            parameter=parameter,
            source=source,
            caused_by_op=asked_by,
            implicit=cause.implicit,
            placements_from=placements_text(cause.from_spec),
            placements_to=placements_text(cause.to_spec),
            operand=None if cause.operand is None else operand_text(*cause.operand),
            library=library,
            of_values=self._of_values(phase, cause, inputs) if by_tensor and parameter is not None else None,
            reshards=getattr(cause.fsdp_group, "_reshard_after_forward", None),
            by_tensor=by_tensor and parameter is not None,
            by_node=phase == "backward" and forward is not None and number != LEAF,
        )
        return place, cause

    def name_by_tensor(self, inputs: Tensors, like: Place) -> tuple[str | None, bool | None]:
        """Return the parameter whose values or gradient the tensors are, and `of_values`, as `place` would.

        `like` is what they were in a step before: that parameter is looked at first.
        """
        late = like.phase in _LATE
        if like.parameter is not None and len(inputs) == 1:
            holds = self._names.is_at(like.parameter, inputs[0], gradient=late)
            if holds is not None:
                return like.parameter, holds == "values" if late else None
        name = self._at_addresses(like.phase, inputs)
        if name is None and like.phase == "backward":
            node = torch._C._current_autograd_node()
            name = self._names.parameter(getattr(node, "variable", None))
        return name, self._names.are_values(inputs) if late and name is not None else None

    def _line_of_call(
        self, module: str, source: str | None, library: str | None, cause: Cause, phase: str
    ) -> tuple[str | None, str | None]:
        """Return the line, and the library's that it called, that call the module FSDP gathers or reduces.

        In backward, and where a module before it prefetches it, the stack shows another module's line.
        """
        itself = (
            phase == "forward" and cause.module is not None and self._names.module(cause.module) == module
        )
        called_at = self._called_at.get(module)
        if itself or (phase == "forward" and called_at is None):
            # A module that is called from several lines, as for validation, was called last from this one.
            self._called_at[module] = called_at = (source, library, itself)
        return (source, library) if called_at is None else called_at[:2]

    def is_reducers(self, frame: FrameType) -> bool:
        """Whether DDP's reducer runs the operator called now, `frame` being the nearest in Python.

        It looks up which parameters were used, in memory of the host: nobody waits for a device.
        """
        if not in_backward() or not self.stack.is_engine(frame):
            return False
        return _is_reducers(torch._C._current_autograd_node())

    def place_elsewhere(self, frame: FrameType) -> Place:
        """Return where an operator of another thread than the training's came from.

        Its stack begins with the thread: what started that is not on it, and neither is autograd's state.
        """
        cause = self.stack.cause(frame)
        source = None if cause.source == cause.in_library else cause.source
        return Place(phase=cause.phase or "other", source=source, caused_by_op=cause.api)

    def _parameter(self, cause: Cause, phase: str, inputs: Tensors) -> str | None:
        if cause.parameter_name is not None:
            return self._before(cause.fsdp_group) + clean(cause.parameter_name)
        if cause.parameters:
            held = (self._names.parameter(parameter) for parameter in cause.parameters)
            return _listed([name for name in held if name is not None])
        if cause.fsdp_group is not None:
            fqns = [getattr(param, "_param_fqn", None) for param in cause.fsdp_group.fsdp_params]
            before = self._before(cause.fsdp_group)
            return _listed([before + clean(name) for name in fqns if name])
        if cause.fsdp1_handle is not None:
            unit = self._names.module(cause.fsdp1_handle._fully_sharded_module)
            names: tuple[str, ...] = getattr(cause.fsdp1_handle.flat_param, "_fqns", ())
            return _listed([clean(f"{unit}.{name}" if unit else name) for name in names])
        return self._at_addresses(phase, inputs if cause.redistributed is None else (cause.redistributed,))

    def _of_values(self, phase: str, cause: Cause, inputs: Tensors) -> bool | None:
        if phase not in _LATE:
            return None
        return self._names.are_values(inputs if cause.redistributed is None else (cause.redistributed,))

    def _at_addresses(self, phase: str, tensors: Sequence[Any]) -> str | None:
        if phase in _LATE and not self._gradients_noted:
            self._names.note_gradients()
            self._gradients_noted = True
        named = (self._names.at_address(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor))
        names = list(dict.fromkeys(name for name in named if name is not None))
        if len(names) > _MANY:
            self.carried.update(names)
        return _listed(names)


_MOST: Final = 4096
"""Nodes that are looked at: enough to distinguish branches, and no more than some ms."""


def leaves(roots: Any) -> list[torch.Tensor]:
    """Return the leaves that a backward from a tensor, or from several, adds to, in a fixed order."""
    to_come: list[Any] = [
        root.grad_fn
        for root in ((roots,) if isinstance(roots, torch.Tensor) else roots)
        if isinstance(root, torch.Tensor) and root.grad_fn is not None
    ]
    seen = set(to_come)
    reached: list[torch.Tensor] = []
    while to_come:
        node = to_come.pop()
        following = node.next_functions
        if not following:
            variable = getattr(node, "variable", None)
            if variable is not None:
                reached.append(variable)
        for each, _ in following:
            if each is not None and each not in seen and len(seen) < _MOST:
                seen.add(each)
                to_come.append(each)
    return reached
