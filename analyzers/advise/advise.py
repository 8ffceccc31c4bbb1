"""Advice on one question: the layouts compared, the choice and what decided it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, gcd
from typing import Final

from shardtoll.analyzers.advise.batches import batch_advice
from shardtoll.analyzers.advise.decision_path import FAMILIES, NOISE, Family, choose, path
from shardtoll.analyzers.advise.efficiency import scaling
from shardtoll.analyzers.advise.failures import failure_advice
from shardtoll.analyzers.advise.layouts import lighter, words
from shardtoll.analyzers.advise.lever_trade import lever_trade, pareto
from shardtoll.analyzers.advise.search import Priced, Search, plan_for
from shardtoll.analyzers.forecast.compute.cards import capacity_of, card_of
from shardtoll.analyzers.forecast.memory import plan_memory
from shardtoll.analyzers.forecast.memory.rank_weights import parameter_count
from shardtoll.analyzers.forecast.plan import FabricNetwork, Network
from shardtoll.analyzers.forecast.plan.check import usual_fabric
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.analyzers.shared.checkpoint_interval import LLAMA3, FailureRate
from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.advice import (
    SAME,
    Advice,
    BatchAdvice,
    Candidate,
    FailureAdvice,
    LoaderAdvice,
    Question,
)
from shardtoll.ledger.answers.plan_memory import fits_words
from shardtoll.ledger.answers.training_plan import Layout, Sharding
from shardtoll.ledger.words import human

_REPLAYED: Final = 10
"""Fastest layouts whose memory is replayed through the allocator."""
_TIES: Final = 6
_TIMES_AS_MANY: Final = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Beside:
    """Facts in addition to the question: about failures, checkpoints, loaders and the batch."""

    failure_rate: FailureRate = LLAMA3
    failures_per_day: float | None = None
    checkpoint_blocked_s: float | None = None
    checkpoint_gbps: float | None = None
    asynchronous: bool = False
    recovery_s: float | None = None
    sequences_before: int | None = None
    noise_scale_tokens: float | None = None
    loader_sequences_per_s: float | None = None
    """Measured, per node: delivered at least."""
    loader_most_sequences_per_s: float | None = None
    """Upper limit by the time that loops waited for data; None if unknown."""
    current_step_ns: float | None = None
    """Step of the recorded layout on the machine that is asked about; forecasts are scaled to it."""
    keeps_current: bool = False
    """Whether the current layout stands: no slower one is advised, however simple."""
    ran: bool = False
    """Whether the current layout ran on the machine that is asked about: then it fits in its memory."""
    asked: bool = False
    """Whether the current layout is only asked about: nobody trains with it."""
    recorded: Layout | None = None
    """The layout whose step `current_step_ns` is; None: the current one."""


def advise(question: Question, network: Network | None = None, beside: Beside | None = None) -> Advice:
    """Return the advice. Raises UsageError for an unknown GPU or if nothing divides the batch."""
    beside = beside or Beside()
    capacity = capacity_of(question.gpu)
    wire = network or FabricNetwork(load_fabric(question.fabric or usual_fabric(question.gpu)))
    search = Search(question, wire, capacity)
    recorded, forecast = beside.recorded or question.current, None
    if beside.current_step_ns and recorded is not None:
        forecast = search.calibrate(recorded, beside.current_step_ns)
    priced = search.run()
    if not search.legal:
        divided = question.gpus * ceil(question.sequences / question.gpus)
        raise UsageError(
            f"no layout of {human.plural(question.gpus, 'GPU')} divides a batch of"
            f" {human.plural(question.sequences, 'sequence')}",
            f"give a batch that the GPUs divide, as --batch-tokens {divided * question.sequence}",
        )
    fitting = search.fitting(priced, _REPLAYED)
    families = _families(search, priced)
    best = choose(fitting, lambda family: next(fast for each, fast, _ in families if each is family))
    current = search.candidate(question.current) if question.current is not None else None
    # Who asks for less than the GPU's memory is not answered by a run that had all of it.
    if current is not None and beside.ran and question.memory_share >= 1:
        current = replace(current, fits=True)
    stays = current is not None and _stays(current, best, beside)
    best = current if stays else best
    if best is None:
        return replace(
            _none_fits(question, search, families, current, capacity, beside),
            scale=search.scale,
            recorded_forecast_ns=forecast,
            asked=beside.asked,
        )
    fastest = min((*fitting[:1], best), key=lambda each: each.step_ns.expected)
    ties = _ties(fitting, best, fastest)
    others = tuple(each for each in fitting if each not in ties)[:10]
    trade = lever_trade(search, best)
    shown = [*fitting, best, *(each.candidate for each in trade), *(fast for _, fast, _ in families if fast)]
    return Advice(
        question=question,
        headline=_headline(best, ties, current, capacity, question.memory_share, asked=beside.asked),
        best=best,
        ties=ties,
        fastest=fastest,
        current=current,
        current_gap=None if current is None else slower_by(current, best),
        path=path(_single(search), families, best, capacity, question.memory_share, stays=stays),
        levers=trade,
        # Another precision is another training: it would beat every layout.
        pareto=pareto([each for each in shown if each.fits and each.precision is None]),
        others=others,
        uncertain=_uncertain(search, best),
        batch=_batch(question, beside),
        failures=_failures(question, beside),
        scaling=scaling(search, best),
        loader=_loader(question, best, beside),
        legal=search.legal,
        too_large=search.too_large,
        capacity_bytes=capacity,
        notes=_notes(question, network),
        scale=search.scale,
        recorded_forecast_ns=forecast,
        asked=beside.asked,
    )


def _stays(current: Candidate, best: Candidate | None, beside: Beside) -> bool:
    """Return whether the current layout is kept: it stands, fits and is faster than the best other one.

    It also stays if no simpler one is faster by more than the noise: a change must pay.
    """
    if not beside.keeps_current or not current.fits:
        return False
    if best is None or slower_by(current, best) < 0:
        return True
    return slower_by(current, best) <= NOISE and current.levers <= best.levers


def _families(
    search: Search, priced: Sequence[Priced]
) -> list[tuple[Family, Candidate | None, Candidate | None]]:
    made = []
    for family in FAMILIES:
        members = search.members(priced, family.holds)
        fast = search.fitting(members, 1)
        smallest = None if fast else _smallest(search, family)
        made.append((family, fast[0] if fast else None, smallest))
    return made


def _smallest(search: Search, family: Family) -> Candidate | None:
    """The family's layout with one sequence a micro-batch, as a size to show."""
    question = search.question
    if question.sequences % question.gpus:
        return None
    base = Layout(dp=question.gpus, micro_batch=1, accumulation=question.sequences // question.gpus)
    kinds: tuple[Sharding, ...] = ("fsdp", "zero1", "ddp")
    for sharding in kinds:
        for layout in reversed(lighter(replace(base, sharding=sharding))):
            if family.holds(layout):
                return search.candidate(layout)
    return None


def _enough(search: Search) -> Layout | None:
    """Return a layout that fits, on twice, four times, ... as many GPUs; None if none of those tried does.

    It shards the model over all replicas, alone or with as much tensor parallelism as a node and its heads
    allow, and experts over as many ranks as divide them. Numbers between, and pipelines, are not tried: fewer
    GPUs may be enough.
    """
    question = search.question
    widest = gcd(question.model.heads, question.model.kv_heads, question.gpus_per_node)
    for gpus in (factor * question.gpus for factor in _TIMES_AS_MANY):
        ep = gcd(question.model.experts, gpus)
        for tp in sorted({1, gcd(widest, gpus)}):
            layout = Layout(
                dp=gpus // tp, tp=tp, sequence_parallel=tp > 1, ep=ep, sharding="fsdp", checkpointing="full"
            )
            memory = plan_memory(plan_for(question, layout), search.capacity_bytes)
            if memory.fits(question.memory_share):
                return layout
    return None


def _single(search: Search) -> Candidate | None:
    if search.question.gpus == 1:
        return None
    alone = Search(replace(search.question, gpus=1), search.network, search.capacity_bytes, search.scale)
    return alone.candidate(Layout(micro_batch=1, accumulation=search.question.sequences))


def _ties(fitting: Sequence[Candidate], best: Candidate, fastest: Candidate) -> tuple[Candidate, ...]:
    overlapping = [each for each in fitting if each is not best and each.step_ns.low <= fastest.step_ns.high]
    return (best, *sorted(overlapping, key=lambda each: (each.levers, each.step_ns.expected))[:_TIES])


def _uncertain(search: Search, best: Candidate) -> tuple[Candidate, ...]:
    """Layouts that are faster than the best by more than noise, and that memory may stop."""
    faster = [
        each
        for each in search.uncertain.values()
        if (1 + NOISE) * each.step_ns.expected < best.step_ns.expected
    ]
    return tuple(sorted(faster, key=lambda each: (each.step_ns.expected, each.levers, each.words))[:_TIES])


def slower_by(current: Candidate, best: Candidate) -> float:
    """By which share `best` has more tokens/s: steps of two batches compare by their tokens."""
    return best.tokens_per_s_gpu.expected / current.tokens_per_s_gpu.expected - 1


def _headline(
    best: Candidate,
    ties: Sequence[Candidate],
    current: Candidate | None,
    capacity_bytes: int,
    share: float,
    *,
    asked: bool,
) -> str:
    text = (
        f"Use {best.words}: {best.tokens_per_s_gpu.expected:,.0f} tokens/s per GPU. "
        f"Peak memory: {human.size(best.memory_bytes)} of {human.size(capacity_bytes)}."
    )
    named = "Your layout" if current is None or not asked else current.words
    if current is not None:
        gap = slower_by(current, best)
        if current.layout == best.layout:
            text += " It is the layout that was asked about." if asked else " It is your layout."
            if best.memory_high_bytes > share * capacity_bytes:
                text += f" It ran, so it fits, though its band reaches {human.size(best.memory_high_bytes)}."
        elif not current.fits:
            text += (
                f" {named} {fits_words(current.fits)}: up to {human.size(current.memory_high_bytes)}, "
                f"{human.size(share * capacity_bytes)} allowed."
            )
        elif gap > SAME:
            text += f" {named} takes {human.percent(gap)} longer."
        elif gap > -NOISE:
            less = ", but less simple" if current.levers > best.levers else ""
            text += f" {named} is as fast{less}."
        else:
            text += f" {named} takes {human.percent(-gap)} less time."
    elif len(ties) > 1:
        least = "at least " if len(ties) > _TIES else ""
        text += f" The forecast cannot tell it from {least}{human.plural(len(ties) - 1, 'other layout')}."
    return text


def _batch(question: Question, beside: Beside) -> BatchAdvice:
    return batch_advice(
        question.sequences, question.sequence, beside.sequences_before, beside.noise_scale_tokens
    )


def _failures(question: Question, beside: Beside) -> FailureAdvice:
    return failure_advice(
        gpus=question.gpus,
        parameters=parameter_count(question.model),
        rate=beside.failure_rate,
        failures_per_day=beside.failures_per_day,
        blocked_s=beside.checkpoint_blocked_s,
        write_gbps=beside.checkpoint_gbps,
        recovery_s=beside.recovery_s,
        asynchronous=beside.asynchronous,
    )


def _loader(question: Question, best: Candidate, beside: Beside) -> LoaderAdvice:
    layout, rate = best.layout, best.tokens_per_s_gpu
    # Ranks of one tensor- or context-parallel group read the same sequences, and only first stages read: a
    # replica needs what all its GPUs train on. First stages of all replicas come before the second ones.
    of_replica = layout.world_size / layout.dp / question.sequence
    gpus = min(question.gpus, question.gpus_per_node)
    replicas = min(layout.dp, ceil(gpus / (layout.tp * layout.cp)))
    per_node, high = (tokens * of_replica * replicas for tokens in (rate.expected, rate.high))
    measured = beside.loader_sequences_per_s
    whose = "Each node's loaders" if layout.pp == 1 else "The loaders of a node of first stages"
    text = (
        f"{whose} must deliver {_per_s(per_node)} sequences/s; {_per_s(high)} at the fast "
        "end of the forecast's band."
    )
    if measured is not None:
        most = beside.loader_most_sequences_per_s
        text += f" The run's delivered at least {_per_s(measured)}"
        if measured >= high:
            text += ": enough."
        elif measured >= per_node:
            text += ": enough for the expected speed."
        elif most is not None and most < per_node:
            text += f", at most {_per_s(most)}: too slow."
        else:
            text += ". Whether they can do more is unknown: the loop did not always wait for them."
    return LoaderAdvice(per_node, high, measured, text)


def _per_s(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _notes(question: Question, network: Network | None) -> tuple[str, ...]:
    notes = []
    if question.fabric is None and network is None:
        fabric = usual_fabric(question.gpu)
        gpu = card_of(question.gpu).name
        notes.append(f"No --fabric was given: {fabric}, the usual one of {gpu}, is assumed.")
    return tuple(notes)


def _none_fits(
    question: Question,
    search: Search,
    families: list[tuple[Family, Candidate | None, Candidate | None]],
    current: Candidate | None,
    capacity: int,
    beside: Beside,
) -> Advice:
    sizes = [smallest for _, _, smallest in families if smallest is not None]
    least = min((each.memory_high_bytes for each in sizes), default=None)
    limit = human.size(question.memory_share * capacity)
    needs = "" if least is None else f" FSDP with full checkpointing needs {human.size(least)}."
    enough = _enough(search)
    if enough is None:
        needs += " Ask for larger GPUs."
    else:
        needs += f" It fits on {enough.world_size:,} GPUs, as {words(enough)}; fewer may be enough."
    return Advice(
        question=question,
        headline=f"No layout of {human.plural(question.gpus, 'GPU')} fits in {limit}.{needs}",
        best=None,
        ties=(),
        fastest=None,
        current=current,
        current_gap=None,
        path=(),
        levers=(),
        pareto=(),
        others=(),
        uncertain=(),
        batch=_batch(question, beside),
        # A job that cannot run writes no checkpoint.
        failures=None,
        scaling=(),
        loader=None,
        legal=search.legal,
        too_large=search.too_large,
        capacity_bytes=capacity,
        notes=_notes(question, None),
    )
