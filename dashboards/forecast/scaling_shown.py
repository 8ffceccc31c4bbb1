"""A run's scaling on a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardtoll.dashboards.terminal.answers import labelled, table
from shardtoll.dashboards.words import markdown_table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.forecast import Band, Scaling, ScalingPoint
from shardtoll.ledger.words import human

_WIDE: Final = 100
"""Narrower terminals get ranks, step and band only."""
_MORE: Final = 1.005
"""Efficiency from which it is shown as more than 100 %."""
HEADS: Final = ("ranks", "step", "80 % band", "compute", "exposed", "other", "efficiency", "band")
TITLES: Final = {
    "weak": "Weak scaling: each GPU keeps its work",
    "strong": "Strong scaling: the step keeps its work",
}


def headline(answer: Scaling) -> str:
    """Return the effect of the asked number of ranks on the step, in one sentence."""
    weak, strong = answer.asked("weak"), answer.asked("strong")
    if weak is None or strong is None:
        return f"nothing is forecast for {human.plural(answer.world, 'rank')}"
    if weak.unpriced:
        return (
            f"The step on {human.plural(answer.world, 'rank')} is unknown: "
            f"{', '.join(weak.unpriced)} has no price. "
            f"It lies in {band(weak.step_ns)} with the same work per GPU, in {band(strong.step_ns)} with the "
            f"same work per step; {known_by(answer)} on {answer.measured_world:,}: "
            f"{human.duration(answer.measured_step_ns)}"
        )
    return (
        f"On {human.plural(answer.world, 'rank')} the step takes {human.duration(weak.step_ns.expected)} "
        f"({band(weak.step_ns)}) with the same work per GPU, {human.duration(strong.step_ns.expected)} "
        f"({band(strong.step_ns)}) with the same work per step; "
        f"{known_by(answer)} on {answer.measured_world:,}: {human.duration(answer.measured_step_ns)}"
    )


def known_by(answer: Scaling) -> str:
    """Return how the run's own step is known: a dry run measures nothing."""
    return "forecast" if answer.dry else "measured"


def machines(answer: Scaling) -> str:
    """Return which machine the run had and which one is asked for."""
    before = f"{answer.gpu_before or 'CPU'} on {answer.fabric_before}"
    after = f"{answer.gpu or 'CPU'} on {answer.fabric}"
    if before == after:
        return f"{known_by(answer)}: {before}"
    return f"{'dry run' if answer.dry else 'measured'}: {before}; forecast: {after}"


def efficiency(answer: Scaling) -> str:
    """Return the column's definition, and how it can exceed 100 % if it does."""
    on = f"{answer.gpu or 'CPU'} on {answer.fabric}"
    ranks = human.plural(answer.base_world, "rank")
    if answer.strong_base_world != answer.base_world:
        other = human.plural(answer.strong_base_world, "rank")
        ranks += f" (with the same work per GPU) and {other} (per step)"
    said = f"efficiency: work per GPU and second, against that on {ranks} of {on}; "
    said += "its band is that of both steps"
    priced = [point for point in (*answer.weak, *answer.strong) if not point.unpriced]
    if any(point.efficiency.expected > _MORE for point in priced):
        return f"{said}; above 100 %, more ranks make each GPU's part of the step cheaper"
    return said


def renderable(answer: Scaling, width: int) -> RenderableType:
    """Return it for a terminal."""
    parts: list[RenderableType] = [
        Text(headline(answer), style="bold", overflow="fold"),
        Text(f"{clip(answer.run, 200)}; {machines(answer)}", style="dim", overflow="fold"),
    ]
    if answer.calibration:
        parts.append(Text(f"corrected by the run on {answer.calibration}", style="dim", overflow="fold"))
    for kind, title in TITLES.items():
        points = answer.weak if kind == "weak" else answer.strong
        parts += [Text(f"\n{title}", style="bold"), _table(points, width)]
    if width >= _WIDE:
        parts.append(Text(f"\n{efficiency(answer)}", style="dim", overflow="fold"))
    parts += labelled("note", answer.notes, 300)
    return Group(*parts)


def _table(points: Sequence[ScalingPoint], width: int) -> RenderableType:
    shown = len(HEADS) if width >= _WIDE else 3
    return table(HEADS[:shown], [row(point)[:shown] for point in points])


def markdown(answer: Scaling) -> str:
    """Return it as Markdown."""
    lines = [
        "# shardtoll forecast",
        "",
        headline(answer),
        "",
        f"{markdown_table.cell(answer.run)}; {machines(answer)}",
    ]
    if answer.calibration:
        lines += ["", f"corrected by the run on {answer.calibration}"]
    for kind, title in TITLES.items():
        points = answer.weak if kind == "weak" else answer.strong
        lines += ["", f"## {title}", "", *markdown_table.table(HEADS, [row(point) for point in points])]
    lines += ["", efficiency(answer), ""]
    lines += [f"- {markdown_table.cell(note)}" for note in answer.notes]
    return "\n".join(lines) + "\n"


def row(point: ScalingPoint) -> tuple[str, ...]:
    """Return the cells of one number of ranks."""
    return (
        f"{point.world:,}",
        human.UNKNOWN if point.unpriced else human.duration(point.step_ns.expected),
        band(point.step_ns),
        human.duration(point.compute_ns),
        human.UNKNOWN if point.unpriced else human.duration(sum(point.exposed_ns.values())),
        human.duration(point.other_ns),
        human.UNKNOWN if point.unpriced else f"{100 * point.efficiency.expected:.1f} %",
        f"{100 * point.efficiency.low:.0f} to {100 * point.efficiency.high:.0f} %",
    )


def band(of: Band) -> str:
    """Return a band of times in words."""
    return f"{human.duration(of.low)} to {human.duration(of.high)}"
