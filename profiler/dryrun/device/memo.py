"""Results of operators on fake tensors, remembered: their shapes follow from those of the arguments.

torch has such a memory too. It serves symbolic shapes and many devices. A look-up in it costs as much as most
of the rest of a dry run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_NAMESPACES: Final = ("aten", "prims", "fsdp")
"""Whose operators give the same shapes for the same shapes; those of others may do anything."""
_TAGS: Final = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_NEVER: Final = (
    *("aten::lift", "aten::lift_fresh", "aten::lift_fresh_copy", "aten::set_", "aten::resize_"),
    *("aten::resize_as_", "aten::_resize_output_", "aten::set_data"),
)
"""Operators that change their arguments, or return anything else than fake tensors."""
_PLAIN: Final = (int, float, bool, str, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
_MOST: Final = 1 << 16
"""Results that are remembered; a program whose shapes never repeat fills no memory."""
_resize: Final = torch.UntypedStorage.resize_
"""torch's own function, which notifies nobody."""

Plan = Callable[[list[Any]], Any]
"""Makes the result from the tensors given."""


class Memo:
    """Runs operators, and makes from memory their results for the same shapes."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._plans: dict[int, tuple[Any, dict[Any, Plan | None]]] = {}
        """Id of an operator -> itself, and by its arguments how its result is made; None: it never is."""
        self._count = 0

    def takes(self, func: Any) -> bool:
        """Whether results of the operator are remembered."""
        schema = func._schema
        return (
            schema.name.partition("::")[0] in _NAMESPACES
            and schema.name not in _NEVER
            and not any(tag in func.tags for tag in _TAGS)
        )

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the operator's result; `takes` holds for it."""
        given: list[Any] = []
        try:
            # For whole numbers and a float torch takes the default type.
            key = self._key(args, given), self._key_of_names(kwargs, given), torch.get_default_dtype()
        except _Unknown:
            return func(*args, **kwargs)
        if not given:
            return func(*args, **kwargs)
        entry = self._plans.get(id(func))
        if entry is None:
            entry = self._plans[id(func)] = func, {}
        plans = entry[1]
        plan = plans.get(key, _NEW)
        if plan is None:
            return func(*args, **kwargs)
        if plan is not _NEW:
            return plan(given)
        result = func(*args, **kwargs)
        if self._count < _MOST:
            self._count += 1
            after: list[Any] = []
            same = (self._key(args, after), self._key_of_names(kwargs, after)) == key[:2]
            plans[key] = self._plan(given, result) if same else None
        return result

    def _key_of_names(self, kwargs: Any, given: list[Any]) -> Any:
        if not kwargs:
            return None
        return tuple((name, self._key((value,), given)) for name, value in kwargs.items())

    def _key(self, values: Any, given: list[Any]) -> Any:
        """Return the values that the shapes of the result depend on; appends the tensors among them."""
        key: list[Any] = []
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if (
                    value.fake_mode is not self._mode
                    or value.constant is not None
                    or value.layout is not torch.strided
                    or value.is_neg()
                    or (dtype := value.dtype).is_complex
                ):
                    raise _Unknown
                given.append(value)
                key.append((value.shape, value.stride(), value.storage_offset(), dtype, value.fake_device))
            elif value is None:
                key.append(None)
            elif kind in _PLAIN:
                key.append((kind, value))
            elif kind is list or kind is tuple or kind is torch.Size:
                key.append((kind, self._key(value, given)))
            else:
                raise _Unknown
        return tuple(key)

    def _plan(self, given: list[Any], result: Any) -> Plan | None:
        """Return how the same result is made again; None: it cannot be."""
        if isinstance(result, (list, tuple)):
            if type(result) not in (list, tuple):
                return None
            planned = [self._plan_of_one(given, part) for part in result]
            parts = [plan for plan in planned if plan is not None]
            if len(parts) < len(planned) or _share(result, given):
                return None
            made: Any = type(result)
            return lambda tensors: made([part(tensors) for part in parts])
        return self._plan_of_one(given, result)

    def _plan_of_one(self, given: list[Any], made: Any) -> Plan | None:
        if made is None:
            return lambda _: None
        same = [place for place, tensor in enumerate(given) if made is tensor]
        if same:
            first = same[0]
            return None if len(same) > 1 else lambda tensors: tensors[first]
        if type(made) is not FakeTensor or not self._is_simple(made):
            return None
        shape, stride, offset, dtype = tuple(made.shape), made.stride(), made.storage_offset(), made.dtype
        state, device = dict(made.__dict__), made.fake_device
        fake = _maker(device, state, self._mode)
        address = _storage(made)._cdata
        bases = [place for place, tensor in enumerate(given) if _storage(tensor)._cdata == address]
        if bases:
            base = bases[0]

            def view(tensors: list[Any]) -> Any:
                empty = torch.empty(0, dtype=dtype, device="meta")
                storage = _storage(tensors[base])
                nbytes = storage.nbytes()
                view = fake(empty.set_(storage, offset, shape, stride))
                if storage.nbytes() != nbytes:
                    # FSDP has freed it, which a view leaves so; `set_` makes it as large as the view.
                    _resize(storage, nbytes)
                return view

            # With two bases, nothing shows which one a view belongs to when next they are not the same.
            return view if len(bases) == 1 else None

        def fresh(_: list[Any]) -> Any:
            return fake(torch.empty_strided(shape, stride, dtype=dtype, device="meta"))

        if offset or _storage(fresh(given)).nbytes() != _storage(made).nbytes():
            return None
        return fresh

    def _is_simple(self, made: Any) -> bool:
        """Whether nothing but its shape distinguishes a tensor from others."""
        if made.layout is not torch.strided or made.dtype.is_complex or made.is_neg() or made.requires_grad:
            return False
        return all(
            value is None or value is self._mode or isinstance(value, (bool, int, torch.device))
            for value in made.__dict__.values()
        )


class _Unknown(Exception):
    """A value that may change the result in ways beyond its shape."""


def _new(_: list[Any]) -> Any:
    raise AssertionError


_NEW: Final[Plan] = _new


def _storage(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()


def _share(results: Any, given: list[Any]) -> bool:
    """Whether two results are views of one storage that none of the given tensors has."""
    before = {_storage(tensor)._cdata for tensor in given}
    addresses = [_storage(part)._cdata for part in results if isinstance(part, torch.Tensor)]
    fresh = [address for address in addresses if address not in before]
    return len(set(fresh)) != len(fresh)


def _maker(
    device: torch.device, state: dict[str, Any], mode: FakeTensorMode
) -> Callable[[torch.Tensor], Any]:
    """Return a function that makes a fake tensor as torch did, without repeating its checks."""
    make: Any = torch.Tensor._make_subclass
    asks = "warn_deprecated" if mode._allow_unsafe_data_ptr_access else "throw"
    guard: Any = getattr(torch._C, f"_set_{asks}_on_mutable_data_ptr")

    def fake(empty: torch.Tensor) -> Any:
        made = make(FakeTensor, empty, False, dispatch_device=True, device_for_backend_keys=device)
        guard(made)
        made.__dict__.update(state)
        return made

    return fake
