"""The forecast of a dry step on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.terminal.answers import head, indented, labelled
from shardtoll.ledger.answers.dry_step import DryMemory, DryStep, NoTokens
from shardtoll.ledger.answers.forecast import Band
from shardtoll.ledger.answers.plan_memory import fits_words
from shardtoll.ledger.words import human

_MOST_CAUSES = 6
_MOST_PLACES = 3


def renderable(answer: DryStep, width: int) -> RenderableType:
    """Return the forecast for a terminal so many columns wide."""
    what = f"rank {answer.rank} of {answer.world_size:,} on {answer.gpu}, {answer.fabric}"
    fits = answer.memory is None or answer.memory.fits is not False
    verdict = f"A step takes {_time(answer.step_ns)}." if answer.step_ns is not None else _unknown(answer)
    if answer.memory is not None:
        verdict += f" {_fits(answer.memory)}"
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    for label, text in _rates(answer):
        rows.add_row(Text(label, style="bold"), text)
    parts: list[RenderableType] = [head("dryrun", what, verdict, passed=fits), rows]
    if answer.memory is not None:
        parts += indented(_memory(answer.memory))
    parts += labelled("assumed", answer.notes, 4 * width)
    last = "Times are forecasts; nothing was measured."
    if answer.world_size > 1:
        last += " Gradients that no collective reduces were not looked for: `shardtoll run` does."
    parts.append(Text(last, style="dim"))
    return Group(*parts)


def _unknown(answer: DryStep) -> str:
    parts = ", ".join(f"{count:,} of {cause}" for cause, count in answer.unpriced.items())
    return f"The time of a step is unknown: collectives without a price on this fabric ({parts})."


def _time(band: Band) -> str:
    return f"{human.duration(band.expected)} ({human.duration(band.low)} to {human.duration(band.high)})"


def _rates(answer: DryStep) -> list[tuple[str, str]]:
    if answer.step_ns is None:
        return [("compute", human.duration(answer.compute_ns))]
    step = answer.step_ns.expected
    exposed = sum(answer.exposed_ns.values())
    rows = [
        ("compute", f"{human.duration(answer.compute_ns)} ({human.share(answer.compute_ns, step)})"),
        ("exposed communication", f"{human.duration(exposed)} ({human.share(exposed, step)})"),
    ]
    causes = list(answer.exposed_ns.items())
    rows += [(f"  {cause}", human.duration(time)) for cause, time in causes[:_MOST_CAUSES]]
    if len(causes) > _MOST_CAUSES:
        rest = sum(time for _, time in causes[_MOST_CAUSES:])
        rows.append((f"  {len(causes) - _MOST_CAUSES} more", human.duration(rest)))
    if answer.bubble_ns:
        rows.append(("bubble", f"{human.duration(answer.bubble_ns)} ({human.share(answer.bubble_ns, step)})"))
    elif answer.bubble_ns is None:
        rows.append(("bubble", "unknown: other pipeline stages were not run"))
    rows.append(
        ("waits for the host", f"{human.duration(answer.idle_ns)} ({human.share(answer.idle_ns, step)})")
    )
    rate = answer.tokens_per_s_gpu
    if rate is not None:
        rows.append(("tokens/s/GPU", f"{rate.expected:,.0f} ({rate.low:,.0f} to {rate.high:,.0f})"))
    elif answer.no_tokens is not None:
        rows.append(("tokens/s/GPU", f"unknown, as {_NO_TOKENS[answer.no_tokens]}: give --tokens"))
    for label, band in (("MFU", answer.mfu), ("HFU", answer.hfu)):
        if band is not None:
            rows.append((label, f"{_percent(band.expected)} ({_percent(band.low)} to {_percent(band.high)})"))
    if answer.price_per_step is not None:
        rows.append(("cost per step", _money(answer.price_per_step)))
    if answer.price_per_billion_tokens is not None:
        rows.append(("cost per billion tokens", _money(answer.price_per_billion_tokens)))
    return rows


_NO_TOKENS: Final[Mapping[NoTokens, str]] = {
    "no embedding": "no embedding was looked up",
    "embedding without shapes": "the shapes of what an embedding looked up are not on record",
    "embeddings disagree": "embeddings looked up different numbers",
    "shared by unknown ranks": "ranks may share tokens, and no mesh says which",
}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _money(band: Band) -> str:
    return f"{band.expected:,.4g} ({band.low:,.4g} to {band.high:,.4g}), in the currency of --price"


def _fits(memory: DryMemory) -> str:
    reserved = f"{human.size(memory.reserved_bytes.expected)} of {human.size(memory.capacity_bytes)}"
    verb = "needs" if memory.fits is False else "reserves"
    return f"It {fits_words(memory.fits)}: it {verb} {reserved}."


def _memory(memory: DryMemory) -> list[str]:
    band = memory.reserved_bytes
    lines = [
        f"peak memory: allocated {human.size(memory.allocated_bytes)}, reserved {human.size(band.expected)} "
        f"({human.size(band.low)} to {human.size(band.high)})",
        f"reserved has {human.size(memory.outside_bytes)} outside the allocator: CUDA's context "
        "and NCCL's buffers",
        "at the peak: " + ", ".join(f"{name} {human.size(size)}" for name, size in memory.at_peak.items()),
    ]
    if memory.retries:
        often = human.often(memory.retries)
        lines.append(
            f"torch frees what it has cached {often} for that, and the device stands still meanwhile"
        )
    for label, places in (("by module", memory.by_module), ("by line", memory.by_source)):
        if places:
            shown = (f"{name} {human.size(size)}" for name, size in places[:_MOST_PLACES])
            lines.append(f"{label}: " + ", ".join(shown))
    return lines
