"""What a made-up job looks like: every knob of the generator, with defaults that make a telling example."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

STRATEGIES: Final = ("ddp", "fsdp", "tp", "pipeline", "chain")
SCHEMAS: Final = ("old", "sizes", "groups", "seq")
LAYOUTS: Final = ("kineto", "compact", "indent", "torch213", "metadata-first", "lines")
FORMATS: Final = ("json.gz", "json", "json.zst", "sqlite")
TRANSPORTS: Final = ("device", "host")
CAUSES: Final = ("forward", "backward", "data", "host", "sync", "copy")
DAMAGES: Final = ("cut", "empty", "text", "nan", "negative", "no-rank")

US: Final = 1_000
MS: Final = 1_000_000

EPOCH_NS: Final = 1_767_225_600_000_000_000
"""When every made-up job begins, Unix time in ns."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One job. Times in ns, sizes in bytes."""

    ranks: int = 8
    steps: int = 4
    layers: int = 6
    collectives: int | None = None
    """Collectives a step of `ddp`; None: one for every two layers. Others follow from the layers."""
    strategy: str = "ddp"
    microbatches: int = 4
    """Of `pipeline`."""
    replicas: int = 1
    """Of `pipeline`: pipelines beside each other, with a data-parallel group for each stage."""
    chunks: int = 1
    """Of `pipeline`: stages of each rank."""
    as_v: bool = False
    """Of `pipeline`: every second stage of the ranks goes back along them, else all go in turn."""
    schedule_marked: bool = True
    """Of `pipeline`: whether `Forward i` and `Backward i` are in the files."""
    transport: str = "device"
    """Of `pipeline`: `device` sends with kernels; with `host` the host waits for what it receives."""
    seed: int = 0
    kernels: int = 3
    """Compute kernels a layer in one direction."""
    kernel_ns: int = 150 * US
    ahead: int = 40
    """Launches that may wait for the device; a launch more blocks the host until one of them is done."""
    jitter: float = 0.01
    """Spread of compute kernels, as a share of their time."""
    comm_bytes: int = 32 << 20
    """Message of one collective."""
    bandwidth_gbps: float = 320.0
    """Bus bandwidth, GB/s (1e9); a transfer takes bytes x factor / bandwidth + latency."""
    latency_ns: int = 15 * US
    straggler: int | None = None
    """The rank that is slow; on the command line 3 unless told, -1 for none."""
    cause: str = "backward"
    """Why it is slow."""
    extra_ns: int = 3 * MS
    """How much it loses in each step; in a pipeline, in each micro-batch."""
    slow_steps: tuple[int, ...] = ()
    """Steps in which the straggler is slow; none: all."""
    hosts: int = 1
    """Ranks are dealt to hosts in blocks."""
    offset_ns: int = 0
    """Clocks of hosts other than the first are off by up to this much."""
    drift_ppm: float = 0.0
    """And run fast or slow by up to this much."""
    missing: tuple[int, ...] = ()
    """Ranks that leave no file."""
    schema: str = "seq"
    layout: str = "kineto"
    format: str = "json.gz"
    """`sqlite` is what Nsight Systems exports."""
    one_file: bool = False
    """Of `sqlite`: the ranks of a host are processes in one file, as `nsys profile torchrun` records them."""
    stacks: bool = False
    damage: tuple[tuple[int, str], ...] = ()
    """(rank, one of DAMAGES)."""
    trim: bool = False
    """Cut every rank's window elsewhere, so that ranks show different numbers of collectives."""
    lookalike_ns: int = 0
    """Time a step in a kernel that looks like communication and is none known."""
    recompute: bool = False
    """Run every layer's forward again in backward."""
    data_ns: int = 0
    """Time a step for which every rank's device waits for a batch."""
    sync_ns: int = 0
    """Time a step for which every rank's device is idle because the host waited for it."""
    copy_ns: int = 0
    """Time a step in copies to the device that nothing hides."""
    serialized: int = 0
    """Pairs of collectives a step on two groups that run one after the other on one stream."""
    padding: int = 0
    """Operators without meaning beside every kernel, for files of any size."""
    steps_marked: bool = True
    """Whether `ProfilerStep#N` is in the files."""
    prefix: str = "rank"
    """Files are called PREFIX<rank>.<format>."""
    port: int = 0
    """Shifts group names and times, to tell two jobs in one folder apart."""

    def __post_init__(self) -> None:
        for name, known in (
            ("strategy", STRATEGIES),
            ("schema", SCHEMAS),
            ("layout", LAYOUTS),
            ("format", FORMATS),
            ("cause", CAUSES),
            ("transport", TRANSPORTS),
        ):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} {getattr(self, name)!r} is none of {', '.join(known)}")
        if (
            self.ahead < 1
            or self.ranks < 1
            or self.steps < 1
            or self.layers < 1
            or not 1 <= self.hosts <= self.ranks
        ):
            raise ValueError(
                "a job has at least one rank, step, layer, host and launch ahead, and no host without a rank"
            )
        if self.straggler is not None and not 0 <= self.straggler < self.ranks:
            raise ValueError(f"straggler {self.straggler} is no rank of {self.ranks}")
        if self.replicas < 1 or self.chunks < 1 or self.ranks % self.replicas:
            raise ValueError("ranks are stages x replicas, with at least one replica and stage a rank")
        if unknown := [kind for _, kind in self.damage if kind not in DAMAGES]:
            raise ValueError(f"damage {unknown[0]!r} is none of {', '.join(DAMAGES)}")

    @property
    def epoch_ns(self) -> int:
        """True time at which the job's first step begins."""
        return EPOCH_NS + self.port * 3600 * 1000 * MS

    def host_of(self, rank: int) -> int:
        """Return the number of a rank's host."""
        return rank * self.hosts // self.ranks

    def clock(self, rank: int) -> tuple[int, float]:
        """Return (offset in ns, drift in ppm) of a rank's clock: local = true + offset + drift x elapsed."""
        host = self.host_of(rank)
        if host == 0:
            return 0, 0.0
        random = Random(f"clock {self.seed} {host}")
        sign = random.choice((-1, 1))
        offset = sign * int(self.offset_ns * random.uniform(0.5, 1.0))
        return offset, self.drift_ppm * random.choice((-1, 1)) * random.uniform(0.5, 1.0)

    def local_ns(self, rank: int, true_ns: int) -> int:
        """Return what a rank's clock shows at a true time."""
        offset, drift = self.clock(rank)
        return true_ns + offset + round(drift * 1e-6 * (true_ns - self.epoch_ns))


def transfer_ns(spec: Spec, op: str, size: int, message_bytes: int) -> int:
    """Return how long a collective takes once all ranks are there; factors as in nccl-tests."""
    factor = {"all_reduce": 2 * (size - 1) / size, "send": 1.0, "recv": 1.0}.get(op, (size - 1) / size)
    return spec.latency_ns + round(message_bytes * max(factor, 0.01) / spec.bandwidth_gbps)
