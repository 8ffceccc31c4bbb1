"""Why a collective was issued: wrapper, autograd node or operator around it, module and user's line."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from shardtoll.ledger.records import ddp_causes
from shardtoll.ledger.records.record import PHASES
from shardtoll.profiler.traces.collectives.comms import dtype_in
from shardtoll.profiler.traces.collectives.link import Linked
from shardtoll.profiler.traces.collectives.stacks import innermost, nests, paths
from shardtoll.profiler.traces.file.trace_columns import I64, HostWork, Trace
from shardtoll.profiler.traces.rank.phases import ENGINE, Phases, matching

_FSDP: Final = re.compile(r"^FSDP::(\w+)(?: \(([^)]*)\)| for ([\w.]+))?")
_FSDP1: Final = re.compile(r"^FullyShardedDataParallel\.(\w+)(?: \(([^)]*)\))?")
_DDP: Final = "DistributedDataParallel"
_ACCUMULATE: Final = f"{ENGINE}: torch::autograd::AccumulateGrad"
_TELLING: Final = re.compile(
    rf"^FSDP::|^FullyShardedDataParallel\.|^{_DDP}\.|^Optimizer\.|^{ENGINE}|^c10d::|^_c10d_functional::"
)
_FRAME: Final = re.compile(r"^(?P<file>[^<>()][^()]*)\((?P<line>\d+)\): (?P<function>.+)$")
_MODULE: Final = re.compile(r"^nn\.Module: (\w+)$")
_BETWEEN: Final = re.compile(
    r"^torch/(nn/modules/module|overrides|utils/_device|utils/_contextlib|_dynamo/eval_frame|_dynamo/\w*hooks?"
    r"|amp/autocast_mode|autograd/function|_ops)\.py\("
)
_LIBRARIES: Final = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "numpy", "transformers", "accelerate", "lightning"),
        *("pytorch_lightning", "deepspeed", "apex", "triton", "timm", "fairscale", "diffusers"),
        *("peft", "datasets", "shardtoll"),
    )
)
"""Folders of packages whose frames are not the user's own."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a collective was issued; None if the trace does not show it."""

    phase: str
    op: str | None = None
    module: str | None = None
    source: str | None = None


class Work(Struct, frozen=True):
    """Origin of each piece of device work."""

    phase: npt.NDArray[np.int8]
    module: I64
    """A number for `name_of`; -1 unknown."""
    name_of: Callable[[int], str | None]


def source_of(frame: str) -> str | None:
    """Return `train.py:12 (fn)` for the frame `train.py(12): fn`; None unless the code is the user's.

    The profiler cuts paths at the entries of `sys.path`, so a library shows by its own folder. The line
    is the one the profiler wrote down, as a rule that of the function's head.
    """
    match = _FRAME.match(frame)
    if match is None:
        return None
    path = match["file"].replace("\\", "/")
    first = path.split("/", 1)[0].removesuffix(".py")
    if first in _LIBRARIES or first in sys.stdlib_module_names:
        return None
    if re.search(r"/(site|dist)-packages/|/lib/python\d|^<", path):
        return None
    return f"{path}:{match['line']} ({match['function']})"


def line_of(frame: str) -> str | None:
    """Return `base.py:12 (fn)` for the frame `base.py(12): fn` of any library.

    None for a built-in function, and for what torch puts between a call and what is called.
    """
    match = _FRAME.match(frame)
    if match is None or _BETWEEN.match(frame):
        return None
    return f"{match['file']}:{match['line']} ({match['function']})"


