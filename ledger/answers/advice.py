"""Advice on the layout of a training job: what was asked, the layouts compared, and what decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.answers.training_plan import Layout, ModelShape
from shardtoll.ledger.foreign.plain import to_plain

MOST_SCALE: Final = 2.0
"""A recorded step that differs from its forecast by a larger factor does so for a reason nobody knows."""

SAME: Final = 0.0005
"""Two steps that differ by a smaller share have one time: a forecast knows no more."""


@dataclass(frozen=True, slots=True)
class Question:
    """The question that advice answers."""

    model: ModelShape
    gpus: int
    gpu: str
    sequence: int
    sequences: int
    """Effective batch in sequences, over all replicas."""
    fabric: str | None = None
    gpus_per_node: int = 8
    precision: str = "bf16"
    framework: str = ""
    memory_share: float = 1.0
    """Share of the GPU's memory that the upper band may use. The band is the margin already."""
    price_per_gpu_hour: float | None = None
    current: Layout | None = None
    """Layout in use; None if there is none."""

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.sequences * self.sequence


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout with its forecast."""

    layout: Layout
    words: str
    """As `FSDP 8, TP 2, micro-batch 1 x 4`."""
    levers: int
    """Mechanisms beyond data parallel that it uses: fewer is simpler."""
    memory_bytes: int
    """Expected peak, reserved by the allocator and outside it."""
    memory_high_bytes: int
    fits: bool | None
    """None if the memory that may be used lies within the band: it may fit."""
    step_ns: Band
    tokens_per_s_gpu: Band
    mfu: float | None
    compute_ns: float
    exposed_ns: Mapping[str, float]
    bubble_ns: float
    other_ns: float
    """Optimizer, time that the host decides, and fixed costs. With compute, exposed communication and bubble
    it is the step."""
    offload: bool = False
    """Whether the optimizer's state lives in host memory."""
    precision: str | None = None
    """Precision of its matmuls if it is another one than the question's."""

    @property
    def exposed_share(self) -> float:
        """Exposed communication as a share of the step."""
        return sum(self.exposed_ns.values()) / self.step_ns.expected

    @property
    def bubble_share(self) -> float:
        """Pipeline bubble as a share of the step."""
        return self.bubble_ns / self.step_ns.expected


@dataclass(frozen=True, slots=True)
class Decision:
    """One step of the decision path."""

    question: str
    number: str
    """The number that decided, with its unit and what it is compared with."""
    answer: str


@dataclass(frozen=True, slots=True)
class Lever:
    """Effect of changing one thing of the advised layout."""

    name: str
    candidate: Candidate
    memory_bytes: int
    """Expected change of peak memory; below 0: less."""
    tokens_per_s_share: float
    """Expected change of tokens/s as a share; above 0: faster."""


@dataclass(frozen=True, slots=True)
class BatchAdvice:
    """The effective batch, and what changing it would mean. Information, no recommendation."""

    sequences: int
    tokens: int
    kept: bool
    """Whether it equals the batch in use, as far as that is known."""
    noise_scale_tokens: float | None = None
    """Gradient noise scale (arXiv 1812.06162): a batch beyond it saves few steps."""
    learning_rate_factor: tuple[float, float] | None = None
    """Square-root and linear rule for a batch that changed; None if it is kept."""
    words: str = ""


@dataclass(frozen=True, slots=True)
class LoaderAdvice:
    """Samples per second that loaders must deliver, compared with the measured rate."""

    needed_per_s: float
    """Sequences per second and node at the advised layout's expected speed."""
    needed_high_per_s: float
    """The same at the fast end of its band."""
    measured_per_s: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Saving:
    """One way to save checkpoints, at its best interval."""

    blocked_s: float
    """Time that one checkpoint keeps training waiting."""
    interval_s: float
    goodput: float


@dataclass(frozen=True, slots=True)
class FailureAdvice:
    """Checkpoints against failures: cost, interval, goodput."""

    checkpoint_bytes: int
    """Sum over all ranks: parameters and the optimizer's state."""
    blocked_s: float
    """Time that one checkpoint keeps training waiting."""
    write_gbps: float | None
    """GB/s (1e9) of all writers together; None if the time was measured or given."""
    recovery_s: float
    """Detection, restart, load and warm-up; lost work comes on top."""
    load_s: float | None
    """Part of `recovery_s` that loads the checkpoint; None if `recovery_s` was given."""
    lost_s: float
    """Work that a failure loses in the mean: half an interval."""
    failures_per_day: float
    mean_hours_between: float
    interval_s: float
    """Best time between checkpoints by Young and Daly; no shorter than an asynchronous save writes."""
    goodput: float
    """Share of the time that makes progress which stays."""
    source: str
    """Source of the failure rate."""
    measured: bool
    """Whether `blocked_s` was measured or given; False: from bytes and the assumed rate of storage."""
    asynchronous: Saving
    """The same if saves blocked for the copy to host memory only."""
    at_intervals: tuple[tuple[float, float], ...] = ()
    """(interval in s, goodput) around the best."""


