"""Changes of findings, gradients and time between two runs, on a terminal, by rich, and as Markdown.

And the score of all fixes that were verified so far, on a terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from shardtoll.dashboards.terminal.answers import head, indented, labelled, table
from shardtoll.dashboards.terminal.fitted import tight
from shardtoll.dashboards.verify import verdict
from shardtoll.dashboards.words import markdown_table
from shardtoll.dashboards.words.markdown_table import cell
from shardtoll.dashboards.words.text import answer, clip
from shardtoll.ledger.answers.verification import Judged, Verification
from shardtoll.ledger.report.scores import KindScore
from shardtoll.ledger.words import human

TABLE_WIDTH: Final = 72
"""Narrower terminals get the figures as lines."""
SCORE_WIDTH: Final = 122
"""The same of the score."""
SCORE_HEADS: Final = (
    *(
        "verified",
        "gone",
        "smaller",
        "still there",
        "unknown",
        "exceeded",
        "measured / predicted",
        "bands held",
    ),
)
DAMAGED_SHOWN: Final = 5
_FIGURE_HEADS: Final = ("per step", "before", "after", "change")
_STYLE: Final = {
    "gone": "bold green",
    "smaller": "yellow",
    "still there": "bold red",
    "cannot be told": "yellow",
}
_ANSWER: Final = {"equal": "bold green", "differ": "bold red", "unknown": "yellow"}
_KEPT: Final = {"kept": "bold green", "exceeded": "bold red", "longer": "bold red"}
_MOST: Final = 600


def renderable(verification: Verification, width: int) -> RenderableType:
    """Return it for a terminal of that width."""
    subject = f"{clip(verification.before, 200)} -> {clip(verification.after, 200)}"
    parts: list[RenderableType] = [
        head("verify", subject, verdict.headline(verification), passed=verification.passed),
        *labelled("not alike", verification.warnings, _MOST),
    ]
    for judged in verification.worked_on:
        parts += _finding(judged)
    for title, lines in _lists(verification):
        parts += [Text(f"\n{title}", style="bold"), *indented(lines)]
    parts += [*_gradients(verification), *_saving(verification, width)]
    if verification.new:
        parts += [
            Text("\nnew in the run after", style="bold"), *indented(verdict.new_findings(verification.new))
        ]  # fmt: skip
    return Group(*parts)


def _lists(verification: Verification) -> list[tuple[str, list[str]]]:
    """Return title and lines of what is not shown whole; without those that have no lines."""
    every = ((verdict.OPEN, verdict.still_open(verification)), (verdict.ALSO, verdict.also(verification)))
    return [(title, lines) for title, lines in every if lines]


def _finding(judged: Judged) -> list[RenderableType]:
    title = Text(f"\n{judged.number:>2} ").append(answer(judged.verdict), style=_STYLE[judged.verdict])
    body = Text(overflow="fold")
    body.append(verdict.title(judged), style="bold")
    body.append(f"\nwhere: {verdict.place(judged.finding)}\n{clip(judged.why, _MOST)}")
    if judged.quantity is not None:
        name, was, now, by = verdict.figure(judged.quantity)
        body.append(f"\n{name}: {was} -> {now} ({by})")
    body.append(f"\npredicted saving: {verdict.predicted(judged)}")
    return [title.append(f" {judged.finding.kind}"), *indented([body], expand=False)]


def _gradients(verification: Verification) -> list[RenderableType]:
    gradients = verification.gradients
    wanted = gradients.change_expected and gradients.answer == "differ"
    style = "bold green" if wanted else _ANSWER[gradients.answer]
    text = Text("\n").append(verdict.gradients_words(gradients), style=style)
    return [text.append(f": {clip(gradients.why, _MOST)}"), *indented(verdict.differences(gradients))]


def _saving(verification: Verification, width: int) -> list[RenderableType]:
    saving = verification.saving
    text = Text("\n").append(f"saving {answer(saving.kept)}", style=_KEPT.get(saving.kept, "yellow"))
    text.append(f": {clip(saving.why, _MOST)}")
    text.append(f" ({verdict.timed_steps(saving)})", style="dim")
    rows = verdict.figures(verification)
    if width < TABLE_WIDTH:
        return [text, *(Text(f"{name}: {was} -> {now} ({by})") for name, was, now, by in rows)]
    return [text, table(_FIGURE_HEADS, rows)]


def markdown(verification: Verification) -> str:
    """Return it as Markdown: tables of the findings and of the step's figures."""
    gradients, saving = verification.gradients, verification.saving
    heads = ("#", "finding", "where", "verdict", "why", "predicted saving")
    findings = [
        (str(judged.number), f"{judged.finding.kind}: {verdict.title(judged)}", verdict.place(judged.finding),
         answer(judged.verdict), judged.why, verdict.predicted(judged))
        for judged in verification.worked_on
    ]  # fmt: skip
    lines = [
        f"# shardtoll verify: {'passed' if verification.passed else 'not passed'}",
        "",
        f"{cell(verification.before)} -> {cell(verification.after)}. {cell(verdict.headline(verification))}.",
        *(f"- not alike: {cell(words)}" for words in verification.warnings),
        "",
        *markdown_table.table(heads, findings),
        "",
        *(line for title, lines in _lists(verification) for line in _items(title, lines)),
        f"**{cell(verdict.gradients_words(gradients))}**: {cell(gradients.why)}",
        *(f"- {cell(line)}" for line in verdict.differences(gradients)),
        "",
        f"**saving {answer(saving.kept)}**: {cell(saving.why)} ({verdict.timed_steps(saving)})",
        "",
        *markdown_table.table(_FIGURE_HEADS, verdict.figures(verification)),
        "",
        *(_items("New in the run after", verdict.new_findings(verification.new)) if verification.new else []),
    ]
    return "\n".join(lines[:-1]) + "\n"


