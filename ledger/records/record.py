"""The records of a run: frozen, slotted, checked when made. Integers in `*_ns` and `*_bytes`.

None means unknown everywhere; it is never a stand-in for zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from shardtoll.ledger.records.volume import OPS

Phase = Literal["forward", "backward", "recompute", "optimizer", "other"]
PHASES: Final[tuple[str, ...]] = get_args(Phase)

Level = Literal["survey", "watch"]
LEVELS: Final[tuple[str, ...]] = get_args(Level)

MOST_RANKS: Final = 1_000_000
"""More ranks than any job has; a file that claims more is damaged."""

CONSERVATION_TOLERANCE: Final = 1e-3
"""Rule 1 of the accounting: the parts of a step add up to its duration within 0.1 %."""


HASH_RANGE: Final = range(-(2**63), 2**63)
"""Fingerprints are signed 64-bit whole numbers, as the tables hold them."""


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


def _require_not_negative(record: object, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and value < 0:
            raise ValueError(f"{name} {value} < 0")


def require_finite(name: str, *values: float | None) -> None:
    """Raise ValueError if a number is NaN or infinite."""
    for value in values:
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}: unknown is None")


def _require_hash(record: object, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and value not in HASH_RANGE:
            raise ValueError(f"{name} {value} does not fit 64 signed bits")


def _require_non_finite(value: str | None) -> None:
    if value not in (None, "input", "output", "left-out"):
        raise ValueError(f"non_finite is {value!r}")


Workload = Literal["training", "inference"]
SERVES: Final = ("prefill", "decode", "mixed")
"""Work of one step of an inference engine: prompts, the next token or tokens of requests, or both."""


@dataclass(frozen=True, slots=True)
class Run:
    """One job as its ranks saw it."""

    world_size: int
    """Ranks in the job, seen or not."""
    backend: str | None
    """Backend of the default group (`nccl`, `gloo`, `fake`); None without torch.distributed."""
    device: str | None
    """Device name, as `NVIDIA H100 80GB HBM3` or `cpu`."""
    torch: str | None
    """Version of torch."""
    hosts: tuple[str, ...]
    """Host names, in order of first rank."""
    mesh: Mapping[str, int]
    """Device-mesh dimension name -> size; empty if no mesh was found."""
    source: Literal["live", "trace", "dry"]
    """`dry`: made under fake tensors in one process; every time in it is a forecast's."""
    ranks_seen: tuple[int, ...]
    """Ranks whose records are in the ledger, ascending."""
    epoch_ns: int = 0
    """Unix time in ns that every `start_ns` counts from."""
    ranks_per_host: int | None = None
    """Ranks that share a host; None if unknown or uneven."""
    rank_hosts: tuple[str | None, ...] = ()
    """Host of each rank in `ranks_seen`, None if unknown; empty if no rank's host is known."""
    nccl_version: str | None = None
    """Version of NCCL (or RCCL), as `2.27.3`; None if unknown or not used."""
    machine: str | None = None
    """Make and network that a host of the job reports, as `p5.48xlarge; 32x efa`; None if unknown."""
    cores: int | None = None
    """CPU cores that the ranks of one host may run on together, on the host with fewest; None if
    unknown."""
    core_ids: tuple[int, ...] = ()
    """Those that this rank may run on, in the record of one rank; empty in that of several."""
    device_memory_bytes: int | None = None
    """Memory of the first device, as its driver reports it."""
    device_sms: int | None = None
    """Multiprocessors or compute units of the first device."""
    device_capability: str | None = None
    """Compute capability of the first device, as `9.0`."""
    devices_per_host: int | None = None
    """Devices that a rank sees on its host; there may be more."""
    workload: Workload | None = None
    """Kind of job, as a trace shows it. A backward or optimizer means training, an engine of inference
    without either means inference; None if neither shows."""
    gpu: str | None = None
    """The GPU that a dry run was made for: a key of the GPU table as `h100-sxm`, or the name in its file.
    None for other runs."""
    fabric: str | None = None
    """The fabric that a dry run was made for, by name; None of other runs."""
    gpu_toml: str | None = None
    """The figures of that GPU as TOML, if it came from a file; None if it is a shipped one."""
    fabric_toml: str | None = None
    """The figures of that fabric as TOML, if it came from a file; None if it is a shipped one."""
    allocator_settings: str | None = None
    """How a dry run's program sets torch's CUDA allocator, as PYTORCH_ALLOC_CONF has it; None if it does
    not, and of other runs."""

    def __post_init__(self) -> None:
        _require(self.world_size >= 1, f"world_size {self.world_size} < 1")
        _require(self.world_size <= MOST_RANKS, f"world_size {self.world_size} > {MOST_RANKS}")
        _require(self.cores is None or self.cores >= 1, f"{self.cores} CPU cores")
        _require(list(self.ranks_seen) == sorted(set(self.ranks_seen)), "ranks_seen must ascend")
        outside = [rank for rank in self.ranks_seen if not 0 <= rank < self.world_size]
        _require(not outside, f"ranks {outside} in a job of {self.world_size}")
        _require(
            len(self.rank_hosts) in (0, len(self.ranks_seen)),
            f"{len(self.rank_hosts)} hosts of {len(self.ranks_seen)} ranks",
        )

    @property
    def is_forecast(self) -> bool:
        """Whether it is a dry run: its times are forecasts for one rank, and nothing was measured."""
        return self.source == "dry"

    @property
    def ranks_missing(self) -> tuple[int, ...]:
        """Ranks of the job that left no records, though they should: a dry run plays one rank only."""
        if self.is_forecast:
            return ()
        return tuple(sorted(set(range(self.world_size)) - set(self.ranks_seen)))


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: the ranks that take part in a collective."""

    name: str
    """The group's name in torch; equal on all of its ranks."""
    ranks: tuple[int, ...]
    """Global ranks, in group order."""
    mesh_dim: str | None = None
    """Mesh dimension this group spans, as `tp` or `dp`; None if there is none."""
    backend: str | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        _require(len(self.ranks) >= 1, f"group {self.name} has no ranks")
        _require(len(set(self.ranks)) == len(self.ranks), f"group {self.name} holds a rank twice")

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)


