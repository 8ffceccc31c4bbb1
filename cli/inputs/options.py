"""Options that several commands share; imports typer and no more, as every command's file does."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer


def fabric_option(help_text: str) -> Any:
    """Return `--fabric` under its common name; its purpose differs from command to command."""
    return typer.Option("--fabric", metavar="NAME|FILE.toml", help=help_text)


def gpu_option(help_text: str) -> Any:
    """Return `--gpu` of a GPU; its purpose differs from command to command."""
    text = f"{help_text} `shardtoll gpus` lists names."
    return typer.Option("--gpu", metavar="NAME|FILE.toml", help=text)


def output_option(help_text: str) -> Any:
    """Return `-o`, whose help says which endings the command writes."""
    return typer.Option("-o", "--output", metavar="FILE", help=help_text)


SCRIPT_CONTEXT: Final = {"allow_interspersed_args": False}
"""For commands that run a script: arguments after the script are the script's, options included."""
Script: TypeAlias = Annotated[
    Path, typer.Argument(metavar="SCRIPT", help="The Python file to run as __main__.", show_default=False)
]
ScriptArguments: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGUMENTS", help="The script's own arguments and options.", show_default=False),
]
Fabric: TypeAlias = Annotated[
    str | None,
    fabric_option("The interconnect to compute floors for; without it, chosen by device and backend."),
]
SourcedJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON, with the source of every number.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON instead.")]
TablesAsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print the JSON instead of tables.")]
AnswerFiles: TypeAlias = Annotated[
    list[Path] | None,
    output_option("Write FILE.html, FILE.json or FILE.md too; may be given several times."),
]
Width: TypeAlias = Annotated[
    int | None,
    typer.Option(min=20, metavar="COLUMNS", help="Columns to print in; without it, the terminal's."),
]
Jobs: TypeAlias = Annotated[
    int | None,
    typer.Option("-j", "--jobs", min=1, metavar="N", help="Traces read at once; without it, one a core."),
]
Dask: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--dask",
        metavar="ADDRESS",
        help="Read traces on a Dask cluster, as tcp://10.0.0.1:8786. Its workers need shardtoll, and "
        "the same file system as this machine. They open the traces by the same paths and write "
        "results to the cache folder (see SHARDTOLL_CACHE). Needs pip install 'shardtoll[dask]'.",
    ),
]
NoCache: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        help="Read and analyse all anew and keep nothing. Otherwise the records of traces, and the "
        "findings, are kept in SHARDTOLL_CACHE. By default this is ~/.cache/shardtoll/traces, 2 "
        "GB at most.",
    ),
]
Kernels: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--kernels",
        metavar="FILE.toml",
        help="Names of your own communication kernels, added to those shardtoll knows. TOML: for each a "
        "[[kernel]] table with pattern (a regular expression), op (as all_reduce; may be left out) "
        "and library.",
    ),
]