@dataclass(frozen=True, slots=True)
class ScalePoint:
    """The best layout at one number of GPUs, the batch kept."""

    gpus: int
    words: str
    tokens_per_s: float
    efficiency: float
    """Tokens per second and GPU, as a share of the most at any point: at most 1."""
    exposed_share: float
    bubble_share: float
    other_share: float
    """Optimizer, time that the host decides, and fixed costs, as a share of the step."""
    slower_compute_share: float
    """Compute beyond that of the point with the least for a token, as a share of the step. Causes are
    recomputation because memory is short, or smaller kernels."""
    tokens_per_currency: float | None


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A layout that a script ran dry: its operators and collectives priced one by one."""

    words: str
    """The layout that was asked for."""
    ran: str
    """The layout that the script ran, or `nothing` and why."""
    same: bool
    forecast_ns: float
    """Step by the plan's forecast."""
    dry_ns: float | None
    """Step by the dry run; None if it failed."""
    arguments: str
    """Arguments that the script got."""

    @property
    def off(self) -> float | None:
        """By which share the dry run is longer than the forecast; None if it did not run this layout."""
        return None if self.dry_ns is None or not self.same else self.dry_ns / self.forecast_ns - 1


@dataclass(frozen=True, slots=True)
class Advice:
    """The answer."""

    question: Question
    headline: str
    best: Candidate | None
    """None if no layout fits."""
    ties: tuple[Candidate, ...]
    """Layouts whose band overlaps the fastest one's, simplest first; `best` is the first."""
    fastest: Candidate | None
    current: Candidate | None
    current_gap: float | None
    """By which share the best layout has more tokens/s than the current one: 0.1 is 10 %."""
    path: tuple[Decision, ...]
    levers: tuple[Lever, ...]
    pareto: tuple[Candidate, ...]
    """Layouts that no other beats in both memory and speed, least memory first."""
    others: tuple[Candidate, ...]
    """The next best that fit, fastest first."""
    uncertain: tuple[Candidate, ...]
    """Faster than `best` and expected to fit, but their upper band does not: fastest first."""
    batch: BatchAdvice
    failures: FailureAdvice | None
    """None if no layout fits."""
    scaling: tuple[ScalePoint, ...]
    loader: LoaderAdvice | None
    legal: int
    """Legal layouts."""
    too_large: int
    """Legal layouts whose memory does not fit."""
    capacity_bytes: int
    notes: tuple[str, ...] = field(default=())
    confirmed: tuple[Confirmed, ...] = ()
    """Dry runs of the best layouts; empty if none was asked for."""
    recorded_step_ns: float | None = None
    """Step of the run that was asked about; None without a run."""
    recorded_dry: bool = False
    """Whether it is a dry run's: then it was not measured."""
    recorded_lost_ns: float = 0.0
    """The part of it that no layout changes: data, checkpoints, late ranks and capture. At least that."""
    recorded_forecast_ns: Band | None = None
    """Forecast of the run's own layout; None if no forecast was compared with a recorded step."""
    scale: float = 1.0
    """All forecasts were multiplied by this, so that the run's layout takes the recorded step."""

    asked: bool = False
    """Whether `current` is only asked about: nobody trains with it."""

    @property
    def within_forecast(self) -> bool | None:
        """Whether the recorded step, without the part that no layout changes, is within its forecast; None if
        unknown."""
        band, took_ns = self.recorded_forecast_ns, self.recorded_step_ns
        return (
            None
            if band is None or took_ns is None
            else band.low <= took_ns - self.recorded_lost_ns <= band.high
        )

    @property
    def lost(self) -> tuple[str, float] | None:
        """Part of the step where the current layout loses most, and its ns; None without a best one.

        The current layout's time is that of as many tokens as a step of the best one.
        """
        best, current = self.best, self.current
        if best is None or current is None:
            return None
        steps = best.layout.sequences / current.layout.sequences
        parts = {
            "exposed communication": steps * sum(current.exposed_ns.values()) - sum(best.exposed_ns.values()),
            "pipeline bubble": steps * current.bubble_ns - best.bubble_ns,
            "compute": steps * current.compute_ns - best.compute_ns,
            "optimizer, host and fixed time": steps * current.other_ns - best.other_ns,
        }
        return max(parts.items(), key=lambda each: each[1])


def advice_to_json(advice: Advice) -> dict[str, Any]:
    """Return the advice as JSON values."""
    plain: dict[str, Any] = to_plain(advice)
    return {"schema_version": 1, **plain}
