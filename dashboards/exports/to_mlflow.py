"""The bill in an MLflow run: metrics, and the findings and the page as artifacts."""

from __future__ import annotations

from typing import Any

from shardtoll.dashboards.exports.tracker import FOLDER, client, findings, numbers
from shardtoll.dashboards.page.page import render
from shardtoll.ledger import Report, UsageError
from shardtoll.ledger.report.report import MLFLOW


@MLFLOW.entry
def log(report: Report, run: Any = None, step: int | None = None) -> None:
    """Log to `run` (or its id), by default to the active one; UsageError without the client or a run."""
    mlflow = client("mlflow", "report.to_mlflow()")
    run = mlflow.active_run() if run is None else run
    if run is None:
        # The client would begin one by itself, which nobody asked for and nothing would end.
        raise UsageError("no MLflow run is active", "call mlflow.start_run() first, or give run=")
    run_id = run if isinstance(run, str) else run.info.run_id
    mlflow.log_metrics(numbers(report), step=step, run_id=run_id)
    # Each step has its own folder: the client appends to a table that is there.
    folder = FOLDER if step is None else f"{FOLDER}/step-{step}"
    mlflow.log_table(findings(report), f"{folder}/findings.json", run_id=run_id)
    mlflow.log_text(render(report), f"{folder}/report.html", run_id=run_id)
