"""The work of `shardtoll advise` on a run, script or plan: a step is read or made dry, then asked about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from shardtoll.cli.inputs.waiting import waiting
from shardtoll.cli.jobs.confirming import Template, confirmed, dry_report
from shardtoll.ledger import UsageError
from shardtoll.ledger.words import human

if TYPE_CHECKING:
    from shardtoll.analyzers.advise.from_run.run_question import Derived
    from shardtoll.ledger import Report
    from shardtoll.ledger.answers.advice import Advice


_MOST_BYTES: Final = 1 << 20
"""Bytes of a plan that is read."""


def values_of_run(path: str) -> tuple[Derived, Report]:
    """Return the facts in a run folder, a saved report or traces. Raises UsageError in one line."""
    from shardtoll.analyzers.advise.from_run.run_question import derive
    from shardtoll.cli.inputs.inputs import one_report
    from shardtoll.cli.inputs.traces import TraceOptions

    report = one_report(path, None, TraceOptions(cache=True))
    return derive(report, Path(path).name), report


def question_values(derived: Derived, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of a question: the run's, then those of the options; with the changes in words.

    Raises UsageError if neither says which GPU to advise for.
    """
    values = dict(derived.values)
    notes = list(derived.notes)
    if "gpu" not in values and "gpu" not in options:
        raise UsageError(
            "the run was on no known GPU: its forecast needs one",
            "name the GPU to advise for with --gpu, as h100-sxm",
        )
    current = values["current"]
    world = current["dp"] * current["tp"] * current["pp"] * current["cp"]
    sequences = current["dp"] * current["micro_batch"] * current["accumulation"]
    if options.get("gpus", world) != world:
        had = human.plural(world, "GPU")
        notes.append(f"The run had {had}: its layout is not among those of {options['gpus']:,}.")
        del values["current"]
        values["batch_tokens"] = str(sequences * values["sequence"])
    values["gpus"] = world
    if options.get("gpu", values.get("gpu")) != values.get("gpu"):
        # Fabric and node are of the machine that the run was made for.
        values.pop("fabric", None)
        values.pop("gpus_per_node", None)
    return {**values, **options}, notes


def advised(
    kind: str,
    path: str | None,
    arguments: Sequence[str],
    options: dict[str, Any],
    beside: dict[str, Any],
    explain: str | None,
    confirm: str | None,
) -> Advice:
    """Return the advice on options, a plan file, a script or a run."""
    from dataclasses import replace

    from shardtoll.analyzers.advise.advise import Beside, advise
    from shardtoll.analyzers.advise.explain import layout_of
    from shardtoll.analyzers.advise.question_file import question_of

    # Before the script runs dry for the first time.
    template = None if confirm is None else Template.read(confirm)
    notes: list[str] = []
    values, place, step_ns, lost_ns, dry = options, "advise", None, 0.0, False
    if kind == "plan":
        assert path is not None
        values, place = {**_tables(Path(path)), **options}, Path(path).name
    elif kind in ("script", "run"):
        assert path is not None
        derived, report = _derived(kind, path, arguments, options)
        values, notes = question_values(derived, options)
        place, step_ns, dry = Path(path).name, derived.step_ns, report.run.source == "dry"
        from shardtoll.analyzers.advise.from_run.measured import measured_beside
        from shardtoll.analyzers.advise.from_run.run_question import layout_of_values

        before = layout_of_values(derived.values).sequences
        tokens = before * derived.values["sequence"]
        beside = {
            **measured_beside(report, tokens),
            **{name: each for name, each in beside.items() if each is not None},
        }
        beside["sequences_before"] = before
        if not _same_machine(derived, options):
            step_ns = None
        if "current" in values:
            lost_ns = 0.0 if step_ns is None else derived.lost_ns
            rest_ns = None if step_ns is None else step_ns - lost_ns
            beside |= {"current_step_ns": rest_ns, "keeps_current": True}
            # A dry run proves nothing of memory.
            beside["ran"] = _same_machine(derived, options) and not dry
        else:
            step_ns = None
    question = question_of(values, place)
    if kind == "plan" and question.current is not None:
        beside |= {"sequences_before": question.current.sequences, "keeps_current": True}
    if explain is not None:
        # A layout that is only asked about: it does not stand. The recorded layout is the run's.
        standing, question = question.current, replace(question, current=layout_of(explain, question))
        beside |= {"recorded": standing, "keeps_current": False}
        beside["asked"] = question.current != standing
        beside["ran"] = beside.get("ran", False) and not beside["asked"]
    with waiting("pricing the layouts"):
        advice = advise(question, beside=Beside(**beside))
    if template is not None and path is not None:
        machine = {"world": question.gpus, "gpu": question.gpu, "fabric": question.fabric}
        advice = replace(advice, confirmed=confirmed(advice, Path(path), arguments, template, machine))
    return replace(
        advice,
        notes=(*notes, *advice.notes),
        recorded_step_ns=step_ns,
        recorded_dry=dry,
        recorded_lost_ns=lost_ns,
    )


def _same_machine(derived: Derived, options: Mapping[str, Any]) -> bool:
    """Return whether the run's step is one of the machine and sequences that are asked about."""
    names = ("gpu", "fabric", "precision", "sequence", "model")
    return "gpu" in derived.values and all(
        name not in options or options[name] == derived.values.get(name) for name in names
    )


def _derived(
    kind: str, path: str, arguments: Sequence[str], options: Mapping[str, Any]
) -> tuple[Derived, Report]:
    if kind == "run":
        return values_of_run(path)
    from shardtoll.analyzers.advise.from_run.run_question import derive

    script = Path(path)
    if not script.is_file():
        raise UsageError(f"there is no script {path}", "name a Python file, then -- and its own arguments")
    machine = {"world": options.get("gpus", 1), "gpu": options.get("gpu", "h100-sxm")}
    machine["fabric"] = options.get("fabric")
    report = dry_report(script, arguments, machine)
    return derive(report, script.name), report


def _tables(plan: Path) -> dict[str, Any]:
    """Return the content of the file; UsageError if it is no TOML."""
    from shardtoll.ledger.foreign.toml_text import TomlError, read_text, toml_tables, why_unread

    try:
        return toml_tables(read_text(plan, _MOST_BYTES))
    except OSError as error:
        raise UsageError(
            f"cannot read {plan} ({why_unread(error)})", "name a TOML file, or give --model"
        ) from error
    except TomlError as error:
        raise UsageError(f"{plan} is no TOML file ({error!s:.80})", "see docs/advise.md") from error
