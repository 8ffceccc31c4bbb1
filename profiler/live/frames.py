"""Who asked for this operator: one walk up the Python stack, no hooks.

The stack at an operator tells its phase (the nearest of autograd's engine, a checkpoint's recompute, an
optimizer), its module (the nearest `nn.Module` call), the user's own line, and, for what DTensor or
FSDP2 inserted, from which placements to which and for which operator. Nothing has to be installed in
the model, so nothing can be left behind in it.
"""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Final

import torch

from shardtoll.profiler.live import deepspeed_frames, torch_frames
from shardtoll.profiler.live.cause import Cause, Reader

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
    reader = torch_frames.reader_of(path[len(_TORCH) :].replace(os.sep, "/"), code.co_name)
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
            if known.reader is torch_frames.redistribute:
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
