"""Prices legal layouts: memory prunes first, the forecast prices what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from shardtoll.analyzers.advise.block_time import BlockTimes
from shardtoll.analyzers.advise.layouts import legal_layouts, levers, lighter, words
from shardtoll.analyzers.forecast.memory import plan_memory
from shardtoll.analyzers.forecast.memory.peak import outside_bytes
from shardtoll.analyzers.forecast.memory.quick import quick_peak_bytes
from shardtoll.analyzers.forecast.plan import Network, price_plan
from shardtoll.ledger.answers.advice import MOST_SCALE, Candidate, Question
from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.answers.plan_memory import fits_in
from shardtoll.ledger.answers.training_plan import Layout, TrainingPlan

_QUICK_LEAST: Final = 0.97
"""The closed form is below the replay in most plans: nothing that it finds too large by less is dropped."""
_HOPELESS: Final = 1.25
"""A layout whose least step is longer than this times the fastest step so far is not priced."""
_PRICED_LEAST: Final = 40


@dataclass(frozen=True, slots=True)
class Priced:
    """A layout that fits by the closed form, with its price and not yet its replayed memory."""

    plan: TrainingPlan
    step_ns: float


def plan_for(question: Question, layout: Layout) -> TrainingPlan:
    """The question's plan with this layout."""
    return TrainingPlan(
        question.model, layout, question.sequence, question.gpu,
        gpus_per_node=question.gpus_per_node, fabric=question.fabric, precision=question.precision,
        framework=question.framework,
    )  # fmt: skip


class Search:
    """Candidates of one question on one network and one kind of GPU."""

    def __init__(self, question: Question, network: Network, capacity_bytes: int, scale: float = 1.0) -> None:
        self._blocks = BlockTimes(network)
        self.question, self.network, self.capacity_bytes = question, network, capacity_bytes
        self.scale = scale
        """Measured over forecast time of a layout that ran: every candidate's times are scaled by it."""
        self._recorded: Layout | None = None
        self.legal = 0
        self.too_large = 0
        self.slow: list[TrainingPlan] = []
        self.uncertain: dict[Layout, Candidate] = {}
        self._full: dict[tuple[Layout, bool, str], Candidate] = {}

    def calibrate(self, layout: Layout, step_ns: float) -> Band:
        """Scale all candidates so that this layout takes the time that its step was seen to take.

        Returns what its forecast was.
        """
        forecast = self.candidate(layout).step_ns
        self.scale *= step_ns / forecast.expected
        self._recorded = layout
        self._full.clear()
        return forecast

    def run(self, layouts: Iterable[Layout] | None = None) -> list[Priced]:
        """Price the legal layouts that may fit and may be fast, fastest first.

        Checkpointing is added only if memory asks for it. `layouts`: these instead of all legal ones, as
        they are.
        """
        plans: list[tuple[float, int, TrainingPlan]] = []
        for layout in legal_layouts(self.question) if layouts is None else layouts:
            self.legal += 1
            plan = self._held(lighter(layout) if layouts is None else [layout])
            if plan is not None:
                plans.append((self._least_ns(plan), len(plans), plan))
        plans.sort()
        fastest, self.slow = math.inf, []
        priced: list[Priced] = []
        for least, _, plan in plans:
            if least > _HOPELESS * fastest and len(priced) >= _PRICED_LEAST:
                self.slow.append(plan)
                continue
            priced.append(self._priced(plan))
            fastest = min(fastest, priced[-1].step_ns)
        return _in_order(priced)

    def members(self, priced: Sequence[Priced], holds: Callable[[Layout], bool]) -> list[Priced]:
        """Priced layouts for which `holds` is true; of those that looked slow a few, if there is none."""
        those = [each for each in priced if holds(each.plan.layout)]
        if not those:
            slow = [plan for plan in self.slow if holds(plan.layout)][:3]
            those = _in_order([self._priced(plan) for plan in slow])
        return those

    def _held(self, versions: Sequence[Layout]) -> TrainingPlan | None:
        """The plan of the first version that the closed form finds small enough."""
        limit = self.question.memory_share * self.capacity_bytes
        for layout in versions:
            plan = plan_for(self.question, layout)
            if _QUICK_LEAST * quick_peak_bytes(plan) + outside_bytes(plan) <= limit:
                return plan
        self.too_large += 1
        return None

    def _least_ns(self, plan: TrainingPlan) -> float:
        """About the least step: blocks of one stage and the pipeline's bubble, no replicas, no optimizer."""
        layout = plan.layout
        block_ns = self._blocks.time_ns(plan)
        idle = (layout.pp - 1) / (layout.accumulation * layout.chunks)
        return layout.accumulation * block_ns * plan.model.layers / layout.pp * (1 + idle)

    def _priced(self, plan: TrainingPlan) -> Priced:
        return Priced(plan, price_plan(plan, self.network).step_ns.expected)

    def candidate(self, layout: Layout, *, offload: bool = False, precision: str | None = None) -> Candidate:
        """The layout with price and replayed memory."""
        question = self.question if precision is None else replace(self.question, precision=precision)
        key = (layout, offload, question.precision)
        if key not in self._full:
            plan = plan_for(question, layout)
            made = _candidate(plan, self.network, self.capacity_bytes, question.memory_share, offload)
            if question.precision != self.question.precision:
                words_of = f"{made.words}, {question.precision} matmuls"
                made = replace(made, words=words_of, precision=question.precision)
            # A large factor has a cause that is not known, and other layouts may have less or more of it.
            factor = max(self.scale, 1 / self.scale)
            ran = layout == self._recorded and not offload and question is self.question
            self._full[key] = _scaled(made, self.scale, 1.0 if ran or factor <= MOST_SCALE else factor)
        return self._full[key]

    def fitting(self, priced: Sequence[Priced], most: int) -> list[Candidate]:
        """The fastest `most` candidates whose replayed memory fits, fastest first.

        One that does not fit comes again with more checkpointing, in its new place. Those that are expected
        to fit are kept in `uncertain`.
        """
        waiting = [(each.step_ns, number, each.plan.layout) for number, each in enumerate(priced)]
        heapify(waiting)
        chosen: list[Candidate] = []
        number = len(waiting)
        while waiting and len(chosen) < most:
            _, _, layout = heappop(waiting)
            candidate = self.candidate(layout)
            if candidate.fits:
                chosen.append(candidate)
                continue
            if candidate.fits is None:
                self.uncertain[layout] = candidate
            versions = lighter(layout)
            for version in versions[versions.index(layout) + 1 :][:1]:
                number += 1
                step = price_plan(plan_for(self.question, version), self.network).step_ns.expected
                heappush(waiting, (step, number, version))
        return sorted(chosen, key=lambda each: (each.step_ns.expected, each.levers, each.words))


