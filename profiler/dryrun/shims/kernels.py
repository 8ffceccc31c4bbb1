"""Packages of kernels for GPUs that this machine does not have: a program may import them, and run none of
them.

Triton and flash-attn need CUDA to install. Programs import them at their top for kernels that a given job may
never launch. A launch ends the dry run in one line that names the kernel. A program that works without a
missing package does so here too.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final, NoReturn

from shardtoll.profiler.dryrun.device.errors import user_line
from shardtoll.profiler.dryrun.shims.imports import can_do_without
from shardtoll.profiler.dryrun.shims.playing import Playing
from shardtoll.profiler.dryrun.shims.replaced import Replaced
from shardtoll.profiler.live.cause.frames import Stack

_PACKAGES: Final = ("triton", "flash_attn")
_LANGUAGES: Final = ("triton",)
"""Packages that kernels are written in: their functions are called when a program is imported."""


def replace_kernels(shim: Playing, replaced: Replaced) -> None:
    """Have the program's own files import packages of kernels that are not installed."""
    finder = _Finder(shim)
    sys.meta_path.append(finder)
    replaced.afterwards(finder.remove)


class _Finder(MetaPathFinder, Loader):
    """Asked last, so that a package that is installed comes first."""

    def __init__(self, shim: Playing) -> None:
        self._shim = shim
        self._stack = Stack()
        self._made: list[str] = []

    def find_spec(
        self, fullname: str, _: Sequence[str] | None = None, __: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a stand-in's, if the program itself asks: libraries do without what they do not find."""
        package = fullname.partition(".")[0]
        if package not in _PACKAGES or not self._asked_by_program():
            return None
        if can_do_without(sys._getframe(1), self._is_users):
            what = f"{package} is not installed here, and the program does without it"
            self._shim.guessed[what, user_line(sys._getframe(1))] += 1
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def _asked_by_program(self) -> bool:
        frame = sys._getframe(2)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back  # type: ignore[assignment]
        return frame is not None and self._is_users(frame)

    def _is_users(self, frame: FrameType) -> bool:
        return self._stack.classify(frame.f_code).is_user

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stand-in."""
        if spec.name in _LANGUAGES:
            _let_torch_look()
        self._made.append(spec.name)
        made = _Absent(spec.name)
        # Code that compares versions takes it for one too old.
        vars(made)["__version__"] = "0.0.0"
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""

    def remove(self) -> None:
        """Have programs import them no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        for name in self._made:
            sys.modules.pop(name, None)


def _let_torch_look() -> None:
    """Have torch find out now that there is no Triton: it looks once, and would take the stand-in."""
    for name in ("torch.utils._triton", "torch._inductor.runtime.triton_compat"):
        with contextlib.suppress(ImportError):
            looking: Any = importlib.import_module(name)
            getattr(looking, "has_triton", bool)()


class _Absent(ModuleType):
    """Stands for a module; everything in it is a kernel, or a part of one."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self.__name__}.{name}")


class _Kernel:
    """Stands for the functions of a package of kernels."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self._name}.{name}")

    def __call__(self, *args: Any, **_: Any) -> Any:
        """Define a kernel of the program's; any other call would run one."""
        if self._name.partition(".")[0] not in _LANGUAGES:
            _refuse(self._name)
        defined = args[0] if args else None
        if type(defined) is FunctionType:
            return _Kernel(f"triton.{defined.__name__}")
        return defined if type(defined) is _Kernel else self

    def __getitem__(self, _: Any) -> Callable[..., NoReturn]:
        """Return what launches the kernel on a grid."""
        return lambda *_, **__: _refuse(self._name)


def _refuse(name: str) -> NoReturn:
    package, _, kernel = name.partition(".")
    raise NotImplementedError(f"{package}'s kernel {kernel} has no result without numbers, nor a price")
