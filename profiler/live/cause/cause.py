"""The stack's facts about one operator, and their readers for a frame."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn


class Cause:
    """The stack's facts about one operator; None if it says nothing.

    The defaults are the class's: one is made for each operator that is looked at, and few fields are set.
    """

    phase: str | None = None
    module: nn.Module | None = None
    module_name: str | None = None
    """Name that a wrapper API itself keeps, as FSDP2 does."""
    graph: nn.Module | None = None
    """The nearest fx graph being called: a compiler's, unless it has a name in the user's model."""
    root: nn.Module | None = None
    """Outermost module being called."""
    source: str | None = None
    api: str | None = None
    """The API that asked: `FSDP.unshard`, `RowwiseParallel`, `all_reduce`, ..."""
    issuer: str | None = None
    """The Python function that issued the collective; None if C++ did, and waits for it unseen."""
    from_spec: Any = None
    to_spec: Any = None
    redistributed: torch.Tensor | None = None
    """The local tensor a DTensor redistribution started from."""
    implicit: bool = False
    dtensor_op: Any = None
    """The DTensor operator on whose behalf this runs."""
    dtensor_info: Any = None
    """DTensor's own description of the operator it runs."""
    operand: tuple[Any, int, Any] | None = None
    """The argument of `dtensor_op` that is redistributed: all of its schema, its place there, its spec."""
    parameter_name: str | None = None
    """Name of the one parameter it is for, if a wrapper API itself says so."""
    fsdp_group: Any = None
    """FSDP2's parameter group, if its code is on the stack."""
    fsdp1_handle: Any = None
    """FSDP1's handle of a unit's flat parameter, if its code is on the stack."""
    parameters: tuple[Any, ...] = ()
    """The parameters it is for, if a library keeps the objects themselves."""
    in_closure: bool = False
    """An optimizer's closure was passed: what lies further out, its `step`, is not what this is for."""
    settled: bool = False
    """A module call or the engine was passed: frames further out did not ask for this operator."""
    in_library: str | None = None
    """`file:line (function)` of the nearest frame outside torch that is not the user's either."""
    library: str | None = None
    """`package/file:line (function)` of the nearest frame of an installed library that `source` called."""


Reader = Callable[[FrameType, Cause], None]
"""Facts that one known function gives about the operators below it; nearer frames are read first."""