@dataclass(frozen=True, slots=True)
class Step:
    """One training step on one rank, its time split without overlap and without rest."""

    step: int
    rank: int
    start_ns: int
    """First instant that belongs to the step, ns since the run's epoch. On devices that run behind the host a
    step is the time of the work it launched. Steps there follow each other and may interleave."""
    duration_ns: int
    """All instants that belong to the step, whichever they are: its parts added up."""
    compute_ns: int
    """Time in which this rank's device computed (CPU: the training thread ran operators)."""
    exposed_comm_ns: int
    """Time without any compute because of a collective (CPU: thread blocked on it)."""
    exposed_copy_ns: int
    """Time in memory copies between devices that no compute hid."""
    idle_ns: int
    """Time known to be neither: Python between operators, data loading, sleeping."""
    unattributed_ns: int
    """Time nothing is known about, capture's own cost included."""
    capture_ns: int = 0
    """The part of `unattributed_ns` that was capture's own work."""
    level: str = "survey"
    """`survey`: operators and their times are known. `watch`: only collectives were looked at. Time that is
    neither blocked on them nor capture's own is unattributed. There are no Compute records or
    fingerprints."""
    exposed_wait_ns: int | None = None
    """The part of `exposed_comm_ns` spent waiting for late ranks; known once ranks are matched."""
    exposed_move_ns: int | None = None
    """The part spent while data moved. The rest belongs to collectives whose wait is unknown."""
    waited_for_ns: int | None = None
    """Exposed waiting for this rank, on the rank that waited longest for it. None in a step without a matched
    collective of this rank. A lower bound if a rank of the group was not seen."""
    compute_beyond_ns: int | None = None
    """Compute time of this rank beyond the median rank of the step; None if the step was not surveyed."""
    asleep_ns: int | None = None
    """Time in which the training thread neither ran nor was ready to, whatever blocked it; None if
    unknown."""
    slowed_compute_ns: int | None = None
    """The part of `capture_ns` that is estimated by operator and taken out of `compute_ns`; None if
    unknown."""
    slowed_idle_ns: int | None = None
    """The part of `capture_ns` that is estimated by operator and taken out of `idle_ns`; None if unknown."""
    parts_error_ns: int | None = None
    """Error bound of each part, for a watched step that is divided into parts as surveyed ones are. None: not
    divided, or measured in the step itself."""
    serves: str | None = None
    """One of `SERVES` in a step of an inference engine; None in training or unknown."""
    requests: int | None = None
    """Requests that such a step served."""
    exposed_unsplit_ns: int | None = None
    """The part of `exposed_comm_ns` that is neither known to be waiting nor to be moving; None as those."""

    def __post_init__(self) -> None:
        parts = self.parts_ns
        _require(self.serves in (None, *SERVES), f"step {self.step}: serves {self.serves!r}")
        _require(self.level in LEVELS, f"unknown level {self.level!r}")
        _require(self.duration_ns >= 0, f"step {self.step}: negative duration")
        _require(all(part >= 0 for part in parts), f"step {self.step}: negative part {parts}")
        _require(self.capture_ns <= self.unattributed_ns, f"step {self.step}: capture_ns > unattributed_ns")
        off_ns = abs(sum(parts) - self.duration_ns)
        _require(
            off_ns <= CONSERVATION_TOLERANCE * self.duration_ns,
            f"step {self.step} rank {self.rank}: parts are off by {off_ns} ns of {self.duration_ns} ns",
        )

    @property
    def parts_ns(self) -> tuple[int, int, int, int, int]:
        """Compute, exposed communication, exposed copies, idle, unattributed."""
        return (
            self.compute_ns,
            self.exposed_comm_ns,
            self.exposed_copy_ns,
            self.idle_ns,
            self.unattributed_ns,
        )


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective on one rank, with what caused it. A row of the ledger's main table."""

    step: int | None
    """None: outside every step."""
    rank: int
    group: str
    group_size: int
    mesh_dim: str | None
    seq: int | None
    """The group's own sequence number of this collective; None if unknown."""
    op: str
    """One of `volume.OPS`, or another name if the op is not known to us."""
    dtype: str | None
    """As torch prints it without the prefix: `float32`, `bfloat16`."""
    message_bytes: int | None
    wire_bytes: int | None
    issue_ns: int | None
    """When the training thread asked for it, ns since the run's epoch."""
    start_ns: int | None
    """When this rank's transport began on it, ns since the run's epoch."""
    duration_ns: int | None
    """From start to completion on this rank, waiting for late ranks included."""
    exposed_ns: int | None
    """This collective's share of the rank's exposed communication."""
    phase: str
    implicit: bool | None = None
    """True: inserted by the framework to run an operator. False: asked for."""
    placements_from: str | None = None
    """DTensor placements before, as `(Shard(0), Replicate())`."""
    placements_to: str | None = None
    caused_by_op: str | None = None
    """The operator or wrapper API that needed it, as `aten.mm.default` or `FSDP.unshard`."""
    module: str | None = None
    """Fully qualified module name; the empty string is the root module."""
    parameter: str | None = None
    """Fully qualified parameter name, if one parameter (or bucket) is the subject."""
    source: str | None = None
    """`file.py:line (function)` of the user's own code."""
    reduce_op: str | None = None
    root: int | None = None
    """Root rank of a rooted op, peer of a send or recv; a global rank."""
    input_hash: int | None = None
    """Fingerprint of the bytes sent; equal on two records when the same bytes were sent."""
    wait_ns: int | None = None
    """Time this rank waited for the last rank to arrive; known once ranks are matched."""
    transfer_ns: int | None = None
    """Time from the last arrival to completion; known once ranks are matched."""
    busbw_gbps: float | None = None
    """Bus bandwidth over the transfer, GB/s (1e9), nccl-tests' definition."""
    floor_ns: int | None = None
    """At most one of twenty sound transfers takes less on the fabric; `expected_ns` is the usual time."""
    stream: int | None = None
    """Device stream it ran on; None if unknown or not on a device."""
    kernel: str | None = None
    """Name of the device kernel or transport span that carried it, if a trace shows one."""
    output_hash: int | None = None
    """Fingerprint of the result on this rank as it was first read; compare it with others of equal size.

    A copy of the whole, as a gather along another dimension than the first makes, stands for the result."""
    used_bytes: int | None = None
    """Bytes of the result that operators of this rank read in the rest of the step, bytes read twice
    counted once. None if unknown; for a gather also if a part of another rank's was read but not all."""
    used_by: str | None = None
    """The first operator that read the result or took a part of it, as `aten.slice.Tensor`."""
    cut_from_hash: int | None = None
    """Fingerprint of the tensor that this rank cut its input from, in equal parts; None if none is known."""
    optimizer_steps: int | None = None
    """Optimizer steps this rank had finished in the audit when the collective was issued. None if unknown, or
    during an optimizer step, as in a closure."""
    gradients_begun: int | None = None
    """When the collective was issued: backwards of this rank that had begun in the audit, with gradients
    cleared since the one before. None if unknown."""
    of_values: bool | None = None
    """Whether it moves the values of `parameter`, and not its gradient; None if no tensor shows it."""
    operand: str | None = None
    """Which argument of `caused_by_op` DTensor moved, as `argument 1 (mat2), [32, 16]`."""
    number_sent: float | None = None
    """The value sent, if it is one float32; None if it is more, not finite or unknown."""
    number_received: float | None = None
    """The result, if it is one float32."""
    input_content: int | None = None
    """Number of the content sent, within the rank's step. Equal on two records if one untouched memory, or a
    copy of it, was sent, whatever its values. None if unknown."""
    output_content: int | None = None
    """Number of the result; another collective's `input_content` is equal if it sent that on untouched."""
    cut_from_content: int | None = None
    """Number of the content that the input was cut from; see `cut_from_hash`."""
    cut_by_placement: bool | None = None
    """Whether DTensor cut the input from a tensor that its placements call replicated."""
    read_hash: int | None = None
    """Fingerprint of the part of a gather's result that was read first, by the order of its elements. Equal
    to `input_hash` if this rank had sent that part."""
    read_dimension: int | None = None
    """Dimension along which this rank read its own even part of the result and nothing else; None if
    unknown."""
    read_carries_gradient: bool | None = None
    """Whether a gradient flows back through the part that was read first."""
    non_finite: str | None = None
    """`input` if NaN or infinity was sent, `output` if it is in the result alone; None if not seen."""
    light_ns: int | None = None
    """Speed of light: the least time that the physics of the links allows, whatever the library."""
    band_low_ns: int | None = None
    """Nine of ten sound transfers of this size take at least this on the fabric; at most `band_high_ns`."""
    band_high_ns: int | None = None
    group_id: int | None = None
    """Place of the group among the report's `groups`; it distinguishes groups of one name."""
    match_id: int | None = None
    """Equal on the records of one collective on several ranks; None if the ranks are not matched."""
    late_rank: int | None = None
    """The rank that arrived last; None if unknown, or if it came less than 10 us after the one before it."""
    late_ns: int | None = None
    """How long after the rank before it the last rank arrived."""
    waited_ns: int | None = None
    """The part of `exposed_ns` beyond the transfer: waiting for a late rank that no compute hid."""
    library: str | None = None
    """`package/file.py:line (function)` of the innermost frame of an installed library, torch apart. The
    user's line at `source` called it; None if it calls none."""
    all_used: bool | None = None
    """For DDP's map of used parameters: whether this rank's backward reached them all. None for all else, and
    if unknown."""
    uncleared_steps: int | None = None
    """Number of successive optimizer steps, when this was issued, whose gradients nobody had cleared since
    the same optimizer's step before. None if unknown."""
    reshards: bool | None = None
    """For FSDP2's collectives: whether it frees the parameters after forward, to gather them again in
    backward. None for all else, and if unknown."""
    received_bytes: int | None = None
    """Bytes this rank got in an all_to_all, from itself included; its `message_bytes` are the bytes it sent.
    None for all else, and if unknown."""
    loss_classes: int | None = None
    """For a gather along the classes of logits: how many classes `F.cross_entropy` read, which is all of
    them, with one class per token. None for all else, and if unknown."""
    expected_ns: int | None = None
    """The time that a tuned library is expected to take on the fabric: at least `floor_ns`."""
    order: int | None = None
    """Place in the order of a dry step (see `dry`) at which it was issued; None of other runs."""
    stream_name: str | None = None
    """Stream that it runs on in a dry step; None of other runs."""

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        if self.group_size < 1:
            raise ValueError(f"group size {self.group_size} < 1")
        _require_not_negative(
            self,
            "message_bytes",
            "wire_bytes",
            "duration_ns",
            "exposed_ns",
            "wait_ns",
            "transfer_ns",
            "floor_ns",
            "light_ns",
            "expected_ns",
            "band_low_ns",
            "band_high_ns",
            "used_bytes",
            "received_bytes",
            "loss_classes",
            "input_content",
            "output_content",
            "cut_from_content",
            "read_dimension",
            "optimizer_steps",
            "gradients_begun",
            "uncleared_steps",
            "group_id",
            "match_id",
            "late_rank",
            "late_ns",
            "waited_ns",
        )
        _require_hash(self, "input_hash", "output_hash", "cut_from_hash", "read_hash")
        _require_non_finite(self.non_finite)
        rate = self.busbw_gbps
        if rate is not None and not (math.isfinite(rate) and rate >= 0):
            raise ValueError(f"busbw_gbps {rate} is no rate")

    @property
    def known_op(self) -> bool:
        """Whether the op is one whose volume and cost are defined."""
        return self.op in OPS


