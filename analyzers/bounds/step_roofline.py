"""The least time of a step by accelerator and fabric, compared with the time it took."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from shardtoll.analyzers.bounds.comm_bounds import NO_COLLECTIVES, CommBounds, comm_bounds, free_compute_ns
from shardtoll.analyzers.bounds.op_light import Lights, lights
from shardtoll.analyzers.bounds.operator_rows import OperatorRows, operator_rows
from shardtoll.analyzers.bounds.roofline_words import assumptions, why_unknown
from shardtoll.analyzers.bounds.top_operators import top_operators
from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.roofline import Gpu, gpu_of_run, other_device_note
from shardtoll.analyzers.shared.tally import keep
from shardtoll.ledger.answers.step_roofline import RankRoofline, StepRoofline
from shardtoll.ledger.words.human import duration

Places = npt.NDArray[np.int64]
_NOWHERE: Final[Places] = np.empty(0, dtype=np.int64)

COLUMNS: Final = ("step", "rank", "duration_ns", "capture_ns", "compute_ns", "exposed_comm_ns")
"""Read of a rank's steps."""

_SIDE_BY_SIDE: Final = 1.02
"""Kernels whose times add up to more than that of the time computed ran at once, on several streams."""

_SLACK: Final = 0.999
"""A step may seem shorter than its bound by rounding, as parts of a step may: no more than that."""


def step_roofline(context: Context) -> StepRoofline | None:
    """Return the section; None if no step finished."""
    if context.step_rows.empty:
        return None
    gpu = gpu_of(context)
    rows = operator_rows(context)
    bounds = None if gpu is None else lights(rows, gpu)
    timed = _timed(context, rows)[list(COLUMNS)]
    tellings = context.telling(timed)
    bounded = context.in_part(tellings)
    steps = tuple(sorted(int(step) for step in timed["step"].unique()))
    comm = comm_bounds(context, steps)
    refuted = list(() if bounds is None else bounds.refuted)
    ranks = []
    places, telling = _by_rank(rows.frame), _by_rank(tellings)
    in_part = set(_by_rank(bounded))
    for rank, rows_of in sorted(_by_rank(timed).items()):
        exposed = _Exposed(tellings.iloc[telling.get(rank, _NOWHERE)], at_least=rank in in_part)
        of_rank = _Rank(rank, timed.iloc[rows_of], exposed, rows, bounds, comm.get(rank, NO_COLLECTIVES))
        ranks.append(of_rank.figures(places.get(rank, _NOWHERE)))
        refuted += of_rank.refuted
    return StepRoofline(
        gpu=None if gpu is None else gpu.title,
        why_unknown=why_unknown(context) if gpu is None else None,
        peak_tflops={} if gpu is None else {name: peak.value for name, peak in gpu.peak_tflops.items()},
        memory_gbps=None if gpu is None else gpu.memory_gbps.value,
        reached_tflops=_reached(gpu),
        ranks=tuple(ranks),
        ops=top_operators(rows, bounds),
        assumptions=assumptions(rows, gpu, ranks, in_part),
        refuted=tuple(dict.fromkeys(refuted)),
        guesses=() if gpu is None else gpu.guesses,
    )


def _by_rank(frame: pd.DataFrame) -> dict[int, Places]:
    """Return at which places of the frame the rows of each rank are."""
    indices: dict[Any, Any] = dict(frame.groupby("rank").indices)
    return {int(rank): places for rank, places in indices.items()}


def gpu_of(context: Context) -> Gpu | None:
    """Return the accelerator: as the run names its device, else of a fabric that fits it; None on CPUs."""
    if context.on_cpu or "fake" in (context.ledger.run.backend or ""):
        return None
    gpu = gpu_of_run(context.ledger.run)
    if gpu is not None or other_device_note(context.ledger.run, context.fabric):
        return gpu
    return context.fabric.gpu


def _reached(gpu: Gpu | None) -> float | None:
    return None if gpu is None or gpu.reached_matmul_tflops is None else gpu.reached_matmul_tflops.value


def _timed(context: Context, rows: OperatorRows) -> pd.DataFrame:
    """Return the rows of the steps whose time counts: those a trace tells of, else the truest ones."""
    if rows.of_trace:
        return keep(context.step_rows, context.step_rows["step"].isin(rows.steps))
    return context.timed_rows


class _Exposed(Struct, frozen=True):
    """Exposed communication of a rank's steps."""

    steps: pd.DataFrame
    """The rows that tell it."""
    at_least: bool
    """Whether what they tell is a lower bound."""

    def mean_ns(self) -> float | None:
        return float(self.steps["exposed_comm_ns"].astype("float64").mean()) if len(self.steps) else None

    def hideable_ns(self, comm: CommBounds) -> float | None:
        """Return the part that compute could hide at best; None if more may be exposed than is known."""
        exposed_ns = self.mean_ns()
        if exposed_ns is None:
            return None
        free_ns = free_compute_ns(self.steps, comm)
        return None if self.at_least and exposed_ns < free_ns else min(exposed_ns, free_ns)


