"""The sweep: every op, size and kind of group in turn, round after round, until the medians are sure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
import torch.distributed as dist

from shardtoll.ledger.measured.measured import Timings, uncertainty
from shardtoll.profiler.calibrate.ops import PAIRED, buffers, call_of, fitting_bytes
from shardtoll.profiler.calibrate.timed_groups import Groups
from shardtoll.profiler.calibrate.timing import Case, combined_ns, time_once, wait_for_all

WARM_UPS: Final = 2
"""Rounds that are not counted: connections are made and buffers touched in them."""

LEAST_ROUNDS: Final = 6
"""Fewer samples show nothing about a median, and too little about a band."""

MOST_ROUNDS: Final = 400


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the sweep has come, for whoever watches."""

    rounds: int
    elapsed_s: float
    wide: int
    """Cases whose median is not sure yet."""
    cases: int


@dataclass(slots=True)
class Sweep:
    """Measurements, on rank 0; other ranks hold no samples."""

    cases: list[Case]
    samples: list[list[int]] = field(default_factory=list)
    rounds: int = 0
    unsupported: tuple[str, ...] = ()
    """Ops that the backend does not do."""
    left_out: tuple[str, ...] = ()
    """Names of the spare kinds of groups that the time did not suffice for."""

    def wide(self, target: float) -> list[tuple[Case, float | None]]:
        """Return the cases whose median's interval is wider than `target` on either side, and how wide."""
        widths = [(case, uncertainty(times)) for case, times in zip(self.cases, self.samples, strict=True)]
        return [(case, width) for case, width in widths if width is None or width > target]

    def timings(self, source: Callable[[str], str]) -> list[Timings]:
        """Return the samples by op and placement; `source` is given the names of the groups they are of.

        A message's samples are those of its receive too.
        """
        times: dict[tuple[str, int, int, int], dict[int, list[int]]] = {}
        kinds: dict[tuple[str, int, int, int], dict[str, None]] = {}
        for case, samples in zip(self.cases, self.samples, strict=True):
            kind = case.kind
            key = (case.op, kind.ranks, kind.nodes, kind.sharing)
            if case.op in PAIRED:
                key = (case.op, 2, min(kind.nodes, 2), kind.sharing)
            times.setdefault(key, {}).setdefault(case.message_bytes, []).extend(samples)
            kinds.setdefault(key, {})[kind.name] = None
        return [
            Timings(name, ranks, nodes, by_size, source(", ".join(kinds[op, ranks, nodes, sharing])), sharing)
            for (op, ranks, nodes, sharing), by_size in times.items()
            for name in (PAIRED if op in PAIRED else (op,))
        ]