@dataclass(frozen=True, slots=True)
class Compute:
    """One operator with FLOPs on one rank, with facts that show whether others did the same. Kept are
    matmul-like ones, norms, losses and, as one record per step, all work of optimizers (see
    `work.kind_of_work`)."""

    step: int | None
    rank: int
    index: int
    """Position among this rank's Compute records of the step."""
    op: str
    """As `aten.mm.default`."""
    flops: int
    """Multiply and add counted as two. For an optimizer: the number of elements it updates."""
    start_ns: int
    duration_ns: int | None
    """None on devices whose operators run behind the host."""
    phase: str
    shapes: str
    """Input shapes as `f32[64,32] f32[32,16]`; of an optimizer its elements by type and
    its states' bytes."""
    module: str | None = None
    parameter: str | None = None
    source: str | None = None
    replicated_over: str | None = None
    """Mesh dims, comma separated, on which every DTensor input was Replicate."""
    input_hash: int | None = None
    """Fingerprint of all tensor inputs; None if not taken."""
    output_hash: int | None = None
    constant: bool = False
    """An operand (no bias) or the output holds one value or a few throughout, NaN or infinity: equality then
    proves nothing."""
    moved_bytes: int | None = None
    """Least bytes it must read and write: each operand once; None if not taken."""
    non_finite: str | None = None
    """`input` if an operand holds NaN or infinity, `output` if only the result does. For an optimizer `input`
    means gradients, `output` parameters. `left-out`: a gradient scaler keeps it from using such gradients.
    None: not seen."""

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise ValueError(f"unknown phase {self.phase!r}")
        _require_not_negative(self, "flops", "duration_ns", "moved_bytes")
        _require_hash(self, "input_hash", "output_hash")
        _require_non_finite(self.non_finite)


@dataclass(frozen=True, slots=True)
class Count:
    """Completeness of one group in one step on one rank (rule 2 of the accounting)."""

    step: int
    rank: int
    group: str
    issued: int | None
    """Growth of the group's own sequence number over the step; None if it cannot be read."""
    recorded: int
    """The part of that number that our records of this group account for."""
    other_thread: bool | None = None
    """Whether a thread other than the training one has used the group by then. Its calls may be counted in
    one step and recorded in the next. None if older versions did not say."""

    def __post_init__(self) -> None:
        _require_not_negative(self, "issued", "recorded")


@dataclass(frozen=True, slots=True)
class Notice:
    """Something the capture has to say about itself, as that it stopped."""

    rank: int
    kind: str
    """`capture-stopped`, `times-unknown`, `gather-incomplete`, ..."""
    text: str
    step: int | None = None