class _Rank:
    """One rank's mean step being worked out."""

    def __init__(
        self,
        rank: int,
        steps: pd.DataFrame,
        exposed: _Exposed,
        rows: OperatorRows,
        bounds: Lights | None,
        comm: CommBounds,
    ) -> None:
        self.rank, self.steps, self.rows, self.bounds, self.comm = rank, steps, rows, bounds, comm
        self.exposed = exposed
        self.refuted: list[str] = []
        """Bounds that the rank was faster than."""

    def figures(self, mine: Places) -> RankRoofline:
        """Return the rank's line, made of the operators at these places. Bounds that the step was faster than
        are left out, and named."""
        took_ns = float((self.steps["duration_ns"] - self.steps["capture_ns"]).astype("float64").mean())
        work = self._work(mine, took_ns)
        comm_light = self._within(self.comm.light_ns, took_ns, "the links' speed of light")
        comm_floor = self._within(self.comm.floor_ns, took_ns, "the floor of its collectives")
        floor, serial = work.floor_ns, self.comm.serial_ns
        return RankRoofline(
            rank=self.rank,
            steps=len(self.steps),
            took_ns=round(took_ns),
            exposed_comm_ns=_whole(self.exposed.mean_ns()),
            flops=_whole(work.flops),
            hfu=work.hfu,
            mfu=work.mfu,
            known_share=work.known_share,
            compute_light_ns=_whole(work.light_ns),
            compute_floor_ns=_whole(floor),
            comm_light_ns=_whole(comm_light),
            comm_floor_ns=_whole(comm_floor),
            comm_serial_ns=_whole(serial),
            comm_known_share=self.comm.known_share,
            comm_count=self.comm.count,
            comm_light_count=self.comm.light_count,
            comm_floor_count=self.comm.floor_count,
            light_ns=None if work.light_ns is None else _whole(max(work.light_ns, comm_light or 0.0)),
            best_overlap_ns=None if floor is None or comm_floor is None else _whole(max(floor, comm_floor)),
            serial_ns=None if floor is None or serial is None else _whole(floor + serial),
            hideable_ns=_whole(self.exposed.hideable_ns(self.comm)),
        )

    def _work(self, mine: Places, took_ns: float) -> _Work:
        if not len(mine):
            return _Work()
        frame = self.rows.frame.iloc[mine]
        number = len(self.steps) if self.rows.of_trace else int(frame["step"].nunique())
        flops = frame["flops"].to_numpy(dtype=np.float64)
        work = _Work(flops=float(np.nansum(flops)) / number if not np.isnan(flops).all() else None)
        bounds = self.bounds
        if bounds is None:
            return work
        device_ns = frame["device_ns"].to_numpy(dtype=np.float64)
        light_ns, floor_ns = bounds.light_ns[mine], bounds.floor_ns[mine]
        bounded = ~np.isnan(light_ns)
        if bounded.any() or self.rows.of_trace:
            light, floor = float(light_ns[bounded].sum()), float(floor_ns[bounded].sum())
            if self.rows.of_trace:
                computed = float(self.steps["compute_ns"].astype("float64").sum())
                if device_ns.sum() > _SIDE_BY_SIDE * computed:
                    # Side by side one may use what the other leaves: only the sums of each kind are bounds.
                    light = max(float(np.nansum(each[mine])) for each in (bounds.flops_ns, bounds.bytes_ns))
                light = min(light, computed)
                floor = max(light, min(floor + float(device_ns[~bounded].sum()), computed))
                work.known_share = min(
                    1.0, float(device_ns[bounded].sum()) / max(1.0, float(device_ns.sum()))
                )
            if bounded.any():
                work.light_ns = self._within(light / number, took_ns, "what the accelerator's peaks allow")
            work.floor_ns = self._within(floor / number, took_ns, "what large matmuls reach")
        whole_ns = bounds.whole_flops_ns[mine]
        again = frame["again"].to_numpy(dtype=bool)
        if not np.isnan(whole_ns).all() and took_ns > 0:
            hfu = float(np.nansum(whole_ns)) / number / took_ns
            if self._within(hfu * took_ns, took_ns, "its FLOPs at the accelerator's peak") is not None:
                work.hfu = min(hfu, 1.0)
                share = float(np.nansum(np.where(again, 0.0, whole_ns))) / number / took_ns
                work.mfu = min(share, 1.0)
        return work

    def _within(self, bound_ns: float | None, took_ns: float, what: str) -> float | None:
        """Return a lower bound of the step; None if the step was shorter, as it is then not a bound."""
        if bound_ns is None or bound_ns * _SLACK <= took_ns:
            return None if bound_ns is None else min(bound_ns, took_ns)
        self.refuted.append(
            f"rank {self.rank}'s step took {duration(took_ns)}, less than {what}: {duration(bound_ns)}"
        )
        return None


class _Work(Struct):
    """Figures of a rank's operators in a mean step."""

    flops: float | None = None
    light_ns: float | None = None
    floor_ns: float | None = None
    known_share: float | None = None
    hfu: float | None = None
    mfu: float | None = None


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
