"""Who asked for this operator: one walk up the Python stack, no hooks.

The stack at an operator shows its phase: the nearest of autograd's engine, a checkpoint's recompute and an
optimizer. The nearest `nn.Module` call is its module; the user's own line is in it, too. For collectives that
DTensor or FSDP2 inserted it shows the placements before and after, and the operator. Nothing has to be
installed in the model, so nothing can be left behind in it.
"""

from __future__ import annotations

import functools
import os
import site
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import torch

from shardtoll.profiler.live.cause import deepspeed_frames, torch_frames
from shardtoll.profiler.live.cause.cause import Cause, Reader

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_HERE = str(Path(os.path.abspath(__file__)).parents[3]) + os.sep
_OURS: Final = tuple(
    os.path.join(_HERE, folder) + os.sep
    for folder in ("profiler", "analyzers", "ledger", "cli", "dashboards")
)
CLOSURE_FRAME: Final = "optimizer_closure"
"""Our function around the closure of an optimizer."""
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


def in_backward() -> bool:
    """Whether this thread is inside the autograd engine, which undoes what was set for the thread in it."""
    return bool(torch._C._current_graph_task_id() != -1)


def _nowhere() -> FrameType | None:
    return None


@dataclass(frozen=True, slots=True)
class _Known:
    """Facts about a code object; kept so that its id cannot be reused."""

    code: CodeType
    reader: Reader | None
    place: str | None
    """`file.py` to show if the frame is the user's or a library's."""
    is_user: bool
    in_package: str | None = None
    """`package/file.py` if the frame is of an installed library other than torch."""


_of_torch: dict[int, _Known] = {}
"""Code objects of torch itself: their facts are the same in every session."""


def _remember(code: CodeType, path: str) -> _Known:
    reader = torch_frames.reader_of(path[len(_TORCH) :].replace(os.sep, "/"), code.co_name)
    _of_torch[id(code)] = code_facts = _Known(code, reader, None, False)
    return code_facts