def _items(title: str, lines: Sequence[str]) -> list[str]:
    return [f"{title}:", "", *(f"- {cell(line)}" for line in lines), ""]


def score(name: str, lines: Sequence[KindScore], damaged: Sequence[int], width: int) -> RenderableType:
    """Return the score in the file of that name; `damaged`: lines of it that are no score."""
    verified, gone = (sum(getattr(line, what) for line in lines) for what in ("verified", "gone"))
    fixes = human.plural(verified, "verified fix", "verified fixes")
    title = Text("the score", style="bold")
    parts: list[RenderableType] = [title.append(f"  {clip(name, 200)}: {gone} of {fixes} gone")]
    if damaged:
        shown = ", ".join(map(str, damaged[:DAMAGED_SHOWN])) + ", ..." * (len(damaged) > DAMAGED_SHOWN)
        left_out = human.plural(len(damaged), "damaged line")
        parts.append(Text(f"{left_out} left out: {shown}", style="yellow"))
    rows = [(line.kind, *_score_cells(line)) for line in lines]
    narrow = tight(("kind", *SCORE_HEADS), rows, width, words=(0,)) if width < SCORE_WIDTH else None
    if narrow is not None:
        parts.append(narrow)
    elif width < SCORE_WIDTH:
        for line in lines:
            cells = zip(SCORE_HEADS, _score_cells(line), strict=True)
            parts.append(Text(f"{line.kind}: " + ", ".join(f"{what} {words}" for what, words in cells)))
    elif lines:
        parts.append(table(("kind", *SCORE_HEADS), rows))
    note = (
        "a prediction is an upper bound unless it was replayed: measured / predicted at or below 1 keeps "
        "it. A replayed one has a band, which held if it meets the measured interval"
    )
    return Group(*parts, Text(note, style="dim"))


def _score_cells(line: KindScore) -> tuple[str, ...]:
    ratio = human.UNKNOWN if line.ratio is None else f"{line.ratio:.2f} (of {line.timed})"
    counts = (line.verified, line.gone, line.smaller, line.still, line.unknown, line.exceeded)
    bands = f"{line.held} of {line.bands}" if line.bands else "–"
    return (*map(str, counts), ratio, bands)
