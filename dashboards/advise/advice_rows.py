"""Advice as terminal, Markdown and page show it: sections of tables and lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from shardtoll.ledger.answers.advice import MOST_SCALE, SAME, Advice, Candidate, FailureAdvice
from shardtoll.ledger.answers.plan_memory import fits_words
from shardtoll.ledger.words import human


@dataclass(frozen=True, slots=True)
class Section:
    """A title, and a table below it."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lead: str = ""


_LAYOUT_HEADS = (
    "layout",
    "step",
    "tokens/s/GPU",
    "80 % band",
    "MFU",
    "exposed",
    "bubble",
    "memory",
    "upper band",
)


_YES_OR_NO: Final = {True: "yes", None: "maybe", False: "no"}


def layout_row(candidate: Candidate) -> tuple[str, ...]:
    """One layout's cells."""
    rate = candidate.tokens_per_s_gpu
    return (
        candidate.words,
        human.duration(candidate.step_ns.expected),
        f"{rate.expected:,.0f}",
        f"{rate.low:,.0f} to {rate.high:,.0f}",
        "unknown" if candidate.mfu is None else human.percent(candidate.mfu),
        _tenths(candidate.exposed_share),
        _tenths(candidate.bubble_share),
        human.size(candidate.memory_bytes),
        human.size(candidate.memory_high_bytes)
        + ("" if candidate.fits else f" {fits_words(candidate.fits)}"),
    )


def sections(advice: Advice) -> Iterator[Section]:
    """Yield what there is to show, the decision first."""
    if advice.path:
        rows = tuple((each.question, each.number, each.answer) for each in advice.path)
        yield Section("What decided", ("question", "number", "answer"), rows)
    if advice.ties:
        yield Section(
            "The advised layout, and the simplest whose band overlaps that of the fastest",
            _LAYOUT_HEADS, tuple(map(layout_row, advice.ties)), _TIES_LEAD,
        )  # fmt: skip
    if advice.current is not None:
        title = f"{advice.current.words} against the advised layout" if advice.asked else "Your layout"
        yield Section(title, _LAYOUT_HEADS, (layout_row(advice.current),), _gap(advice))
    if advice.confirmed:
        runs = tuple(
            (
                each.words, human.duration(each.forecast_ns),
                f"the script ran {each.ran}" if each.dry_ns is None or not each.same
                else human.duration(each.dry_ns),
                "not confirmed" if each.off is None else _percent(each.off),
            )
            for each in advice.confirmed
        )  # fmt: skip
        yield Section("The best layouts, run dry", ("layout", "forecast", "dry run", "difference"), runs)
    if advice.levers:
        levers = tuple(
            (
                each.name, _signed(each.memory_bytes), _percent(each.tokens_per_s_share),
                _YES_OR_NO[each.candidate.fits],
            )
            for each in advice.levers
        )  # fmt: skip
        yield Section(
            "What the next lever buys", ("lever", "peak memory", "tokens/s", "fits"), levers, _LEVERS_LEAD
        )
    if advice.scaling:
        yield _scaling(advice)
    if advice.uncertain:
        yield Section(
            "Faster layouts that may not fit", _LAYOUT_HEADS, tuple(map(layout_row, advice.uncertain)),
            _UNCERTAIN_LEAD,
        )  # fmt: skip
    if advice.others:
        # The list above is short: some of these may overlap too.
        overlap = advice.fastest is not None and advice.others[0].step_ns.low <= advice.fastest.step_ns.high
        title = (
            "The next fastest that fit; bands of some overlap too" if overlap else "The next fastest that fit"
        )
        yield Section(title, _LAYOUT_HEADS, tuple(map(layout_row, advice.others)))


def _scaling(advice: Advice) -> Section:
    priced = all(each.tokens_per_currency is not None for each in advice.scaling)
    heads: tuple[str, ...] = (
        "machine",
        "layout",
        "tokens/s",
        "efficiency",
        "exposed",
        "bubble",
        "optimizer, host",
        "extra compute",
    )
    rows: list[tuple[str, ...]] = [
        (
            f"{each.gpus:,} {'GPU' if each.gpus == 1 else 'GPUs'}", each.words, f"{each.tokens_per_s:,.0f}",
            human.percent(each.efficiency), _tenths(each.exposed_share), _tenths(each.bubble_share),
            _tenths(each.other_share), _tenths(each.slower_compute_share),
        )
        for each in advice.scaling
    ]  # fmt: skip
    if priced:
        heads += ("tokens per unit of currency",)
        rows = [
            (*row, f"{each.tokens_per_currency:,.0f}") for row, each in zip(rows, advice.scaling, strict=True)
        ]
    lead = _SCALING_LEAD if priced else f"{_SCALING_LEAD} Give --price to see tokens per unit of currency."
    return Section("Scaling, the batch kept", heads, tuple(rows), lead)


_TIES_LEAD = (
    "The advised layout is first, then the simplest. Micro-batch 2 x 8: 8 micro-batches of 2 sequences a "
    "step. Exposed: communication that compute does not hide. Memory: the expected peak, and the upper band "
    "that decides whether it fits."
)
_LEVERS_LEAD = "Each line changes one thing of the advised layout, and says what that changes."
_UNCERTAIN_LEAD = (
    "Their expected peak fits, their upper band does not. The band holds eight of ten measured peaks: a few "
    "steps of the job show which it is."
)
_SCALING_LEAD = (
    "Efficiency: tokens/s per GPU against the most of these rows. Extra compute: recomputation that saves "
    "memory, or smaller kernels. Optimizer, host: that step, launches that compute waits for, fixed costs. "
    "The rest of 100 % is compute that all rows need."
)


