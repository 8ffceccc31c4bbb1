"""Fully qualified names of modules and parameters, as the user would write them.

With a model given, names come from it. Without one, the outermost module seen on the stack becomes
a root and its names are taken from there on.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

_WRAPPERS: Final = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
"""Attributes that only wrappers have: torch.compile, activation checkpointing, FSDP1."""
_PLAIN: Final = (torch.Tensor, nn.Parameter)
"""Types of nearly all tensors, recognized at once: asking for a class's instances takes longer."""
_NO_ADDRESS: Final[tuple[type, ...]] = tuple(
    kind for kind in (FakeTensor, getattr(nn.parameter, "UninitializedTensorMixin", None)) if kind is not None
)
"""Types of tensors that seem to have memory: fake ones, and those of a lazy module that has not run yet."""
_NOWHERE: Final = (0, 0)
_MOST_ROOTS: Final = 32
"""Outermost modules whose names are kept, and they with them."""
At = Literal["values", "gradient"]


@functools.lru_cache(maxsize=4096)
def clean(name: str) -> str:
    """Return a bare name without the parts that only wrappers put in; see `clean_name` for more."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def clean_name(root: nn.Module, name: str) -> str:
    """Return a fully qualified name of `root` without the parts that wrappers added.

    `module` is dropped only below DistributedDataParallel, DataParallel and DeepSpeed's engines: a user
    may have a submodule of that name.
    """
    kept: list[str] = []
    module: nn.Module | None = root
    for part in name.split(".") if name else ():
        if not (part in _WRAPPERS or (part == "module" and _wraps(module))):
            kept.append(part)
        child = getattr(module, part, None)
        module = child if isinstance(child, nn.Module) else None
    return ".".join(kept)


def _wraps(module: nn.Module | None) -> bool:
    """Whether the module keeps the user's as its attribute `module`."""
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return True
    # DeepSpeed is not imported for this: if an engine exists, its class shows it.
    return any(base.__name__ == "DeepSpeedEngine" for base in type(module).__mro__)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a DTensor's local tensor, another tensor itself."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def address_of(tensor: torch.Tensor) -> int:
    """Return where the tensor's values begin, 0 where that is no one place: fake, meta, lazy, sparse ones."""
    plain = type(tensor) in _PLAIN
    if (not plain and isinstance(tensor, _NO_ADDRESS)) or tensor.layout is not torch.strided:
        return 0
    return tensor.data_ptr()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where the tensor's values begin, as a flat buffer does with its first, and their bytes."""
    address = address_of(tensor)
    return (address, tensor.nbytes) if address else _NOWHERE


def _tree(root: nn.Module) -> Iterator[nn.Module]:
    """Return the modules in torch's order, each once; torch's own way makes the name of each on the way."""
    seen: set[int] = set()
    to_come = [root]
    while to_come:
        module = to_come.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            to_come += [child for child in reversed(module._modules.values()) if child is not None]


