"""The known fabrics, or GPUs, on a terminal: what each is and how far its numbers can be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.terminal.screen import Screen
from shardtoll.dashboards.words.text import clean

TABLE_WIDTH: Final = 100
FABRIC_HEADS: Final = ("fabric", "what it is", "where its numbers come from")
GPU_HEADS: Final = ("gpu", "what it is", "memory and peak")


@dataclass(frozen=True, slots=True)
class FabricLine:
    """One fabric, or GPU, as it is listed."""

    name: str
    title: str
    provenance: str
    """The source of its numbers; of a GPU its main figures."""
    numbers: int
    """How many numbers it has."""
    guesses: int
    """How many of them are neither read in a source nor derived from one."""

    def trust(self) -> Text:
        """Return how many of its numbers have a source, in words."""
        if not self.guesses:
            return Text(f"all {self.numbers} with a source")
        return Text(f"{self.guesses} of {self.numbers} are guesses", style="yellow")


def show(
    fabrics: Iterable[FabricLine], width: int | None = None, heads: tuple[str, str, str] = FABRIC_HEADS
) -> None:
    """Print the list; `width` in columns, by default the terminal's; without one, a line a fabric."""
    console = Screen(width)
    lines = list(fabrics)
    if width is None and not console.is_terminal:
        # For other programs, as grep: nothing is folded or filled up.
        for line in _plain(lines):
            console.print(Text(line), soft_wrap=True)
        return
    console.print(_table(lines, heads) if console.width >= TABLE_WIDTH else _blocks(lines))


def _plain(fabrics: Sequence[FabricLine]) -> Iterator[str]:
    longest = max((len(clean(fabric.name)) for fabric in fabrics), default=0)
    for fabric in fabrics:
        parts = (clean(fabric.title), fabric.trust().plain, clean(fabric.provenance))
        yield f"{clean(fabric.name):{longest}}  {' | '.join(parts)}".rstrip()


def _table(fabrics: Iterable[FabricLine], heads: tuple[str, str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(heads[0], no_wrap=True, style="bold")
    table.add_column(heads[1], overflow="fold", ratio=1)
    table.add_column(heads[2], overflow="fold", ratio=1)
    table.add_column("numbers", overflow="fold")
    for fabric in fabrics:
        parts = (fabric.name, fabric.title, fabric.provenance)
        table.add_row(*(Text(clean(part)) for part in parts), fabric.trust())
    return table


def _blocks(fabrics: Iterable[FabricLine]) -> RenderableType:
    blocks: list[RenderableType] = []
    for fabric in fabrics:
        text = Text(f"{clean(fabric.title)}\n{clean(fabric.provenance)}\n", overflow="fold")
        text.append_text(fabric.trust())
        blocks += [Text(clean(fabric.name), style="bold"), Padding(text, (0, 0, 0, 2), expand=False)]
    return Group(*blocks)
