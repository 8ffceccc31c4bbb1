"""One fabric on a terminal: every number with its unit, its source and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.fabrics.list import TABLE_WIDTH
from shardtoll.dashboards.terminal.screen import Screen
from shardtoll.dashboards.words.text import clean


@dataclass(frozen=True, slots=True)
class NumberLine:
    """One number as it is shown."""

    name: str
    value: float
    unit: str
    source: str
    confidence: str

    def amount(self) -> str:
        """Return the value with its unit."""
        return f"{self.value:,.12g} {self.unit}".rstrip()

    def trust(self) -> Text:
        """Return how sure the number is; a guess stands out, without colour too."""
        return Text(clean(self.confidence), style="bold yellow" if self.confidence == "GUESS" else "")


@dataclass(frozen=True, slots=True)
class Section:
    """Numbers of one part of the machine."""

    title: str
    lines: tuple[NumberLine, ...]


@dataclass(frozen=True, slots=True)
class FabricNumbers:
    """One fabric as it is shown."""

    name: str
    title: str
    provenance: str
    notes: tuple[str, ...]
    sections: tuple[Section, ...]


def show(fabric: FabricNumbers, width: int | None = None) -> None:
    """Print the fabric; `width` in columns, by default the terminal's."""
    console = Screen(width)
    console.print(Text(clean(fabric.name), style="bold"))
    for text in (fabric.title, fabric.provenance, *fabric.notes):
        console.print(Padding(Text(clean(text), overflow="fold"), (0, 0, 0, 2), expand=False))
    for section in fabric.sections:
        console.print()
        console.print(Text(clean(section.title), style="bold", overflow="fold"))
        if console.width >= TABLE_WIDTH and section.lines:
            console.print(_table(section))
            continue
        for block in _blocks(section):
            console.print(block)
    guesses = sum(line.confidence == "GUESS" for section in fabric.sections for line in section.lines)
    if guesses:
        text = f"{guesses} of these numbers are GUESSES: neither read in a source nor derived from one"
        console.print()
        console.print(Text(text, style="yellow", overflow="fold"))


def _table(section: Section) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("number", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("how sure", no_wrap=True)
    table.add_column("source", overflow="fold", ratio=1)
    for line in section.lines:
        table.add_row(line.name, line.amount(), line.trust(), Text(clean(line.source)))
    return table


def _blocks(section: Section) -> Iterator[RenderableType]:
    for line in section.lines:
        text = Text(f"{line.name} = {line.amount()}, ", overflow="fold")
        text.append_text(line.trust())
        text.append(f"\n{clean(line.source)}")
        yield Padding(text, (0, 0, 0, 2), expand=False)
