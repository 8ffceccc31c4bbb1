"""Where a collective is issued, as numbers that are the same in every step that repeats it.

Reading names off the stack costs more than many a collective is worth in a step that is only watched. Here
the stack is only told apart: every frame's code and position, in one hash, up to autograd's engine or to
where both the innermost module's call and a line of the user's have been passed; which module that is; and in
backward which node of the step's graph runs.
"""

from __future__ import annotations

from types import CodeType, FrameType
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from shardtoll.profiler.live.frames import Stack

Site: TypeAlias = tuple[int, int | None, int | None]
"""Hash of the stack, id of the innermost module, number of the autograd node from the step's first on."""

LEAF: Final = (1 << 64) - 1
"""Sequence number of AccumulateGrad nodes."""


def _code_of(function: Any) -> CodeType | None:
    return getattr(function, "__code__", None)


_CALL: Final = _code_of(getattr(nn.Module, "_call_impl", None))
_ENGINE: Final = _code_of(getattr(torch.autograd.graph, "_engine_run_backward", None))


def call_site(frame: FrameType | None, node_base: int, stack: Stack) -> Site:
    """Return where the code in `frame` stands; `node_base`: the autograd node with which the step began.

    `stack` knows which code is the user's own, whose lines a bill names.
    """
    table = stack.known
    seen = 0
    module: int | None = None
    users = False
    while frame is not None:
        code = frame.f_code
        if code is _ENGINE:
            break
        seen = hash((seen, id(code), frame.f_lasti))
        if code is _CALL and module is None:
            module = id(frame.f_locals["self"])
        if not users:
            known = table.get(id(code))
            users = (known or stack.classify(code)).is_user
        if users and module is not None:
            break
        frame = frame.f_back
    if torch._C._current_graph_task_id() == -1:
        return seen, module, None
    node: Any = torch._C._current_autograd_node()
    if node is None:
        return seen, module, None
    number: int = node._sequence_nr()
    return seen, module, number if number == LEAF else number - node_base
