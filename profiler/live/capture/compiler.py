"""Keeps torch's compiler off our own code.

Between two compiled parts of a model Python runs eagerly, and the compiler looks at each frame that runs
there. Torch's own frames are on its list of ignored ones. Ours stand in for some of them while a session is
open. Compiled, they may raise errors that the training never would (`ProcessGroup` has methods that no graph
holds).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import torch
from torch.utils import _python_dispatch

from shardtoll.profiler.live.times.patches import Patches, patched

_OURS: Final = ("shardtoll.profiler.", "shardtoll.ledger.")
_below: set[int] = set()
"""Ids of code objects that are marked with all they call; modules keep them alive."""
_codes: dict[str, tuple[ModuleType, int, tuple[CodeType, ...]]] = {}
"""By name: the module, how many names it held, and its code: looking took a third of a short session."""


def _marking() -> tuple[Callable[[CodeType, Any], None], Any, Any] | None:
    """Return what marks a code object, the mark for it alone and that for all it calls; None without one."""
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    actions: Any = getattr(frames, "_FrameAction", None)
    if actions is None or not hasattr(frames, "set_code_exec_strategy"):
        return None
    strategy = frames._FrameExecStrategy
    alone, below = strategy(actions.SKIP, actions.DEFAULT), strategy(actions.SKIP, actions.SKIP)
    return frames.set_code_exec_strategy, alone, below


_MARKING: Final = _marking()


def can_skip_below() -> bool:
    """Whether `skip_below` has an effect with this torch."""
    return _MARKING is not None


def skip_below(code: CodeType) -> None:
    """Have the compiler leave this code alone and all that it calls."""
    if _MARKING is not None:
        mark, _, below = _MARKING
        mark(code, below)
        _below.add(id(code))


def skip_ours() -> None:
    """Have the compiler ignore every function of ours that is loaded by now; not the functions they call.

    Each session says so anew: `torch._dynamo.reset` takes the marks off code that the compiler has seen.
    """
    if _MARKING is None:
        return
    mark, alone, _ = _MARKING
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS):
            for code in _known_codes(name, module):
                if id(code) not in _below:
                    mark(code, alone)


def _known_codes(name: str, module: ModuleType) -> tuple[CodeType, ...]:
    """Return `codes_of` the module, looked for again if it holds more names than it did."""
    known = _codes.get(name)
    if known is None or known[0] is not module or known[1] != len(vars(module)):
        known = _codes[name] = (module, len(vars(module)), tuple(codes_of(module)))
    return known[2]


def patch_compiling() -> Callable[[], None]:
    """Have dispatch modes off while a frame is compiled; returns what undoes that.

    torch takes them off itself, except for the frames of a model in DistributedDataParallel. There, operators
    on the compiler's own tensors would reach the mode, which would end the training. Beneath a mode of the
    user's torch compiles nothing, and looks for it among the modes that are on: then they stay.
    """

    def patch(patches: Patches) -> None:
        wrapper = getattr(sys.modules.get("torch._dynamo.convert_frame"), "CatchErrorsWrapper", None)
        if hasattr(_python_dispatch, "_disable_current_modes"):
            patches.around(wrapper, "__call__", _without_modes)

    return patched(patch)


def _without_modes(original: Callable[..., Any]) -> Callable[..., Any]:
    # Older versions do not look at the modes that are on: they remember which were entered.
    are_others: Any = getattr(_python_dispatch, "any_torch_dispatch_mode_on_stack", bool)

    def compile_frame(*args: Any, **kwargs: Any) -> Any:
        if are_others():
            return original(*args, **kwargs)
        with _python_dispatch._disable_current_modes():
            return original(*args, **kwargs)

    return compile_frame


def codes_of(module: ModuleType) -> Iterator[CodeType]:
    """Yield the code of a module's functions, of its classes' methods and of what stands inside those."""
    # Decorators and generated methods bring in code that others share.
    files = (getattr(module, "__file__", None), "<string>")
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) == module.__name__:
            members = list(vars(value).values()) if isinstance(value, type) else [value]
            for member in members:
                yield from (code for code in _codes_in(member) if code.co_filename in files)


def _codes_in(member: object) -> Iterator[CodeType]:
    """Yield the code of a function, however it is wrapped: as a property, a class method, in a cache."""
    for wrapped in ("fget", "fset", "func", "__func__", "__wrapped__"):
        inner = getattr(member, wrapped, None)
        if isinstance(inner, FunctionType):
            yield from _nested(inner.__code__)
    if isinstance(member, FunctionType):
        yield from _nested(member.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
