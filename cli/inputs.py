"""What the command line reads: run folders and saved reports, told apart by looking at them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardtoll.ledger import Report, UsageError, analyze, read_run

if TYPE_CHECKING:
    from shardtoll.analyzers.roofline import Fabric

_PEEK_BYTES: Final = 65_536
_GZIP: Final = b"\x1f\x8b"
_HINT: Final = "name a run folder, as given as out= to audit(), or a report written with -o report.json"


def load_reports(paths: Sequence[Path], fabric: str | None) -> Iterator[tuple[Path, Report]]:
    """Yield each path's report; runs are analysed, saved reports are taken as they are.

    `fabric` is a known name or a TOML file. Raises UsageError where a path is neither or a fabric is
    given for a saved report, FabricError for the fabric, RunFolderError and SchemaError for what
    cannot be read.
    """
    chosen = None if fabric is None else _fabric(fabric)
    for path in paths:
        yield path, load_report(path, chosen)


def load_report(path: Path, fabric: Fabric | None = None) -> Report:
    """Return the report of one path; raises as `load_reports` does."""
    if path.is_dir():
        return analyze(read_run(path), fabric)
    if not path.exists():
        raise UsageError(f"there is no file or folder {path}", _HINT)
    if _is_trace(path):
        raise UsageError(
            f"{path} is a trace file, not a run folder or report.json",
            "this version reads no traces; name a run folder or a report.json",
        )
    report = Report.load(path)
    if fabric is not None:
        raise UsageError(
            f"--fabric does not apply to {path}, a saved report that has its floors already",
            "name the run folder instead",
        )
    return report


def _fabric(name: str) -> Fabric:
    from shardtoll.analyzers.roofline import load_fabric

    return load_fabric(name)


def _is_trace(path: Path) -> bool:
    """Whether the file starts as a trace does: packed, or events without our schema version."""
    try:
        with path.open("rb") as file:
            head = file.read(_PEEK_BYTES)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error})", _HINT) from error
    return head.startswith(_GZIP) or (b'"traceEvents"' in head and b'"schema_version"' not in head)
