"""The score of verified fixes on a terminal: how many are gone, how well savings were predicted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards import human
from shardtoll.dashboards.text import clip
from shardtoll.ledger.scores import KindScore

COLUMNS: Final = ("verified", "gone", "smaller", "still there", "unknown", "exceeded", "measured / predicted")
TABLE_WIDTH: Final = 110
DAMAGED_SHOWN: Final = 5


def show(name: str, lines: Sequence[KindScore], damaged: Sequence[int], width: int | None = None) -> None:
    """Print the score in the file of that name; `damaged`: lines of it that are no score."""
    console = Console(width=width, highlight=False)
    console.print(renderable(name, lines, damaged, console.width))


def renderable(name: str, lines: Sequence[KindScore], damaged: Sequence[int], width: int) -> RenderableType:
    """Return it for a terminal of that width."""
    verified, gone = (sum(getattr(line, what) for line in lines) for what in ("verified", "gone"))
    head = Text("the score", style="bold")
    head.append(
        f"  {clip(name, 200)}: {gone} of {human.plural(verified, 'verified fix', 'verified fixes')} gone"
    )
    parts: list[RenderableType] = [head]
    if damaged:
        shown = ", ".join(map(str, damaged[:DAMAGED_SHOWN])) + (
            ", ..." if len(damaged) > DAMAGED_SHOWN else ""
        )
        left_out = human.plural(len(damaged), "damaged line")
        parts.append(Text(f"{left_out} left out: {shown}", style="yellow"))
    if width < TABLE_WIDTH:
        for line in lines:
            cells = zip(COLUMNS, _cells(line), strict=True)
            parts.append(Text(f"{line.kind}: " + ", ".join(f"{what} {cell}" for what, cell in cells)))
    elif lines:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("kind")
        for what in COLUMNS:
            table.add_column(what, justify="right")
        for line in lines:
            table.add_row(line.kind, *_cells(line))
        parts.append(table)
    parts.append(
        Text("a prediction is an upper bound: measured / predicted at or below 1 keeps it", style="dim")
    )
    return Group(*parts)


def _cells(line: KindScore) -> tuple[str, ...]:
    ratio = human.UNKNOWN if line.ratio is None else f"{line.ratio:.2f} (of {line.timed})"
    counts = (line.verified, line.gone, line.smaller, line.still, line.unknown, line.exceeded)
    return (*map(str, counts), ratio)
