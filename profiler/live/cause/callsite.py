"""The place where a collective is issued, as numbers that are the same in every step that repeats it.

Reading names off the stack costs more than many a collective is worth in a step that is only watched. Here
stacks are only distinguished: by every frame's code and position, in one hash. It reaches up to autograd's
engine, or until both the innermost module's call and a line of the user's have been passed. Added are that
module and, in backward, the node of the step's graph that runs.

The place that a repeating step should have reached is looked at first. To compare a frame with the expected
one costs half as much as to hash it.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import nn

from shardtoll.profiler.live.cause.frames import Stack

Site: TypeAlias = tuple[int, int | None, int | None]
"""Hash of the stack, id of the innermost module, number of the autograd node from the step's first on.

Outside of backward and of modules the second is below 0: it holds what else a place's phase depends on."""

LEAF: Final = (1 << 64) - 1
"""Sequence number of AccumulateGrad nodes."""
_MOST: Final = 4096
"""Stacks that are remembered; programs that write code as they run make new ones all the time."""
_ELSEWHERE: Final = -1
"""No module's id."""
_NO_MODULE: Final = -2
"""This number and lower ones: no module is called."""


def _code_of(function: Any) -> CodeType | None:
    return getattr(function, "__code__", None)


_CALL: Final = _code_of(getattr(nn.Module, "_call_impl", None))
_CALLER: Final = _code_of(getattr(nn.Module, "_wrapped_call_impl", None))
"""The usual caller of `_call_impl`: it has the same `self`, and few other locals to be read with it."""
_ENGINE: Final = _code_of(getattr(torch.autograd.graph, "_engine_run_backward", None))


class _Path(NamedTuple):
    """The part of a stack that shows where a collective is issued, from the inside out."""

    inner: tuple[tuple[CodeType, int], ...]
    """Code and position of each frame, up to the innermost module's call if there is one."""
    outer: tuple[tuple[CodeType, int], ...]
    """The same of frames beyond it."""
    has_module: bool
    goes_on: bool
    """A line of the user's and the module were passed: frames further out are not looked at. Else none is
    left, or the next one is autograd's engine."""


class CallSites:
    """Tells call sites apart; remembers the stacks it has met."""

    def __init__(self, stack: Stack) -> None:
        """`stack` knows which code is the user's own, whose lines a bill names."""
        self._stack = stack
        self._paths: dict[int, _Path] = {}
        """By their hash."""

    def site(
        self,
        frame: FrameType | None,
        node_base: int,
        expected: Site | None = None,
        backward_ran: bool = False,
    ) -> Site:
        """Return where the code in `frame` stands; `node_base`: the autograd node with which the step began.

        `expected`: where that is if the step goes on as an earlier one did. `backward_ran`: in this step.
        """
        module: int | None = _ELSEWHERE
        seen = 0
        if expected is not None:
            seen = expected[0]
            path = self._paths.get(seen)
            if path is not None:
                module = _module_along(frame, path)
        if module == _ELSEWHERE:
            seen, module = self._walked(frame)
        if torch._C._current_graph_task_id() == -1:
            if module is None:
                # One line's collectives may belong partly to the forward.
                module = _NO_MODULE - 2 * backward_ran - torch.is_grad_enabled()
            return seen, module, None
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return seen, module, None
        number: int = node._sequence_nr()
        return seen, module, number if number == LEAF else number - node_base

    def _walked(self, frame: FrameType | None) -> tuple[int, int | None]:
        """Return the stack's hash and the innermost module's id."""
        table = self._stack.known
        walked = frame
        seen = inside = 0
        module: int | None = None
        users = goes_on = False
        while walked is not None:
            code = walked.f_code
            if code is _ENGINE:
                break
            seen = hash((seen, id(code), walked.f_lasti))
            if module is None:
                inside += 1
                if code is _CALL:
                    module = _self_of(walked)
            if not users:
                users = (table.get(id(code)) or self._stack.classify(code)).is_user
            if users and module is not None:
                goes_on = True
                break
            walked = walked.f_back
        if seen not in self._paths:
            if len(self._paths) >= _MOST:
                self._paths.clear()
            frames = _frames(frame, walked.f_back if goes_on and walked is not None else walked)
            self._paths[seen] = _Path(frames[:inside], frames[inside:], module is not None, goes_on)
        return seen, module


def _module_along(frame: FrameType | None, path: _Path) -> int | None:
    """Return the innermost module's id, `_ELSEWHERE` where the stack from `frame` on is not this path."""
    walked = called = frame
    inner, outer, has_module, goes_on = path
    for code, place in inner:
        if walked is None or walked.f_code is not code or walked.f_lasti != place:
            return _ELSEWHERE
        called = walked
        walked = walked.f_back
    for code, place in outer:
        if walked is None or walked.f_code is not code or walked.f_lasti != place:
            return _ELSEWHERE
        walked = walked.f_back
    if not (goes_on or walked is None or walked.f_code is _ENGINE):
        return _ELSEWHERE
    return _self_of(called) if has_module and called is not None else None


def _self_of(call: FrameType) -> int:
    """Return the id of the module that `_call_impl` calls."""
    by = call.f_back
    # To have one local of a frame, all of them are read.
    return id((call if by is None or by.f_code is not _CALLER else by).f_locals["self"])


def _frames(frame: FrameType | None, end: FrameType | None) -> tuple[tuple[CodeType, int], ...]:
    """Return code and position of each frame up to `end`, which is not among them."""
    passed = []
    while frame is not None and frame is not end:
        passed.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(passed)
