"""One trace file in columns: what the reader hands to the analysis of a rank.

Times are int64 nanoseconds on the trace's own clock. Texts are numbers into `Trace.names`, threads
numbers into `Trace.threads`; -1 means that the event does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Struct

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
I8 = npt.NDArray[np.int8]

KERNEL: Final = 0
COPY: Final = 1
SET: Final = 2
"""Kinds of device work: a kernel, a memory copy, a memory set."""


class GroupInfo(Struct, frozen=True):
    """A process group as the trace's `distributedInfo` or a collective's args describe it."""

    name: str
    ranks: tuple[int, ...]
    """Global ranks; empty if unknown."""
    size: int | None = None
    description: str | None = None
    backend: str | None = None


@dataclass(frozen=True, slots=True)
class Meta:
    """A trace's facts about its job; None if unknown."""

    address: str
    """The file as the user would name it."""
    rank: int | None
    """From the file, else from its name."""
    world_size: int | None
    backend: str | None
    device: str | None
    """As `NVIDIA H200`; None without a device."""
    torch: str | None
    host: str | None
    """From the file or from its name (`host_pid.123.pt.trace.json`), never guessed."""
    nccl: str | None = None
    base_ns: int = 0
    """Origin of the trace's times (`baseTimeNanoseconds`), already added to every column."""
    groups: tuple[GroupInfo, ...] = ()
    with_stack: bool = False
    """Whether Python frames were recorded."""
    trace_id: str | None = None
    device_memory_bytes: int | None = None
    """Memory of the first device, as its driver reports it; so are the next two."""
    device_sms: int | None = None
    device_capability: str | None = None
    """As `9.0`."""
    devices: int | None = None
    """Devices that the process saw."""
    process_ranks: tuple[tuple[str, int], ...] = ()
    """(process, rank) of each process that a file of several names a rank for."""


@dataclass(frozen=True, slots=True)
class CommArgs:
    """Facts of one event about one collective, in the trace's own words; None if unknown."""

    name: str | None = None
    """As `allreduce`, `_allgather_base`, `wait`: the args' `Collective name`."""
    dtype: str | None = None
    """As `Float`, `BFloat16`, `c10::Half`."""
    in_elements: int | None = None
    out_elements: int | None = None
    group: str | None = None
    group_description: str | None = None
    group_size: int | None = None
    ranks: tuple[int, ...] | None = None
    """Global ranks of the group; None if absent or shortened with dots."""
    rank_start: int | None = None
    rank_stride: int | None = None
    seq: int | None = None
    is_async: bool | None = None
    source_rank: int | None = None
    target_rank: int | None = None
    root: int | None = None
    in_splits: tuple[int, ...] | None = None
    out_splits: tuple[int, ...] | None = None
    dims: tuple[tuple[int, ...], ...] | None = None
    """Shapes of the tensor inputs, from `Input Dims`; lists of tensors are flattened, scalars left out."""
    types: tuple[str, ...] | None = None
    """Their types, from `Input type`, one for each of `dims`."""
    communicator: str | None = None
    """Id of NCCL's communicator, which no two groups share: the traces of its ranks show who is in it."""
    share_bytes: int | None = None
    """As NCCL itself gives the size: of what is gathered, scattered or exchanged the share of one rank."""
    whole_bytes: int | None = None
    """Message size if bytes and no elements are known."""
    peer_place: int | None = None
    """The root or the other side as its place in the group."""


@dataclass(slots=True)
class DeviceWork:
    """Kernels, copies and sets, in the order of the file."""

    start_ns: I64
    end_ns: I64
    name: I32
    kind: I8
    device: I32
    stream: I32
    correlation: I64
    external: I64
    bytes: I64
    comm: I32
    """Number into `Trace.comm_args` if the event itself describes a collective."""


@dataclass(slots=True)
class HostWork:
    """Work on host threads: runtime calls, operators, annotations or Python frames."""

    start_ns: I64
    end_ns: I64
    name: I32
    thread: I32
    correlation: I64
    """For runtime calls: the device work they launched."""
    external: I64
    comm: I32
    """Number into `Trace.comm_args`, for events that describe a collective."""


class OpKind(Struct, frozen=True):
    """An operator with the inputs that one or more of its calls had, still as written."""

    name: str
    dims: bytes = b""
    types: bytes = b""
    strides: bytes = b""
    concrete: bytes = b""


@dataclass(frozen=True, slots=True)
class Operators:
    """The operators of a trace: sorted ids, and the place in `kinds` of each."""

    external: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    kind: I32 = field(default_factory=lambda: np.zeros(0, np.int32))
    kinds: tuple[OpKind, ...] = ()

    def at(self, external: I64) -> I64:
        """Return for each id its place in `kinds`; -1 if no operator has it."""
        if not len(self.external):
            return np.full(len(external), -1, np.int64)
        place = np.minimum(np.searchsorted(self.external, external), len(self.external) - 1)
        same = self.external[place] == external
        return np.where(same, self.kind[place], -1).astype(np.int64)


@dataclass(slots=True)
class Trace:
    """All that is kept of one trace file."""

    meta: Meta
    names: list[str]
    threads: list[tuple[str, str]]
    """(pid, tid) as text."""
    device: DeviceWork
    calls: HostWork
    """`cuda_runtime`, `cuda_driver` and AMD's equals: launches, copies, synchronisations."""
    ops: HostWork
    """`cpu_op`. In traces with a device only those are kept that show a cause or phase."""
    annotations: HostWork
    """`user_annotation`, async spans (`gloo:*`) among them."""
    frames: HostWork
    """`python_function`."""
    comm_args: list[CommArgs]
    start_ns: int = 0
    """First instant that was recorded."""
    end_ns: int = 0
    events: int = 0
    """Events in the file, kept or not."""
    notices: list[tuple[str, str]] = field(default_factory=list)
    """Defects of the file that were passed over: (notice kind, text)."""
    operators: Operators = field(default_factory=Operators)
    """Every operator with an id: what launched each kernel."""
