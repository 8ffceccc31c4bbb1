"""The closures that optimizers call: a forward and a backward inside `step(closure)`, once or several times.

Lightning always passes one, LBFGS calls its own many times. The closure's own work is no update, and the
optimizer's gradients exist only once it has returned. A hook of torch's before `step` may replace its
arguments. So a wrapper replaces the closure for this call and notes when it began and ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch

from shardtoll.profiler.live.cause.frames import CLOSURE_FRAME

Told = Callable[[Any], None]
"""Called with the optimizer."""

_NAME: Final = "closure"
_SELF_AND_ONE: Final = 2


def has_closure(args: Any, kwargs: Any) -> bool:
    """Return whether an optimizer's `step` is called with a closure; `args` begin with the optimizer."""
    return _place(args, kwargs) is not None


def _place(args: Any, kwargs: Any) -> int | str | None:
    """Return where among the arguments the closure is; None without one."""
    if callable(kwargs.get(_NAME)):
        return _NAME
    return 1 if len(args) > 1 and callable(args[1]) and _takes_closure(type(args[0])) else None


def _takes_closure(kind: Any) -> bool:
    """Return whether the first argument of an optimizer's `step` is a closure, as far as its name shows it.

    It may be something else that can be called, as the model, whose attributes `step` reads.
    """
    try:
        parameters = list(inspect.signature(kind.step).parameters.values())
    except (AttributeError, TypeError, ValueError):
        return True
    if len(parameters) < _SELF_AND_ONE or parameters[1].kind is inspect.Parameter.VAR_POSITIONAL:
        return True
    return parameters[1].name == _NAME


class Closures:
    """Tells its listeners of each closure that an optimizer calls; of nested ones, of the outermost."""

    def __init__(self) -> None:
        self.begins: list[Told] = []
        self.ended: list[Told] = []
        self._depth = 0
        self.on_failure: Callable[[Exception], None] | None = None

    @property
    def inside(self) -> bool:
        """Whether a closure runs."""
        return self._depth > 0

    def wrapped(self, optimizer: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Return the arguments of `step` with the closure inside one of ours; None if there is none."""
        place = _place(args, kwargs)
        if place is None or torch.compiler.is_compiling():
            return None
        if isinstance(place, str):
            return args, kwargs | {place: self._around(optimizer, kwargs[place])}
        return (*args[:place], self._around(optimizer, args[place]), *args[place + 1 :]), kwargs

    def _around(self, optimizer: Any, closure: Callable[..., Any]) -> Callable[..., Any]:
        def optimizer_closure(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            if self._depth == 1:
                self._tell(self.begins, optimizer)
            try:
                return closure(*args, **kwargs)
            finally:
                if self._depth == 1:
                    self._tell(self.ended, optimizer)
                self._depth -= 1

        assert optimizer_closure.__name__ == CLOSURE_FRAME
        return optimizer_closure

    def _tell(self, listeners: list[Told], optimizer: Any) -> None:
        try:
            for listener in listeners:
                listener(optimizer)
        except Exception as error:  # noqa: BLE001 - the seam: a failure of ours must not kill training
            if self.on_failure is not None:
                self.on_failure(error)
