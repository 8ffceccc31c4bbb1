"""What terminal, Markdown and page show of advice: sections of tables and lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardtoll.ledger.answers.advice import Advice, Candidate
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


def layout_row(candidate: Candidate) -> tuple[str, ...]:
    """One layout's cells."""
    rate = candidate.tokens_per_s_gpu
    return (
        candidate.words,
        human.duration(candidate.step_ns.expected),
        f"{rate.expected:,.0f}",
        f"{rate.low:,.0f} to {rate.high:,.0f}",
        "unknown" if candidate.mfu is None else human.percent(candidate.mfu),
        human.percent(candidate.exposed_share),
        human.percent(candidate.bubble_share),
        human.size(candidate.memory_bytes),
        human.size(candidate.memory_high_bytes) + ("" if candidate.fits else " does not fit"),
    )


def sections(advice: Advice) -> Iterator[Section]:
    """Yield what there is to show, the decision first."""
    if advice.path:
        rows = tuple((each.question, each.number, each.answer) for each in advice.path)
        yield Section("What decided", ("question", "number", "answer"), rows)
    if advice.ties:
        yield Section(
            "The advised layout and those the forecast cannot tell from the fastest",
            _LAYOUT_HEADS, tuple(map(layout_row, advice.ties)), "Simplest first.",
        )  # fmt: skip
    if advice.current is not None:
        yield Section("The layout that you named", _LAYOUT_HEADS, (layout_row(advice.current),), _gap(advice))
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
                "yes" if each.candidate.fits else "no",
            )
            for each in advice.levers
        )  # fmt: skip
        yield Section("What the next lever buys", ("lever", "peak memory", "tokens/s", "fits"), levers)
    if advice.scaling:
        points = tuple(
            (
                f"{each.gpus:,}", each.words, f"{each.tokens_per_s:,.0f}", human.percent(each.efficiency),
                human.percent(each.exposed_share), human.percent(each.bubble_share),
                human.percent(each.slower_compute_share),
                "unknown" if each.tokens_per_currency is None else f"{each.tokens_per_currency:,.0f}",
            )
            for each in advice.scaling
        )  # fmt: skip
        heads = (
            "GPUs",
            "layout",
            "tokens/s",
            "efficiency",
            "exposed",
            "bubble",
            "slower kernels",
            "tokens per 1 of money",
        )
        yield Section("Scaling, the batch kept", heads, points)
    if advice.others:
        yield Section("Other layouts that fit", _LAYOUT_HEADS, tuple(map(layout_row, advice.others)))


def lines(advice: Advice) -> Iterator[str]:
    """Yield sentences about batch, loaders, failures and the search."""
    if advice.recorded_step_ns is not None and advice.current is not None:
        forecast = advice.current.step_ns
        within = "within" if forecast.low <= advice.recorded_step_ns <= forecast.high else "outside"
        yield (
            f"The run's step takes {human.duration(advice.recorded_step_ns)}, its layout's forecast is "
            f"{human.duration(forecast.expected)}: {within} the band."
        )
    yield advice.batch.words
    if advice.loader is not None:
        yield advice.loader.words
    failures = advice.failures
    if failures is not None:
        yield (
            f"Write a checkpoint every {failures.interval_s / 60:,.0f} minutes: it blocks for "
            f"{human.duration(1e9 * failures.blocked_s)} ({human.size(failures.checkpoint_bytes)}). "
            f"A failure is expected every {failures.mean_hours_between:,.3g} hours. "
            f"Goodput {100 * failures.goodput:.1f} %."
        )
        yield f"Failure rate: {failures.source}."
    yield f"{advice.legal:,} legal layouts, {advice.too_large:,} too large for the GPU."
    yield from advice.notes


def _gap(advice: Advice) -> str:
    gap, current = advice.current_gap, advice.current
    if gap is None or current is None or advice.best is None:
        return ""
    if not current.fits:
        return f"It does not fit: {human.size(current.memory_high_bytes)} at the upper band."
    best = advice.best
    if gap <= 0:
        return "It is as fast as the advised one, with more mechanisms."
    name, lost_ns = advice.lost or ("", 0.0)
    overlap = best.step_ns.high >= current.step_ns.low
    tie = " The bands overlap: it may be as fast." if overlap else ""
    lost = f"{name} (+{human.duration(lost_ns)})"
    return f"It takes {human.percent(gap)} longer per step, most of it {lost}.{tie}"


def _signed(count: int) -> str:
    return f"{'+' if count >= 0 else '-'}{human.size(abs(count))}"


def _percent(share: float) -> str:
    return f"{'+' if share >= 0 else ''}{human.percent(share)}"
