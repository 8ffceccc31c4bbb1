"""The bill in a Weights & Biases run: numbers, a table of findings, and the page as an artifact."""

from __future__ import annotations

from typing import Any

from shardtoll.dashboards.exports.tracker import FOLDER, client, findings, numbers
from shardtoll.dashboards.page.page import render
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.report.report import WANDB


@WANDB.entry
def log(report: Report, run: Any = None, step: int | None = None) -> None:
    """Log to `run`, by default to the active one; UsageError without the client or a run."""
    wandb = client("wandb", "report.to_wandb()")
    run = wandb.run if run is None else run
    if run is None:
        raise UsageError("no Weights & Biases run is active", "call wandb.init() first, or give run=")
    columns = findings(report)
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    table = wandb.Table(columns=list(columns), data=rows)
    # In one call, so that all of it stands at one step.
    run.log({**numbers(report), f"{FOLDER}/bill": table}, step=step)
    # A run's id is in the name: artifacts of one name are versions of one thing.
    page = wandb.Artifact(f"{FOLDER}-{run.id}", type="shardtoll-report", metadata={"step": step})
    with page.new_file("report.html", mode="w", encoding="utf-8") as file:
        file.write(render(report))
    run.log_artifact(page)
