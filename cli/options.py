"""Options that several commands share; imports typer and no more, as every command's file does."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

Width: TypeAlias = Annotated[
    int | None,
    typer.Option(min=20, metavar="COLUMNS", help="Columns to print in; without it, the terminal's."),
]
