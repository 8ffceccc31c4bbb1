"""Sweeps and the model's predictions for them, on a terminal."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.fabrics.sweep_lines import LEGEND, ErrorLine, SizeLine, SweepLine, SweepTable
from shardtoll.dashboards.terminal.screen import Screen
from shardtoll.dashboards.words.text import clean, clip
from shardtoll.ledger.words import human

SIZES_SHOWN_FOR: Final = 4
"""With more sweeps than this each is one line; a file, -o, holds all sizes of all."""


def show(table: SweepTable, width: int | None = None) -> None:
    """Print it; `width` in columns, by default the terminal's."""
    console = Screen(width)
    console.print(renderable(table))


def renderable(table: SweepTable) -> RenderableType:
    """Return the sweeps, size by size if they are few, and the errors by band."""
    parts: list[RenderableType] = []
    if len(table.sweeps) <= SIZES_SHOWN_FOR:
        for sweep in table.sweeps:
            parts += [_head(sweep), *([_sizes(sweep)] if sweep.predicted else []), Text("")]
    else:
        parts += [_overview(table.sweeps), Text("")]
    for mode, errors in table.totals:
        if not errors[-1].count:
            continue
        parts += [Text(f"{mode}: {table.over(mode)}", style="bold"), _errors(errors), _below(errors)]
    if any(sweep.predicted for sweep in table.sweeps):
        parts.append(Text(LEGEND, style="dim"))
    return Group(*parts)


def _head(sweep: SweepLine) -> RenderableType:
    text = Text(clip(sweep.file, 200), style="bold", overflow="fold")
    body = Text(f"{sweep.title()}, {clip(sweep.hardware, 120) or 'hardware not named'}\n", overflow="fold")
    body.append(
        f"fabric {clean(sweep.fabric)} ({clip(sweep.sure, 200)}): " if sweep.fabric else "no fabric: "
    )
    body.append(sweep.mode_words())
    if sweep.guesses:
        body.append(f"\nguesses: {', '.join(map(clean, sweep.guesses))}", style="yellow")
    if sweep.reason:
        body.append(f"\nnot predicted: {clip(sweep.reason, 300)}", style="yellow")
    return Group(text, Padding(body, (0, 0, 0, 2), expand=False))


def _sizes(sweep: SweepLine) -> Table:
    table = _table("size", "measured", "expected", "low", "high", "error", "by")
    for size in sweep.sizes:
        table.add_row(
            human.size(size.message_bytes),
            human.duration(size.measured_ns),
            human.duration(size.predicted_ns),
            human.duration(size.low_ns),
            human.duration(size.high_ns),
            _error(size),
            clean(" ".join(filter(None, (size.algorithm, size.protocol)))),
        )
    return table


def _error(size: SizeLine) -> Text:
    if size.error is None:
        return Text(human.UNKNOWN)
    text = Text(f"{100 * size.error:+.1f} %")
    if size.inside is False:
        text.append(" outside", style="yellow")
    return text


def _overview(sweeps: tuple[SweepLine, ...]) -> Table:
    table = _table("sweep", "fabric", "mode", "sizes", "median", "p90", "in band", "width")
    for sweep in sweeps:
        every = sweep.errors[-1]
        name = Text(clean(sweep.file.rsplit("/", 1)[-1].removesuffix(".csv")), overflow="fold")
        if sweep.reason:
            name.append(f"\nnot predicted: {clip(sweep.reason, 160)}", style="yellow")
        cells = (clean(sweep.fabric or human.UNKNOWN), sweep.mode, f"{every.count} of {len(sweep.sizes)}")
        table.add_row(
            name, *cells, *map(_percent, (every.median, every.p90, every.inside)), human.factor(every.width)
        )
    return table


def _errors(errors: tuple[ErrorLine, ...]) -> Table:
    table = _table("band", "sizes", "median", "p90", "in band", "width", "noise median", "noise p90")
    for line in errors:
        shares = map(_percent, (line.median, line.p90, line.inside))
        noise = map(_percent, (line.noise_median, line.noise_p90))
        table.add_row(line.band, str(line.count), *shares, human.factor(line.width), *noise)
    return table


def _below(errors: tuple[ErrorLine, ...]) -> Text:
    """Return the shares below floor and light, of all sizes and of the band with most."""
    every = errors[-1]
    worst = max(errors[:-1], key=lambda line: line.below_floor or 0.0)
    most = f" (of {worst.band} {_percent(worst.below_floor)})" if worst.below_floor else ""
    return Text(
        f"below floor {_percent(every.below_floor)}{most}, below light {_percent(every.below_light)}\n"
    )


def _percent(part: float | None) -> str:
    return "-" if part is None else human.share(part, 1)


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    for name in others:
        table.add_column(name, justify="left" if name in ("fabric", "mode", "by") else "right")
    return table