def lines(advice: Advice) -> Iterator[str]:
    """Yield sentences about batch, loaders, failures and the search."""
    yield from _recorded(advice)
    yield advice.batch.words
    if advice.loader is not None:
        yield advice.loader.words
    if advice.failures is not None:
        yield from failure_lines(advice.failures)
    yield f"{advice.legal:,} legal layouts, {advice.too_large:,} too large for the GPU."
    yield from advice.notes


def _recorded(advice: Advice) -> Iterator[str]:
    forecast, took_ns = advice.recorded_forecast_ns, advice.recorded_step_ns
    if forecast is None or took_ns is None:
        return
    lost_ns = advice.recorded_lost_ns
    lost = ""
    if lost_ns:
        lost = (
            f" {human.duration(lost_ns)} of it are data, checkpoints, late ranks or capture, which no layout "
            "changes."
        )
    within = "within" if advice.within_forecast else "outside"
    rest = "the rest" if lost_ns else "the step"
    took = "The dry run forecasts a step of" if advice.recorded_dry else "The run's step takes"
    yield (
        f"{took} {human.duration(took_ns)}.{lost} The forecast of its layout was "
        f"{human.duration(forecast.expected)}: {rest} is {within} its band. So every forecast here is "
        f"scaled by {advice.scale:.3g}."
    )
    wider = max(advice.scale, 1 / advice.scale)
    if wider > MOST_SCALE:
        yield (
            f"Nothing on record explains a factor of {wider:.3g}, and other layouts may have another. So "
            "bands of layouts that did not run are wider by it each way."
        )


def failure_lines(failures: FailureAdvice) -> Iterator[str]:
    """Yield sentences about checkpoints: interval, goodput, cost of a failure, asynchronous saves, source."""
    size = human.size(failures.checkpoint_bytes)
    if failures.measured:
        cost = f"it blocks for {human.duration(1e9 * failures.blocked_s)} (measured or given)"
    else:
        cost = (
            f"it blocks for {human.duration(1e9 * failures.blocked_s)} "
            f"({size} at an assumed {human.rate(failures.write_gbps)}; give --checkpoint-seconds)"
        )
    yield (
        f"Write a checkpoint every {span(failures.interval_s)} (Young and Daly): {cost}. "
        f"Goodput is {100 * failures.goodput:.1f} %."
    )
    lost = span(failures.lost_s)
    yield (
        f"A failure is expected every {span(3600 * failures.mean_hours_between)}. It costs "
        f"{span(failures.recovery_s + failures.lost_s)}: {_recovery(failures)}, {lost} of lost work (half an "
        "interval)."
    )
    other = failures.asynchronous
    if other.blocked_s < failures.blocked_s:
        blocked = human.duration(1e9 * other.blocked_s)
        yield (
            f"An asynchronous save would block for about {blocked} (copy to host memory): every "
            f"{span(other.interval_s)}, goodput {100 * other.goodput:.1f} %."
        )
    yield f"Failure rate: {failures.source}."


def _recovery(failures: FailureAdvice) -> str:
    if failures.load_s is None:
        return f"{span(failures.recovery_s)} of recovery (given)"
    restart = span(failures.recovery_s - failures.load_s)
    return (
        f"{restart} to notice, restart and warm up (assumed; give --recovery-seconds), "
        f"{span(failures.load_s)} to load"
    )


def span(seconds: float) -> str:
    """Return a time that people plan with: seconds below two minutes, then minutes, hours and days."""
    for unit, name, least in ((86400, "days", 3), (3600, "hours", 3), (60, "minutes", 2)):
        if seconds >= least * unit:
            value = seconds / unit
            return f"{value:,.0f} {name}" if value >= 9.95 else f"{value:.1f} {name}"
    return human.duration(1e9 * seconds)


def _gap(advice: Advice) -> str:
    gap, current = advice.current_gap, advice.current
    if gap is None or current is None or advice.best is None:
        return ""
    best = advice.best
    if current.layout == best.layout:
        return "It is the advised one."
    if not current.fits:
        return f"It {fits_words(current.fits)}: {human.size(current.memory_high_bytes)} at the upper band."
    if gap <= SAME:
        less = ", but less simple" if current.levers > best.levers else ""
        return f"It is no slower than the advised one{less}."
    name, lost_ns = advice.lost or ("", 0.0)
    # The bands are of what both have in common too: the same work and some more is slower for sure.
    more = replace(current.layout, checkpointing=best.layout.checkpointing) == best.layout
    overlap = not more and best.step_ns.high >= current.step_ns.low
    tie = " The bands overlap: it may be as fast." if overlap else ""
    lost = f"{name} (+{human.duration(lost_ns)})"
    return f"It takes {human.percent(gap)} longer, most of it {lost}.{tie}"


def _signed(count: int) -> str:
    return f"{'+' if count > 0 else '-' if count < 0 else ''}{human.size(abs(count))}"


def _tenths(share: float) -> str:
    """A share to a tenth of a percent: a forecast knows no more."""
    return "<0.1 %" if 0 < share < 0.001 else human.percent(share)


def _percent(share: float) -> str:
    return f"{'+' if share >= 0 else ''}{human.percent(share)}"