class Stack:
    """Walks stacks; remembers each code object it has met."""

    def __init__(self) -> None:
        self.known: dict[int, _Known] = {}
        self._lines: dict[tuple[int, int, str | None], str] = {}
        self.asks_from: Callable[[], FrameType | None] = _nowhere
        """The frame of the thread that asked for the backward on this thread; None on that thread itself."""

    def classify(self, code: CodeType) -> _Known:
        """Find out the facts about a code object, and remember them."""
        path = code.co_filename
        if path.startswith(_TORCH):
            code_facts = _of_torch.get(id(code)) or _remember(code, path)
        elif (inside := deepspeed_frames.path_inside(path)) is not None:
            reader = deepspeed_frames.reader_of(inside, code.co_name)
            code_facts = _Known(code, reader, _short(path, os.getcwd()), False, _in_package(path))
        elif code.co_name == CLOSURE_FRAME and path.startswith(_OURS):
            code_facts = _Known(code, torch_frames.closure, None, False)
        elif path.startswith(_NOBODYS) or _is_generated(path):
            code_facts = _Known(code, None, None, False)
        else:
            in_package = _in_package(path) if _is_library(path) else None
            code_facts = _Known(code, None, _short(path, os.getcwd()), not _is_library(path), in_package)
        self.known[id(code)] = code_facts
        return code_facts

    def _line(self, code_facts: _Known, place: str | None, frame: FrameType) -> str:
        # Only the instruction is at hand: its line is found in a table that is read from its start.
        key = (id(code_facts), frame.f_lasti, place)
        line = self._lines.get(key)
        if line is None:
            line = f"{place}:{frame.f_lineno} ({code_facts.code.co_name})"
            self._lines[key] = line
        return line

    def reads_for_itself(self, frame: FrameType) -> bool:
        """Whether torch reads a value for its own purposes: an optimizer its count of steps, on the host."""
        code_facts = self.known.get(id(frame.f_code)) or self.classify(frame.f_code)
        return code_facts.place is None and frame.f_code.co_filename.startswith(_READS_FOR_ITSELF)

    def is_engine(self, frame: FrameType) -> bool:
        """Whether autograd's engine is the nearest in Python: what runs now was called by C++."""
        code_facts = self.known.get(id(frame.f_code)) or self.classify(frame.f_code)
        return code_facts.reader is torch_frames.engine

    def engine_beyond(self) -> FrameType | None:
        """Return the frame of autograd's engine that began what runs on this thread, if on another thread.

        An accelerator's backward runs on threads of autograd's own, whose stacks begin there. The line that
        asked for it is on the training thread's stack, which waits in the engine.
        """
        frame = self.asks_from()
        while frame is not None and not self.is_engine(frame):
            frame = frame.f_back
        return frame

    def user_line(self, frame: FrameType | None) -> str | None:
        """Return the nearest line of the user's own code; None if there is none."""
        while frame is not None:
            code_facts = self.known.get(id(frame.f_code)) or self.classify(frame.f_code)
            if code_facts.is_user and code_facts.place is not None:
                return self._line(code_facts, code_facts.place, frame)
            frame = frame.f_back
        return None

    def redistributed(self, frame: FrameType | None) -> torch.Tensor | None:
        """Return the local tensor that the nearest DTensor redistribution started from; None without one."""
        table = self.known
        while frame is not None:
            code_facts = table.get(id(frame.f_code)) or self.classify(frame.f_code)
            if code_facts.reader is torch_frames.redistribute:
                local: torch.Tensor | None = frame.f_locals.get("local_tensor")
                return local
            frame = frame.f_back
        return None

    def cause(
        self,
        frame: FrameType | None,
        *,
        to_engine: bool = False,
        to_module: bool = False,
        moves: bool = True,
    ) -> Cause:
        """Return the facts in the stack from `frame` outward; all of it, unless an option says where to stop.

        `to_engine` stops at autograd's engine, for who knows the forward line from elsewhere.
        `to_module` stops once the nearest module and user line are known: outside of backward nothing
        further out says more about an operator.
        `moves`: also what DTensor moves, and for which operator.
        """
        cause = Cause()
        table = self.known
        beyond = frame is None
        if beyond and not (to_engine and in_backward()):
            frame = self.engine_beyond()
        while frame is not None:
            code = frame.f_code
            code_facts = table.get(id(code))
            if code_facts is None:
                code_facts = self.classify(code)
            reader = code_facts.reader
            if reader is not None and (moves or reader not in torch_frames.MOVES):
                reader(frame, cause)
            if code_facts.place is not None:
                if code_facts.is_user:
                    if cause.source is None:
                        cause.source = self._line(code_facts, code_facts.place, frame)
                elif cause.source is None:
                    if cause.in_library is None:
                        cause.in_library = self._line(code_facts, code_facts.place, frame)
                    if cause.library is None and code_facts.in_package is not None:
                        cause.library = self._line(code_facts, code_facts.in_package, frame)
            if to_module and cause.source is not None and cause.module is not None:
                break
            if to_engine and cause.phase is not None:
                break
            frame = frame.f_back
            if frame is None and not beyond and not (to_engine and in_backward()):
                beyond, frame = True, self.engine_beyond()
        if to_engine and cause.phase is None and in_backward():
            # Another thread than this one has begun it, and where is not asked for.
            cause.phase, cause.settled = "backward", True
        if cause.source is None:
            # No line of the user's is known to have called it.
            cause.source, cause.library = cause.in_library, None
        return cause


def _is_generated(path: str) -> bool:
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    return _GENERATED in path or (bool(folder) and path.startswith(str(folder)))


def _is_library(path: str) -> bool:
    """Whether a file was installed: also if another environment's packages are on the path."""
    return path.startswith(_LIBRARIES) or any(f"{os.sep}{name}{os.sep}" in path for name in _PACKAGES)


def _in_package(path: str) -> str | None:
    """Return the path of an installed library's file below the folder of packages; None for Python's own."""
    for name in _PACKAGES:
        _, inside, below = path.rpartition(f"{os.sep}{name}{os.sep}")
        if inside:
            return below
    return None


@functools.lru_cache(maxsize=1024)
def _short(path: str, folder: str) -> str:
    """Return the path as a user would name it: below the working folder, else its last two parts."""
    if path.startswith("<"):
        return path
    relative = os.path.relpath(path, folder) if not _is_library(path) else path
    if relative.startswith(("..", os.sep)):
        return os.path.join(*path.split(os.sep)[-2:])
    return relative
