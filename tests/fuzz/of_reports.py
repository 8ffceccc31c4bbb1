"""Reports read back, and what is drawn of them; the drawing is also what other seams end with."""

from __future__ import annotations

import json
import random
from pathlib import Path

from shardtoll.ledger import Report
from tests.fuzz.mutate import deep, of_bytes, of_tree
from tests.fuzz.seams import Attack


def drawn(report: Report, chance: random.Random, folder: Path) -> None:
    """Draw a report in one of the ways there are."""
    from shardtoll.analyzers.compare.compare import compare
    from shardtoll.cli.inputs.outputs import WRITERS, choose_writers
    from shardtoll.dashboards.terminal.terminal import show

    ending = chance.choice([*WRITERS, ".html", ".html", "terminal", "compare"])
    if ending == "terminal":
        import contextlib
        import io

        with contextlib.redirect_stdout(io.StringIO()):
            show(report, 80)
        return
    if ending == "compare":
        compare(report, report, ("one", "other"))
        return
    [(write, path)] = choose_writers([folder / f"drawn{ending}"], sources=1)
    write(report, path)


def reports() -> Attack:
    """Reports: the JSON damaged as a tree or as bytes, read back, and one of six drawn."""
    from tests import sample_reports

    bases = [sample_reports.report(), sample_reports.unknown(), sample_reports.empty(), pipelined()]
    texts = [base.to_json() for base in bases]

    def attack(chance: random.Random, folder: Path) -> None:
        text = chance.choice(texts)
        way = chance.random()
        if way < 0.6:
            made = json.dumps(of_tree(json.loads(text), chance)).encode("utf-8", "surrogatepass")
        elif way < 0.97:
            made = of_bytes(text.encode(), chance)
        else:
            made = text.replace("null", deep(chance), 1).encode()
        path = folder / "report.json"
        path.write_bytes(made)
        report = Report.load(path)
        if chance.random() < 1 / 6:
            drawn(report, chance, folder)

    return attack


def pipelined() -> Report:
    """Return the report of a pipeline of two stages, so that its view is drawn too."""
    from shardtoll.analyzers.analyses import run as analyze
    from tests.fuzz.ledgers import pipeline

    return analyze(pipeline())
