"""A priced table on a terminal, and as Markdown: scores by group, then the largest misses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.text import Text

from shardtoll.dashboards.terminal.answers import labelled, table
from shardtoll.dashboards.words import markdown_table
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger.answers.forecast import PricedRow, RowsForecast, Scores
from shardtoll.ledger.words import human

_HEADS: Final = (
    "group", "rows", "priced", "bias", "mean", "median", "p90", "max", "in band", "band",
    "constant rate", "memory",
)  # fmt: skip

_ROW_HEADS: Final = ("row", "step s", "low", "high", "tok/s/GPU", "measured s", "error", "memory GiB", "fits")

_FIRST_TO_GO: Final = ("priced", "memory", "bias", "band", "constant rate", "p90", "rows")
"""Columns of scores that a narrow terminal goes without, the least important first."""

_FIRST_TO_GO_OF_ROWS: Final = ("tok/s/GPU", "memory GiB", "low", "high", "fits")

_MOST_ROWS: Final = 40

_WIDE: Final = 60

_MOST_MISSES: Final = 10

_BETWEEN = 3
"""Blanks between two columns."""


def headline(answer: RowsForecast) -> str:
    """Return the answer in one line."""
    whole = answer.scores[-1] if answer.scores else None
    if whole is None:
        return "no row"
    if not whole.measured:
        return f"{whole.priced} of {whole.rows} rows have a price; none was measured"
    return (
        f"{whole.priced} of {whole.rows} rows have a price; step time is off by "
        f"{_share(whole.mean)} on average, {_share(whole.median)} in the median; "
        f"the 80 % band holds {_share(whole.inside, 0)} of {whole.measured}"
    )


def renderable(answer: RowsForecast, width: int) -> RenderableType:
    """Return the scores, and the rows themselves if there are few and the terminal is wide enough."""
    parts: list[RenderableType] = [Text(headline(answer), style="bold", overflow="fold")]
    if answer.calibration:
        parts.append(Text(f"scaled by measured rows of {clip(answer.calibration, 200)}", style="dim"))
    if len(answer.rows) <= _MOST_ROWS and width >= _WIDE:
        parts += _table(_ROW_HEADS, [_row(row) for row in answer.rows], width, _FIRST_TO_GO_OF_ROWS)
        parts += [
            Text(
                f"row {row.number} {clip(row.model, 40) or 'without a model'} has no price: "
                f"{clip(row.reason, 200)}",
                overflow="fold",
            )
            for row in answer.rows
            if row.reason
        ]
    parts += labelled("note", answer.notes, 300)
    if any(score.measured for score in answer.scores):
        parts += _table(_HEADS, [_scores(score) for score in answer.scores], width, _FIRST_TO_GO)
        parts += [Text(line, style="dim", overflow="fold") for line in _below(answer)]
    return Group(*parts)


def _table(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, first_to_go: Sequence[str]
) -> list[RenderableType]:
    kept, cells, more = fitting(heads, rows, width, first_to_go)
    parts: list[RenderableType] = [table(kept, cells)]
    if more:
        parts.append(Text(more, style="dim", overflow="fold"))
    return parts


def markdown(answer: RowsForecast) -> str:
    """Return the scores, the largest misses and the reasons as Markdown."""
    lines = ["# shardtoll forecast eval", "", headline(answer), ""]
    lines += [line for note in answer.notes for line in (f"Note: {markdown_table.cell(note)}", "")]
    lines += markdown_table.table(_HEADS, [_scores(score) for score in answer.scores])
    misses = _misses(answer)
    if misses:
        lines += [
            "",
            "## Largest misses",
            "",
            *markdown_table.table(_ROW_HEADS, [_row(row) for row in misses]),
        ]
    reasons = [row for row in answer.rows if row.reason]
    if reasons:
        lines += ["", "## Rows without a price", ""]
        cell = markdown_table.cell
        lines += [
            f"- row {row.number}, {cell(row.model) or 'no model'}: {cell(row.reason or '')}"
            for row in reasons[:100]
        ]
    return "\n".join([*lines, "", *_below(answer)]) + "\n"


def _below(answer: RowsForecast) -> list[str]:
    weak = answer.weak_scaling
    lines = [
        "band: median of high / low - 1. constant rate: mean error if all rows of the group ran at one MFU."
    ]
    if weak.series:
        lines.append(
            f"weak scaling, last point of {weak.series} series from the first: median {_share(weak.median)}, "
            f"p90 {_share(weak.p90)}; "
            f"no change: {_share(weak.no_change_median)}, {_share(weak.no_change_p90)}"
        )
    return lines


def _misses(answer: RowsForecast) -> list[PricedRow]:
    measured = [row for row in answer.rows if row.error is not None]
    return sorted(measured, key=lambda row: -abs(row.error or 0.0))[:_MOST_MISSES]


def _scores(score: Scores) -> tuple[str, ...]:
    return (
        clip(score.group, 40),
        f"{score.rows:,}",
        f"{score.priced:,}",
        "-" if score.bias is None else f"{100 * score.bias:+.1f} %",
        *(_share(value) for value in (score.mean, score.median, score.p90, score.largest)),
        _share(score.inside, 0),
        _share(score.width, 0),
        _share(score.constant_rate),
        _share(score.memory_median),
    )


def _row(row: PricedRow) -> tuple[str, ...]:
    gpus = human.plural(row.gpus, "GPU") if row.gpus else "? GPUs"
    name = f"{row.number} {clip(row.model, 30) or 'no model'}, {gpus}"
    if row.step_s is None or row.tok_s_gpu is None:
        return (name, *("-" for _ in _ROW_HEADS[1:]))
    memory = "-" if row.memory_gib is None else f"{row.memory_gib.expected:.1f}"
    unsure = "-" if row.memory_gib is None else "maybe"
    fits = {None: unsure, True: "yes", False: "no"}[row.fits]
    return (
        name,
        *(f"{value:.3g}" for value in (row.step_s.expected, row.step_s.low, row.step_s.high)),
        f"{row.tok_s_gpu.expected:,.0f}",
        "-" if row.measured_step_s is None else f"{row.measured_step_s:.3g}",
        "-" if row.error is None else f"{100 * row.error:+.1f} %",
        memory,
        fits,
    )


def _share(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f} %"


def fitting(
    heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, first_to_go: Sequence[str]
) -> tuple[list[str], list[list[str]], str | None]:
    """Return heads and rows without the columns that have no room, and a line that names these, if any.

    `width`: in columns of a terminal. `first_to_go`: what may be left out, the least important first.
    """
    needed = [max(map(cell_len, [head, *(row[place] for row in rows)])) for place, head in enumerate(heads)]
    kept = list(range(len(heads)))
    for head in first_to_go:
        if _width(needed[place] for place in kept) <= width:
            break
        kept.remove(heads.index(head))
    missing = [head for place, head in enumerate(heads) if place not in kept]
    line = f"--width {_width(needed)} also shows: {', '.join(missing)}" if missing else None
    return [heads[place] for place in kept], [[row[place] for place in kept] for row in rows], line


def _width(columns: Iterable[int]) -> int:
    sizes = list(columns)
    return sum(sizes) + _BETWEEN * (len(sizes) - 1)