def sweep(
    kinds: Sequence[Groups],
    ops: Sequence[str],
    sizes_bytes: Sequence[int],
    device: torch.device,
    *,
    limit_s: float,
    target: float,
    begun_s: float,
    progress: Callable[[Progress], None] | None = None,
) -> Sweep:
    """Measure on the groups of `kinds`; call it on all ranks of the world.

    Each round goes over all cases in an order of its own, so that a disturbance or a drift falls on no size
    alone. It ends when every median is within `target` of itself (95 % of the time), or when another round
    would go past `limit_s` after `begun_s` of this process's monotonic clock. It never ends before
    `LEAST_ROUNDS`: spare kinds are left out after the warm-up if these would not fit into the limit with
    them.
    """
    cases, unsupported = _cases(kinds, ops, sizes_bytes, device)
    result = Sweep(cases, [[] for _ in cases], 0, unsupported)
    one_clock = device.type != "cuda"
    for number in range(WARM_UPS + MOST_ROUNDS):
        round_s = time.monotonic()
        order = list(range(len(cases)))
        random.Random(number).shuffle(order)
        rows = torch.zeros(len(cases), 2, dtype=torch.int64)
        took_s = [0.0] * len(cases)
        for case_number in order:
            case_s = time.monotonic()
            rows[case_number] = torch.tensor(time_once(cases[case_number], device))
            took_s[case_number] = time.monotonic() - case_s
        everyone = _gathered(rows, device)
        on = number < WARM_UPS
        if not on and dist.get_rank() == 0:
            for case_number, case in enumerate(cases):
                spans = [(int(start), int(end)) for start, end in everyone[:, case_number].tolist()]
                result.samples[case_number] += combined_ns(case, spans, one_clock=one_clock)
            result.rounds += 1
            now_s = time.monotonic()
            wide = len(result.wide(target))
            if progress is not None:
                progress(Progress(result.rounds, now_s - begun_s, wide, len(cases)))
            late = now_s - begun_s + (now_s - round_s) > limit_s
            on = result.rounds < LEAST_ROUNDS or (wide > 0 and not late)
        if number == WARM_UPS - 1:
            # The last warm-up has connections made: its round is as long as those to come.
            names = no_time_for(cases, took_s, limit_s - (time.monotonic() - begun_s))
            spare = dict.fromkeys(case.kind.name for case in cases if case.kind.spare)
            result.left_out = tuple(name for name in spare if _rank_0_says(name in names, device))
            cases = [case for case in cases if case.kind.name not in result.left_out]
            result.cases, result.samples = cases, [[] for _ in cases]
        if not _rank_0_says(on, device):
            break
    return result


def no_time_for(cases: Sequence[Case], took_s: Sequence[float], left_s: float) -> set[str]:
    """Return the names of the spare kinds with which `LEAST_ROUNDS` rounds take longer than `left_s`.

    `took_s` is what each case took in a round. Kinds are taken in their order, as long as there is time.
    """
    seconds: dict[tuple[bool, str], float] = {}
    for case, took in zip(cases, took_s, strict=True):
        key = (case.kind.spare, case.kind.name)
        seconds[key] = seconds.get(key, 0.0) + took
    needed_s = sum(took for (spare, _), took in seconds.items() if not spare)
    names = set()
    for (spare, name), took in seconds.items():
        if not spare:
            continue
        if LEAST_ROUNDS * (needed_s + took) > left_s:
            names.add(name)
        else:
            needed_s += took
    return names


def _cases(
    kinds: Sequence[Groups], ops: Sequence[str], sizes_bytes: Sequence[int], device: torch.device
) -> tuple[list[Case], tuple[str, ...]]:
    world = dist.get_world_size()
    largest = max(max(sizes_bytes), world * 4)
    given, taken = buffers(largest, world, device)
    cases, refused = [], []
    for op in ops:
        mine = []
        for kind in kinds:
            if kind.spare and op in PAIRED:
                continue  # a message is one in a group of any size
            sizes = {fitting_bytes(op, size, kind.ranks) for size in sizes_bytes}
            mine += [
                Case(kind, op, size, call_of(op, size, kind.own, given, taken)) for size in sorted(sizes)
            ]
        if _does(mine[0], device):
            cases += mine
        else:
            refused.append(op)
    return cases, tuple(refused)


def _does(case: Case, device: torch.device) -> bool:
    """Whether the backend does the op, on every rank."""
    wait_for_all(device)
    try:
        case.call()
        able = 1
    except (RuntimeError, ValueError):
        able = 0
    answer = torch.tensor([able], device=device)
    dist.all_reduce(answer, op=dist.ReduceOp.MIN)
    return bool(answer.item())


def _gathered(rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return every rank's begin and end of each case: [ranks, cases, 2], ns."""
    parts = [torch.empty_like(rows, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows.to(device))
    return torch.stack(parts).cpu()


def _rank_0_says(on: bool, device: torch.device) -> bool:
    # Ranks that decided each by its own clock would wait for each other forever.
    answer = torch.tensor([int(on)], device=device)
    dist.broadcast(answer, src=0)
    return bool(answer.item())
