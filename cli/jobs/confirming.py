"""Dry runs of a script for advice: of the script as it is, and of the layouts that are advised."""

from __future__ import annotations

import string
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardtoll.ledger import UsageError

if TYPE_CHECKING:
    from shardtoll.ledger import Report
    from shardtoll.ledger.answers.advice import Advice, Confirmed
    from shardtoll.ledger.answers.training_plan import Layout

LIMIT_S: Final = 900
"""Seconds after which a dry run is given up."""
TRIED: Final = 3
"""Layouts that are confirmed at most."""


@dataclass(frozen=True, slots=True)
class Template:
    """How a script takes a layout: its arguments with names of the layout in braces, as `--tp {tp}`."""

    text: str
    names: frozenset[str]

    @classmethod
    def read(cls, text: str) -> Template:
        """Return the template. UsageError for a name that no layout has, or anything else in braces."""
        import shlex

        from shardtoll.ledger.answers.training_plan import Layout

        hint = "write the script's arguments with names in braces, as '--tp {tp} --batch {micro_batch}'"
        try:
            shlex.split(text)
            parts = [part for part in string.Formatter().parse(text) if part[1] is not None]
        except ValueError as error:
            raise UsageError(f"--confirm {text!r:.60} cannot be read ({error})", hint) from error
        known = [field.name for field in fields(Layout)]
        for _, name, form, conversion in parts:
            if form or conversion or not name:
                raise UsageError(f"--confirm {text!r:.60} has more than a name in braces", hint)
            if name not in known:
                raise UsageError(f"--confirm: unknown name {name!r:.40}", f"use {', '.join(known)} in braces")
        return cls(text, frozenset(name for _, name, _, _ in parts if name))

    def filled(self, layout: Layout) -> list[str]:
        """Return the arguments of a layout. UsageError for a name that this layout has no value of."""
        import shlex

        values = {name: value for name, value in asdict(layout).items() if value is not None}
        for name in self.names:
            if name not in values:
                raise UsageError(f"the layout has no {name}", f"use {', '.join(sorted(values))} in braces")
        return shlex.split(self.text.format(**values))


def dry_report(script: Path, arguments: Sequence[str], options: Mapping[str, Any]) -> Report:
    """Return the report of a script's dry run, made by another process; UsageError with its own line."""
    from shardtoll.cli.inputs.inputs import one_report
    from shardtoll.cli.inputs.traces import TraceOptions

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "shardtoll.cli", "dryrun", "--out", folder]
        for name in ("world", "gpu", "fabric"):
            if options.get(name) is not None:
                command += [f"--{name}", str(options[name])]
        try:
            done = subprocess.run(
                [*command, str(script), *arguments],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"the dry run of {script} took more than {LIMIT_S} s", "try a smaller --gpus"
            ) from error
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
            raise UsageError(
                f"the dry run of {script.name} failed: {said[-1]:.300}", "run shardtoll dryrun to see more"
            )
        return one_report(folder, None, TraceOptions(cache=False))


def confirmed(
    advice: Advice, script: Path, arguments: Sequence[str], template: Template, options: Mapping[str, Any]
) -> tuple[Confirmed, ...]:
    """Run the best layouts dry, as far as the script takes them.

    A layout that the script does not run, or runs as another one, is marked so.
    """
    from shardtoll.analyzers.advise.from_run.run_question import derive, layout_of_values
    from shardtoll.analyzers.advise.layouts import words
    from shardtoll.ledger.answers.advice import Confirmed

    made: list[Confirmed] = []
    # The advised layout is the first of the ties.
    for candidate in advice.ties[:TRIED]:
        shown, forecast_ns = template.text, candidate.step_ns.expected
        try:
            filled = template.filled(candidate.layout)
            shown = " ".join(filled)
            report = dry_report(script, [*arguments, *filled], options)
            ran = layout_of_values(derive(report, script.name).values)
        except UsageError as error:
            made.append(
                Confirmed(candidate.words, f"nothing: {error.message}", False, forecast_ns, None, shown)
            )
            continue
        durations_ns = report.steps["duration_ns"]
        # A step with a collective of unknown price has no row.
        dry_ns = float(durations_ns.median()) if len(durations_ns) else None
        same = _alike(ran, candidate.layout)
        made.append(Confirmed(candidate.words, words(ran), same, forecast_ns, dry_ns, shown))
    return tuple(made)


def _alike(one: Layout, other: Layout) -> bool:
    """Whether a dry run had the layout: degrees, sharding, micro-batch and checkpointing."""
    names = ("dp", "tp", "pp", "cp", "ep", "sharding", "micro_batch", "accumulation", "checkpointing")
    return all(getattr(one, name) == getattr(other, name) for name in names)
