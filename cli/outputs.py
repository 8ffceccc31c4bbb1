"""What the command line writes: a renderer for each ending of a file's name."""

from __future__ import annotations

import errno
import os
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from shardtoll.ledger import UsageError

Writer: TypeAlias = Callable[[Any, Path], list[Path]]
"""Writes a report, or what its command made, to a path and returns the files written."""

WRITERS: Final = {
    ".html": "shardtoll.dashboards.html_file:write",
    ".json": "shardtoll.dashboards.json_file:write",
    ".csv": "shardtoll.dashboards.csv_file:write",
    ".parquet": "shardtoll.dashboards.parquet_file:write",
    ".md": "shardtoll.dashboards.markdown_file:write",
    ".prom": "shardtoll.dashboards.prometheus_file:write",
    ".sarif": "shardtoll.dashboards.sarif_file:write",
    ".perfetto.json": "shardtoll.dashboards.perfetto:write",
    ".perfetto.json.gz": "shardtoll.dashboards.perfetto:write",
}
"""Ending of a file's whole name, the longest that fits -> what makes such a file of a report."""

VERIFY_WRITERS: Final = {
    ".json": "shardtoll.dashboards.verify_file:write_json",
    ".md": "shardtoll.dashboards.verify_file:write_markdown",
}
"""The same of what `shardtoll verify` says."""

CHECK_WRITERS: Final = {
    ".json": "shardtoll.dashboards.check_file:write_json",
    ".md": "shardtoll.dashboards.check_file:write_markdown",
}
"""The same of what `shardtoll check` says."""

COMPARE_WRITERS: Final = {
    ".html": "shardtoll.dashboards.compare_file:write_html",
    ".json": "shardtoll.dashboards.compare_file:write_json",
    ".md": "shardtoll.dashboards.compare_file:write_markdown",
}
"""The same of what `shardtoll compare` says."""


def choose_writers(
    targets: Sequence[Path], *, sources: int, known: Mapping[str, str] = WRITERS
) -> list[tuple[Writer, Path]]:
    """Return the writer of each target, before anything is read.

    Raises UsageError for an ending that none writes, for a target given twice, for one that cannot be
    written, and for targets of several sources, which would overwrite each other.
    """
    if targets and sources > 1:
        raise UsageError(f"-o is given with {sources} paths", "report them one by one, each to its own file")
    if len(set(targets)) < len(targets):
        raise UsageError(f"-o names {_twice(targets)} twice", "name each file once")
    chosen = [(_writer(target, known), target) for target in targets]
    for target in targets:
        check_target(target)
    return chosen


def check_target(target: Path) -> None:
    """Raise UsageError where the file can plainly not be written; told before the work, not after it."""
    folder = target.parent
    try:
        if target.is_dir():
            why = os.strerror(errno.EISDIR)
        elif not folder.exists():
            why = os.strerror(errno.ENOENT)
        elif not folder.is_dir():
            why = os.strerror(errno.ENOTDIR)
        elif not os.access(folder, os.W_OK | os.X_OK):
            why = os.strerror(errno.EACCES)
        else:
            return
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", None) or error)
    raise UsageError(f"cannot write {target} ({why})", "name a file in a folder that exists")


def _twice(targets: Sequence[Path]) -> Path:
    return next(target for at, target in enumerate(targets) if target in targets[:at])


def _writer(target: Path, known: Mapping[str, str]) -> Writer:
    whole = target.name.lower()
    endings = [ending for ending in known if whole.endswith(ending) and len(whole) > len(ending)]
    if not endings:
        raise UsageError(
            f"-o {target} ends in none of {', '.join(known)}", "end the file's name in one of them"
        )
    writer: Writer = pkgutil.resolve_name(known[max(endings, key=len)])
    return writer
