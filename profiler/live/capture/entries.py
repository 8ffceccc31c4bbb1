"""The doors through which Python hands collectives to C++, held open for us while a session lasts.

Python code of torch and of users issues collectives by two doors. One is the methods of `ProcessGroup`. The
other is the operators of a few namespaces under `torch.ops`, which functional collectives, DTensor and
compiled code call. While a session is open both are replaced by callables that report each call to the
session. They are put back on exit. Collectives that C++ issues by itself, as DDP's reducer does, pass
neither.

An operator called with fake tensors, or with those of a subclass, passes through unchanged. The subclass
calls it again with plain ones.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
import torch.distributed as dist

from shardtoll.profiler.live.cause.call import Call, is_ordinary
from shardtoll.profiler.live.cause.decode import DECODERS, arguments_of
from shardtoll.profiler.live.cause.methods import METHODS, MethodDecoder, method_decoder

Undo = Callable[[], None]

_WAIT: Final = "wait_tensor"
_NAMESPACES: Final[Mapping[str, str]] = {
    "_c10d_functional": "_c10d_functional",
    "_c10d_functional_autograd": "_c10d_functional",
    "_dtensor": "_dtensor",
    "symm_mem": "symm_mem",
}
"""Namespace whose operators Python calls -> the one whose decoders understand its arguments."""


class Listener(Protocol):
    """Gets calls, and makes them."""

    def collective(
        self, original: Callable[..., Any], decode: MethodDecoder, args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Make the call of a collective and return its result."""

    def wait(self, original: Callable[..., Any], args: Sequence[Any], kwargs: Any) -> Any:
        """Wait for the result of a functional collective and return it."""


def open_doors(listener: Listener) -> Undo:
    """Have the listener make every collective's call from now on; returns what puts everything back."""
    undo: list[Undo] = []

    def restore() -> None:
        for put_back in undo:
            put_back()

    try:
        _methods(listener, undo)
        _operators(listener, undo)
        return restore
    except BaseException:
        # An interrupt of the user's, half-way: nobody else would know what to undo.
        restore()
        raise


def _methods(listener: Listener, undo: list[Undo]) -> None:
    owner: Any = getattr(dist, "ProcessGroup", None) if dist.is_available() else None
    for name in METHODS if owner is not None else ():
        original = vars(owner).get(name)
        if original is not None:
            _patch_method(owner, name, original, listener, undo)


def _patch_method(owner: Any, name: str, original: Any, listener: Listener, undo: list[Undo]) -> None:
    bound = getattr(owner, name)
    decode = method_decoder(name)
    collective = listener.collective

    @functools.wraps(bound)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return collective(bound, decode, args, kwargs)

    def put_back() -> None:
        if vars(owner).get(name) is wrapper:
            setattr(owner, name, original)

    undo.append(put_back)
    setattr(owner, name, wrapper)


_LISTS: Final = frozenset((list, tuple))


class _Plain(dict[type, bool]):
    def __missing__(self, kind: type) -> bool:
        plain = not issubclass(kind, torch.Tensor) or is_ordinary(kind)
        self[kind] = plain
        return plain


_PLAIN: Final = _Plain()
"""Type -> whether a tensor of it is an ordinary one (or it is no tensor): its operators run at once."""


class _Door:
    """Stands in for the C++ callable of an operator; is its equal wherever torch looks it up.

    Copies of it are copies of the original: they may outlive the session.
    """

    __slots__ = ("__weakref__", "_make", "_original")

    def __init__(self, original: Any, make: Callable[[Sequence[Any], Any], Any]) -> None:
        self._original = original
        self._make = make

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Have the listener make the call, unless it is none of a plain tensor."""
        for value in args:
            kind = type(value)
            if not _PLAIN[type(value[0]) if kind in _LISTS and value else kind]:
                return self._original(*args, **kwargs)
        return self._make(args, kwargs)

    def __hash__(self) -> int:
        return hash(self._original)

    def __eq__(self, other: object) -> bool:
        return self is other or self._original == other

    def __getattr__(self, name: str) -> Any:
        if name in _Door.__slots__:
            # Not made yet: asking ourselves for what we stand in for would never end.
            raise AttributeError(name)
        return getattr(self._original, name)

    def __copy__(self) -> Any:
        return copy.copy(self._original)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self._original, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._original.__reduce_ex__(protocol)


def _operators(listener: Listener, undo: list[Undo]) -> None:
    for namespace, understood in _NAMESPACES.items():
        for name in (*DECODERS[understood], _WAIT):
            packet: Any = getattr(getattr(torch.ops, namespace), name, None)
            if packet is None:
                continue
            overloads = [getattr(packet, overload) for overload in packet.overloads()]
            for operator in (packet, *overloads):
                if hasattr(operator, "_op"):
                    schema = operator if operator is not packet else overloads[0]
                    _patch_operator(operator, schema, understood, name, listener, undo)


def _patch_operator(
    operator: Any, schema: Any, namespace: str, name: str, listener: Listener, undo: list[Undo]
) -> None:
    original = operator._op
    if name == _WAIT:
        make = functools.partial(listener.wait, original)
    else:
        decode = DECODERS[namespace][name]

        def decoded(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Call, ...]:
            return decode(arguments_of(schema, args, dict(kwargs)))

        make = functools.partial(listener.collective, original, decoded)
    door = _Door(original, make)

    def put_back() -> None:
        if operator._op is door:
            operator._op = original

    undo.append(put_back)
    operator._op = door
