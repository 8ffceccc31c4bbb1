"""Output files of the command line: a renderer for each ending of a file's name."""

from __future__ import annotations

import errno
import json
import os
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import typer

from shardtoll.ledger import UsageError

Writer: TypeAlias = Callable[[Any, Path], list[Path]]
"""Writes a report, or what its command made, to a path and returns the files written."""

WRITERS: Final = {
    ".html": "shardtoll.dashboards.page.page:write",
    ".json": "shardtoll.dashboards.exports.json_file:write",
    ".csv": "shardtoll.dashboards.exports.csv_file:write",
    ".parquet": "shardtoll.dashboards.exports.parquet:write",
    ".md": "shardtoll.dashboards.exports.markdown:write",
    ".prom": "shardtoll.dashboards.exports.prometheus:write",
    ".sarif": "shardtoll.dashboards.exports.sarif:write",
    ".perfetto.json": "shardtoll.dashboards.exports.perfetto:write",
    ".perfetto.json.gz": "shardtoll.dashboards.exports.perfetto:write",
}
"""Ending of a file's whole name, the longest that fits -> what makes such a file of a report."""

ANSWERS: Final[Mapping[str, Mapping[str, str]]] = {
    "verify": {
        ".json": "shardtoll.ledger.answers.verification:verification_to_json",
        ".md": "shardtoll.dashboards.verify.verify_shown:markdown",
    },
    "whatif": {
        ".html": "shardtoll.dashboards.whatif.what_if_page:render",
        ".json": "shardtoll.ledger.answers.what_if:what_if_to_json",
        ".md": "shardtoll.dashboards.whatif.what_if_shown:markdown",
    },
    "check": {
        ".json": "shardtoll.ledger.answers.overrun:check_to_json",
        ".md": "shardtoll.dashboards.check.check_shown:markdown",
    },
    "hang": {
        ".html": "shardtoll.dashboards.hang.hang_page:render",
        ".json": "shardtoll.ledger.answers.hang:hang_to_json",
        ".md": "shardtoll.dashboards.hang.hang_shown:markdown",
    },
    "advise": {
        ".html": "shardtoll.dashboards.advise.advice_page:render",
        ".json": "shardtoll.ledger.answers.advice:advice_to_json",
        ".md": "shardtoll.dashboards.advise.advice_shown:markdown",
    },
    "compare": {
        ".html": "shardtoll.dashboards.compare.compare_page:render",
        ".json": "shardtoll.ledger.answers.comparison:comparison_to_json",
        ".md": "shardtoll.dashboards.compare.compare_shown:markdown",
    },
    "forecast eval": {
        ".json": "shardtoll.ledger.answers.forecast_json:rows_to_json",
        ".md": "shardtoll.dashboards.forecast.rows_shown:markdown",
    },
    "forecast": {
        ".html": "shardtoll.dashboards.forecast.scaling_page:render",
        ".json": "shardtoll.ledger.answers.forecast_json:scaling_to_json",
        ".md": "shardtoll.dashboards.forecast.scaling_shown:markdown",
    },
}
"""Command -> ending of a file's name -> what makes the text, or the JSON values, of the command's answer."""

_SHOWN: Final = {
    "verify": "shardtoll.dashboards.verify.verify_shown:renderable",
    "whatif": "shardtoll.dashboards.whatif.what_if_shown:renderable",
    "check": "shardtoll.dashboards.check.check_shown:renderable",
    "compare": "shardtoll.dashboards.compare.compare_shown:renderable",
    "hang": "shardtoll.dashboards.hang.hang_shown:renderable",
    "advise": "shardtoll.dashboards.advise.advice_shown:renderable",
    "forecast eval": "shardtoll.dashboards.forecast.rows_shown:renderable",
    "forecast": "shardtoll.dashboards.forecast.scaling_shown:renderable",
}
"""Command -> what shows its answer on a terminal of some width."""


def show_answer(command: str, answer: object, *, as_json: bool, width: int | None) -> None:
    """Print the answer of a command, as one line of JSON if asked."""
    if as_json:
        typer.echo(_text(ANSWERS[command][".json"], answer))
        return
    from shardtoll.dashboards.terminal.answers import show

    render = pkgutil.resolve_name(_SHOWN[command])
    show(lambda columns: render(answer, columns), width)


def write_answer(command: str, answer: object, targets: Sequence[Path], *, as_json: bool) -> None:
    """Write the answer of a command to each target and say so; UsageError for what cannot be written."""
    from shardtoll.dashboards.words.files import write

    for target in targets:
        # A name may hold half of a character pair, which no file does.
        made = _text(_chosen(target, ANSWERS[command]), answer)
        write(target, made.encode("utf-8", "backslashreplace"))
    tell_written(targets, as_json=as_json)


def _text(maker: str, answer: object) -> str:
    made = pkgutil.resolve_name(maker)(answer)
    return made if isinstance(made, str) else json.dumps(made, allow_nan=False, separators=(",", ":"))


def tell_written(files: Iterable[Path], *, as_json: bool) -> None:
    """Say which files were written; with `as_json` on stderr, as stdout then holds JSON alone."""
    for file in files:
        typer.echo(f"wrote {file}", err=as_json)


def choose_writers(
    targets: Sequence[Path], *, sources: int, makers: Mapping[str, str] = WRITERS, keeps_run: bool = False
) -> list[tuple[Writer, Path]]:
    """Return the writer of each target; raises UsageError as `check_targets`."""
    check_targets(targets, makers, sources=sources, keeps_run=keeps_run)
    return [(pkgutil.resolve_name(_chosen(target, makers)), target) for target in targets]


def check_targets(
    targets: Sequence[Path], makers: Mapping[str, str], *, sources: int = 1, keeps_run: bool = False
) -> None:
    """Look whether each target can be written, before anything is read.

    Raises UsageError for an ending that none writes, for a target given twice, or for one that cannot be
    written. It also refuses targets of several sources, which would overwrite each other. `keeps_run`: the
    command has --out, the folder of a run, which a target without an ending may mean.
    """
    if targets and sources > 1:
        raise UsageError(f"-o is given with {sources} paths", "report them one by one, each to its own file")
    if len(set(targets)) < len(targets):
        raise UsageError(f"-o names {_twice(targets)} twice", "name each file once")
    for target in targets:
        _chosen(target, makers, keeps_run=keeps_run)
    for target in targets:
        check_target(target)


def check_target(target: Path) -> None:
    """Raise UsageError if the file clearly cannot be written, before the work and not after it."""
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


def make_folder(folder: Path) -> None:
    """Make the folder of `--out` if it is missing; UsageError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be made ({error.strerror or error})", "name another folder with --out"
        ) from error


def _twice(targets: Sequence[Path]) -> Path:
    return next(target for target in targets if targets.count(target) > 1)


def _chosen(target: Path, makers: Mapping[str, str], *, keeps_run: bool = False) -> str:
    whole = target.name.lower()
    endings = [ending for ending in makers if whole.endswith(ending) and len(whole) > len(ending)]
    if not endings:
        folder = f", or keep the run in a folder by --out {target}" if keeps_run and not target.suffix else ""
        raise UsageError(
            f"-o {target} ends in none of {', '.join(makers)}", f"end the file's name in one of them{folder}"
        )
    return makers[max(endings, key=len)]
