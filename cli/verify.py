"""`shardtoll verify`: whether a change did what a finding promised."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardtoll.cli.inputs.options import AsJson, Width, fabric_option, output_option


def command(
    before: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN_BEFORE", help="Run folder, report.json or folder of traces before the change."
        ),
    ] = None,
    after: Annotated[
        str | None, typer.Argument(metavar="RUN_AFTER", help="The same training after the change.")
    ] = None,
    finding: Annotated[
        list[str] | None,
        typer.Option(
            "--finding",
            metavar="N|KIND",
            help="The finding that should be gone: its number on the bill of RUN_BEFORE, or its kind. "
            "Several with commas, or given several times. Without it all that promised a saving are "
            "looked at; infos and warnings of times, as late ranks, fail only if named.",
        ),
    ] = None,
    fabric: Annotated[
        str | None, fabric_option("The interconnect to compute floors for, of both runs.")
    ] = None,
    output: Annotated[
        list[Path] | None, output_option("Write FILE.json or FILE.md too; may be given several times.")
    ] = None,
    as_json: AsJson = False,
    scores: Annotated[
        Path | None,
        typer.Option(
            "--scores",
            metavar="FILE",
            help="File of the score, one line per verification; without it, verify-scores.jsonl next to "
            "RUN_AFTER, or with --history in this folder.",
        ),
    ] = None,
    no_scores: Annotated[bool, typer.Option("--no-scores", help="Keep no score.")] = False,
    history: Annotated[
        bool,
        typer.Option("--history", help="Print the score so far, by kind of finding, and verify nothing."),
    ] = False,
    width: Width = None,
) -> None:
    """Say what a change did: findings gone, gradients equal, predicted saving against the measured one.

    Findings are matched by kind and place, so lines may have moved. Gradients are compared whole, so the
    runs may be sharded differently; both runs need them on record: audit(model, checks=("gradients",)).
    Exits with 0 if every finding that must be gone is gone, and no gradient became wrong. Exits with 1 if one
    is still there or unknown, if gradients differ though no finding says they were wrong, or if the run after
    has a new error about its results. Exits with 2 if the input is unusable.

    \b
    Examples:
      shardtoll verify runs/a runs/b
      shardtoll verify runs/a runs/b --finding 1 -o fixed.json -o fixed.md
      shardtoll verify runs/a runs/b --finding implicit-redistribute --no-scores
      shardtoll verify --history --scores runs/verify-scores.jsonl
    """
    from shardtoll.ledger import UsageError

    if no_scores and (scores is not None or history):
        raise UsageError("--no-scores is given with --scores or --history", "give one of them")
    if history:
        if before is not None or finding or fabric or output or as_json:
            raise UsageError(
                "--history is given with runs to verify", "give --scores FILE with it, and no more"
            )
        _history(scores, width)
        return
    if before is None or after is None:
        raise UsageError("verify needs two runs", "give RUN_BEFORE and RUN_AFTER, or --history")
    if not _verify(
        (before, after), finding or [], fabric, output or [], as_json, _file(after, scores, no_scores), width
    ):
        raise typer.Exit(1)


def _verify(
    paths: tuple[str, str],
    wanted: list[str],
    fabric: str | None,
    targets: list[Path],
    as_json: bool,
    scores: Path | None,
    width: int | None,
) -> bool:
    from shardtoll.analyzers.two_runs.same_finding import place
    from shardtoll.analyzers.verify.verify import verify
    from shardtoll.cli.inputs.inputs import one_report
    from shardtoll.cli.inputs.outputs import (
        ANSWERS,
        check_target,
        check_targets,
        show_answer,
        write_answer,
    )
    from shardtoll.cli.inputs.traces import TraceOptions
    from shardtoll.cli.inputs.waiting import waiting
    from shardtoll.ledger.report.scores import append, score_of

    check_targets(targets, ANSWERS["verify"])
    if scores is not None:
        check_target(scores)
    before, after = (one_report(path, fabric, TraceOptions()) for path in paths)
    with waiting("comparing the runs"):
        verification = verify(before, after, paths, wanted)
    show_answer("verify", verification, as_json=as_json, width=width)
    write_answer("verify", verification, targets, as_json=as_json)
    if scores is not None:
        append(
            scores,
            score_of(verification, tuple(place(judged.finding.where) for judged in verification.worked_on)),
        )
        typer.echo(f"\nscore kept: shardtoll verify --history --scores {scores}", err=as_json)
    return verification.passed


def _file(after: str, scores: Path | None, no_scores: bool) -> Path | None:
    """Return where to keep the score; None: nowhere. No file can lie next to an address: it goes into this
    folder then."""
    from shardtoll.ledger.report.scores import DEFAULT_NAME

    if no_scores or scores is not None:
        return scores
    local = Path(after)
    return (local.resolve().parent if local.exists() else Path()) / DEFAULT_NAME


def _history(scores: Path | None, width: int | None) -> None:
    from shardtoll.analyzers.verify.saved import history
    from shardtoll.dashboards.terminal.answers import show
    from shardtoll.dashboards.verify.verify_shown import score
    from shardtoll.ledger.report.scores import DEFAULT_NAME, read

    path = scores or Path(DEFAULT_NAME)
    kept = read(path)
    lines = history(kept.scores)
    show(lambda columns: score(str(path), lines, kept.damaged, columns), width)
