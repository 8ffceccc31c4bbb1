"""Parts of the terminal views of compare, verify and check: lines, labels and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardtoll.dashboards.terminal.coded import coded
from shardtoll.dashboards.terminal.screen import Screen
from shardtoll.dashboards.words.text import clip

_INDENT = (0, 0, 0, 3)


def show(render: Callable[[int], RenderableType], width: int | None = None) -> None:
    """Print what `render` makes for a terminal so many columns wide, by default as wide as this one."""
    console = Screen(width)
    console.print(render(console.width))


def head(command: str, subject: str, answer: str, *, passed: bool) -> Text:
    """Return the first two lines: the question, its subject, and the answer."""
    text = Text(f"shardtoll {command}", style="bold")
    text.append(f"  {subject}\n", style="not bold")
    return text.append(answer, style="bold green" if passed else "bold red")


def labelled(label: str, words: Iterable[str], most: int) -> list[RenderableType]:
    """Return `label: words` for each, at most so many characters of them."""
    return [
        Text(f"{label}: ", style="yellow").append_text(coded(clip(each, most), style="default"))
        for each in words
    ]


def indented(lines: Iterable[str | Text], *, expand: bool = True) -> list[RenderableType]:
    """Return each line further right, folded if the terminal is too narrow; `expand`: blanks fill it."""
    texts = (Text(line, overflow="fold") if isinstance(line, str) else line for line in lines)
    return [Padding(text, _INDENT, expand=expand) for text in texts]


def table(heads: Sequence[str], rows: Iterable[Sequence[str | Text]], *, verdicts: bool = False) -> Table:
    """Return a table whose first column is text and the others figures.

    `verdicts`: the last is text too, and figures may be folded.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, name in enumerate(heads):
        is_text = place == 0 or (verdicts and place == len(heads) - 1)
        no_wrap = not (is_text or verdicts)
        made.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=no_wrap)
    for row in rows:
        made.add_row(*row)
    return made