def _scaled(candidate: Candidate, scale: float, wider: float) -> Candidate:
    """Return the candidate with all its times scaled, and bands `wider` times as far each way."""
    if scale == 1:
        return candidate
    return replace(
        candidate,
        step_ns=_wider(candidate.step_ns.scaled(scale), wider),
        tokens_per_s_gpu=_wider(candidate.tokens_per_s_gpu.scaled(1 / scale), wider),
        mfu=None if candidate.mfu is None else candidate.mfu / scale,
        compute_ns=candidate.compute_ns * scale,
        exposed_ns={name: time * scale for name, time in candidate.exposed_ns.items()},
        bubble_ns=candidate.bubble_ns * scale,
        other_ns=candidate.other_ns * scale,
    )


def _wider(band: Band, factor: float) -> Band:
    return Band(band.expected, band.low / factor, band.high * factor)


def _in_order(priced: list[Priced]) -> list[Priced]:
    return sorted(priced, key=lambda each: (each.step_ns, levers(each.plan.layout), words(each.plan.layout)))


_OFFLOAD_GBPS: Final = 20.0
"""PCIe 5 to pinned host memory as measured in one direction, GB/s; both directions overlap."""


def _candidate(
    plan: TrainingPlan, network: Network, capacity_bytes: int, share: float, offload: bool
) -> Candidate:
    memory = plan_memory(plan, capacity_bytes)
    price = price_plan(plan, network)
    expected = memory.reserved.expected_bytes + memory.outside_bytes
    high = memory.reserved.high_bytes + memory.outside_bytes
    step, rate = price.step_ns, price.tokens_per_s_gpu
    other = price.optimizer_ns + price.other_ns
    if offload:
        moved = memory.by_category["optimizer"]
        expected, high = expected - moved, high - moved
        # Gradients go out in fp32, parameters come back in 16 bits: half of the state's 12 bytes a parameter.
        added = moved / 2 / _OFFLOAD_GBPS
        factor = (step.expected + added) / step.expected
        step, rate, other = step.scaled(factor), rate.scaled(1 / factor), other + added
    return Candidate(
        layout=plan.layout,
        words=words(plan.layout) + (", optimizer in host memory" if offload else ""),
        levers=levers(plan.layout) + offload,
        memory_bytes=expected,
        memory_high_bytes=high,
        fits=fits_in(expected, high, share * capacity_bytes),
        step_ns=step,
        tokens_per_s_gpu=rate,
        mfu=None if price.mfu is None else price.mfu.expected * price.step_ns.expected / step.expected,
        compute_ns=price.compute_ns,
        exposed_ns=dict(price.exposed_ns),
        bubble_ns=price.bubble_ns,
        other_ns=other,
        offload=offload,
    )