class Names:
    """Maps modules and parameters to names; keeps the modules alive while a session is open."""

    def __init__(self, model: nn.Module | None) -> None:
        self.roots: list[nn.Module] = []
        self._modules: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        self._holders: dict[str, tuple[weakref.ref[nn.Module], str]] = {}
        """Name of a parameter -> the module that has it, and as what. Torch swaps no tensor that a weak
        reference is held to, so there is none to parameters."""
        self._by_address: dict[tuple[int, int], str] = {}
        self._grads_by_address: dict[tuple[int, int], str] = {}
        self._tree: list[nn.Module] = []
        """All modules of the roots, as they were when first asked for in the step; empty until then."""
        if model is not None:
            self.add_root(model)

    def add_root(self, root: nn.Module) -> bool:
        """Take the names of a module tree; a second root's names start with its class.

        A root that is known already is looked through for what it has got since. Returns whether names were
        taken. If there are very many roots, the last are not taken: roots made anew in each step would be
        kept alive.
        """
        first = not self.roots or root is self.roots[0]
        prefix = "" if first else f"{type(root).__name__}."
        if not any(root is each for each in self.roots):
            if len(self.roots) >= _MOST_ROOTS:
                return False
            self.roots.append(root)
        for name, module in root.named_modules(remove_duplicate=False):
            self._modules.setdefault(id(module), (prefix + clean_name(root, name)).rstrip("."))
        modules = dict(root.named_modules(remove_duplicate=False))
        for name, parameter in root.named_parameters(remove_duplicate=False):
            name_before = self._parameters.setdefault(id(parameter), prefix + clean_name(root, name))
            holder, _, attribute = name.rpartition(".")
            if holder in modules:
                self._holders.setdefault(name_before, (weakref.ref(modules[holder]), attribute))
        self._by_address = {}
        self._tree = []
        return True

    def forget(self) -> None:
        """Let go of the modules; names are not asked for any more."""
        self.roots.clear()
        self._modules.clear()
        self._parameters.clear()
        self._holders.clear()
        self.forget_addresses()

    def module(self, module: nn.Module) -> str | None:
        """Return the module's name; None if it belongs to no known root."""
        return self._modules.get(id(module))

    def parameter(self, tensor: Any) -> str | None:
        """Return the name of a parameter object; None if it is not a known one."""
        return self._parameters.get(id(tensor))

    def parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """Return every known parameter with its name, each once."""
        seen: set[int] = set()
        if not self._tree:
            self._tree = [module for root in self.roots for module in _tree(root)]
        for module in self._tree:
            for parameter in module._parameters.values():
                name = self._parameters.get(id(parameter))
                if name is None or parameter is None or id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                if self._is_held_as(name, parameter):
                    yield name, parameter
                else:
                    # It came where one was that is gone, and has that one's id.
                    del self._parameters[id(parameter)]

    def _is_held_as(self, name: str, parameter: nn.Parameter) -> bool:
        """Whether the module that had the parameter of this name has this one; true if none is known."""
        held = self._holders.get(name)
        module = None if held is None else held[0]()
        return held is None or (module is not None and module._parameters.get(held[1]) is parameter)

    def owner(self, parameter_name: str) -> str:
        """Return the name of the module that holds the parameter."""
        return parameter_name.rpartition(".")[0]

    def forget_addresses(self) -> None:
        """Drop the known memory addresses and places of modules: both may change between steps."""
        self._tree = []
        self._by_address = {}
        self._grads_by_address = {}

    def is_at(self, name: str, tensor: torch.Tensor, *, gradient: bool) -> At | None:
        """Which the tensor is: the parameter's (local) values, or its gradient if asked; None for neither.

        One parameter is looked at, where `at_address` first looks at all of them.
        """
        held = self._holders.get(name)
        module = None if held is None else held[0]()
        if held is None or module is None:
            return None
        # TorchScript's wrapper of them has no `get`; asking the module itself would run torch's Python.
        parameters = module._parameters
        parameter = parameters[held[1]] if held[1] in parameters else None  # noqa: SIM401
        address = address_of(tensor)
        if parameter is None or not address:
            return None
        local = local_of(parameter)
        if address == address_of(local):
            return "values" if tensor.nbytes == local.nbytes else None
        tensor_there = parameter.grad if gradient else None
        if tensor_there is None:
            return None
        local = local_of(tensor_there)
        return "gradient" if address == address_of(local) and tensor.nbytes == local.nbytes else None

    def at_address(self, tensor: torch.Tensor) -> str | None:
        """Return the parameter whose (local) values, or whose gradient's, the tensor's are; None for many."""
        if not self._by_address:
            for name, parameter in self.parameters():
                self._by_address[_span(local_of(parameter))] = name
        entry = self._at(tensor)
        return None if entry is None else entry[0]

    def _at(self, tensor: torch.Tensor) -> tuple[str, bool] | None:
        """Return the parameter that the tensor belongs to, and whether it is its values; None if there is
        none."""
        span = _span(tensor)
        if span is _NOWHERE:
            return None
        name = self._by_address.get(span)
        if name is not None:
            return name, True
        name = self._grads_by_address.get(span)
        if name is None or not self.is_at(name, tensor, gradient=True):
            # A cleared gradient's memory goes to the next that asks for as much.
            return None
        return name, False

    def are_values(self, tensors: Iterable[Any]) -> bool | None:
        """Whether all known tensors are a parameter's values; None if none is known."""
        entries = [self._at(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]
        kinds = [entry[1] for entry in entries if entry is not None]
        return all(kinds) if kinds else None

    def note_gradients(self) -> None:
        """Learn where the gradients lie now; call when backward is over.

        The places of parameters are learnt anew with them: FSDP2 had others in their place meanwhile.
        """
        self._by_address = {}
        self._grads_by_address = {}
        for name, parameter in self.parameters():
            self._by_address[_span(local_of(parameter))] = name
            if parameter.grad is not None:
                self._grads_by_address[_span(local_of(parameter.grad))] = name