class Stacks:
    """Looks up what was open on a thread at an instant."""

    def __init__(self, trace: Trace) -> None:
        self._names = trace.names
        self.has_ddp = any(name.startswith(f"{_DDP}.forward") for name in trace.names)
        """Whether DistributedDataParallel's own annotations are on record."""
        telling = matching(trace, _TELLING)
        self._sources = {
            number: text for number, name in enumerate(trace.names) if (text := source_of(name)) is not None
        }
        self._modules = {
            number: m[1] for number, name in enumerate(trace.names) if (m := _MODULE.match(name))
        }
        of_interest = np.zeros(len(trace.names), np.bool_)
        of_interest[[*self._sources, *self._modules]] = True
        self._parts: list[tuple[HostWork, np.ndarray[tuple[int], np.dtype[np.bool_]]]] = [
            (trace.annotations, telling),
            (trace.ops, telling),
        ]
        self._frames = (trace.frames, of_interest)

    def around(self, threads: Sequence[int], at_ns: Sequence[int]) -> list[list[str]]:
        """Return annotations and operators that show a cause, innermost first."""
        names: list[list[tuple[int, int]]] = [[] for _ in at_ns]
        for work, wanted in self._parts:
            for place, rows in enumerate(self._paths(work, wanted, threads, at_ns)):
                names[place] += [(int(work.start_ns[row]), int(work.name[row])) for row in rows]
        return [[self._names[name] for _, name in sorted(pairs, reverse=True)] for pairs in names]

    def called_from(
        self, threads: Sequence[int], at_ns: Sequence[int]
    ) -> list[tuple[str | None, str | None]]:
        """Return (module, user's line) from the Python frames; None if they were not recorded."""
        work, wanted = self._frames
        callers = []
        for rows in self._paths(work, wanted, threads, at_ns):
            names = [int(work.name[row]) for row in reversed(rows)]
            module = next((self._modules[name] for name in names if name in self._modules), None)
            source = next((self._sources[name] for name in names if name in self._sources), None)
            callers.append((module, source))
        return callers

    def modules_at(self, threads: npt.NDArray[np.integer], at_ns: I64) -> I64:
        """Return the innermost module's frame at each (thread, instant), as a number for `module`; or -1."""
        work = self._frames[0]
        if not self._modules or not len(at_ns):
            return np.full(len(at_ns), -1, np.int64)
        wanted = np.zeros(len(self._names), np.bool_)
        wanted[[*self._modules]] = True
        chosen = wanted[work.name] & np.isin(work.thread, np.unique(threads))
        rows = innermost(nests(work, chosen), threads, at_ns)
        return np.where(rows >= 0, work.name[rows], -1).astype(np.int64)

    def module(self, number: int) -> str | None:
        """Return the module's class and place in the order of calls, as `Linear_3`; None for -1."""
        return self._modules.get(number)

    @staticmethod
    def _paths(
        work: HostWork,
        wanted: np.ndarray[tuple[int], np.dtype[np.bool_]],
        threads: Sequence[int],
        at_ns: Sequence[int],
    ) -> list[list[int]]:
        if not len(work.name) or not len(at_ns):
            return [[] for _ in at_ns]
        asked = np.asarray(threads, np.int64)
        chosen = wanted[work.name] & np.isin(work.thread, np.unique(asked))
        return paths(nests(work, chosen), asked, np.asarray(at_ns, np.int64))


def causes(rows: Sequence[Linked], phases: Phases, stacks: Stacks) -> list[Cause]:
    """Return the cause of each collective, in the same order."""
    threads = [row.thread if row.issue_ns is not None else -1 for row in rows]
    at_ns = [row.issue_ns or 0 for row in rows]
    phase = phases.at(np.array(threads, np.int64), np.array(at_ns, np.int64)).tolist()
    around = stacks.around(threads, at_ns)
    called = stacks.called_from(threads, at_ns)
    several: Counter[tuple[str | None, str | None, int | None]] = Counter()
    for kind in {(row.owner, row.op, row.args.dtype, row.args.in_elements) for row in rows}:
        several[kind[1:]] += 1
    made = []
    for place, row in enumerate(rows):
        op, fqn = _cause(around[place], row.op)
        if op is not None and op.startswith(_DDP):
            op = _of_ddp(op, row, several[row.op, row.args.dtype, row.args.in_elements], stacks.has_ddp)
        module, source = called[place]
        made.append(Cause(PHASES[phase[place]], op, module if fqn is None else fqn, source))
    return made


def _cause(names: Sequence[str], op: str | None) -> tuple[str | None, str | None]:
    """Return (what asked, module FQN) from what was open, innermost first."""
    operator = None
    for name in names:
        if match := _FSDP.match(name) or _FSDP1.match(name):
            fqn = next((text for text in match.groups()[1:] if text is not None), None)
            return f"FSDP.{match[1]}", fqn
        if name == _ACCUMULATE and op == "all_reduce":
            return _DDP, None
        if name.startswith(ENGINE):
            return name.removeprefix(f"{ENGINE}: ").removeprefix("torch::autograd::"), None
        if name.startswith(_DDP) and op == "broadcast":
            return name.split("#")[0], None
        if name.startswith("Optimizer."):
            return name, None
        if operator is None and name.startswith(("c10d::", "_c10d_functional::")):
            operator = name
    return operator, None


def _of_ddp(op: str, row: Linked, steps: int, has_ddp: bool) -> str:
    """Return what DDP communicates for, as live capture names it; `steps`: in how many steps it does so.

    Reducers of other frameworks hang on AccumulateGrad too: without DDP's own annotation it stays open.
    """
    whole = dtype_in(row.args)[0] == "int32"
    if row.op == "all_reduce":
        return (ddp_causes.USED_PARAMETERS if whole else ddp_causes.REDUCER) if has_ddp else op
    if row.op != "broadcast":
        return op
    # Buckets are laid out once, by indices of 32 bits; counters among buffers have 64.
    return ddp_causes.BUCKET_ORDER if whole and steps < 2 else ddp_causes.BUFFERS
