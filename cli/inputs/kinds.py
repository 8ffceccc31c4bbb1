"""Run folders, saved reports and traces, recognized by looking at them."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from shardtoll.ledger import UsageError
from shardtoll.ledger.foreign.regular import unzipped

Kind: TypeAlias = Literal["run", "report", "trace file", "traces"]
_PEEK_BYTES: Final = 65_536
_BINARY: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"SQLite format 3")
"""How files packed with gzip and zstandard begin, and databases."""
_GLOB: Final = frozenset("*?[")
_HINT: Final = (
    "name traces, a run folder, as given as out= to audit(), or a report written with -o report.json"
)


class Input(Struct, frozen=True):
    """The input of one report."""

    kind: Kind
    paths: list[str]
    """One path; several only if trace files were named one by one."""


def sort_inputs(paths: Sequence[str]) -> list[Input]:
    """Return the inputs that paths name, in order; trace files named one by one are one input.

    Raises UsageError if a path is nothing we read.
    """
    inputs: list[Input] = []
    files = Input("trace file", [])
    for path in paths:
        kind = _kind(path)
        if kind == "folder of runs":
            inputs.append(Input("run", [_only_run(path)]))
            continue
        if kind != "trace file":
            inputs.append(Input(kind, [path]))
            continue
        if not files.paths:
            inputs.append(files)
        files.paths.append(path)
    return inputs


def _only_run(path: str) -> str:
    """Return the run in a folder without traces; UsageError if it holds none, or several."""
    from shardtoll.cli.inputs.runs_inside import name_one, runs_inside

    runs = runs_inside(path)
    if not runs:
        raise UsageError(f"{path} holds neither a shardtoll run nor traces", _HINT)
    if len(runs) > 1:
        message, _, hint = name_one(path, runs).partition(": ")
        raise UsageError(message, hint)
    return runs[0]


def _kind(path: str) -> Kind | Literal["folder of runs"]:
    """Return what a path is; UsageError if it is nothing we read."""
    from shardtoll.ledger.disk.run_files import is_run_folder
    from shardtoll.profiler.traces.file import sources

    local = Path(path)
    try:
        mode = local.stat().st_mode
    except (OSError, ValueError) as error:
        if "://" in path or "::" in path or _GLOB.intersection(path):
            return "traces"
        if isinstance(error, (FileNotFoundError, ValueError)):
            raise UsageError(f"there is no file or folder {path}", _HINT) from error
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", _HINT) from error
    if stat.S_ISDIR(mode):
        try:
            if is_run_folder(local):
                return "run"
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror or error})", _HINT) from error
        if not sources.is_trace_input(path):
            return "folder of runs"
        return "traces"
    if not stat.S_ISREG(mode):
        # A pipe would be waited for without end.
        raise UsageError(f"{path} is neither a file nor a folder", _HINT)
    return "trace file" if _is_trace(local) else "report"


def _is_trace(path: Path) -> bool:
    """Whether the file is for the reader of traces: anything but text with our schema's version.

    The reader says best what is wrong with a file that is neither.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_PEEK_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", _HINT) from error
    with contextlib.suppress(OSError):
        head = unzipped(head, _PEEK_BYTES, part=True)
    return head.startswith(_BINARY) or b'"schema_version"' not in head
