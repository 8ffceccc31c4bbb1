"""Budgets, fabrics, kernel tables, output of nccl-tests and sweeps: texts that people and tools write."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from tests.fuzz.mutate import deep, of_text, of_tree
from tests.fuzz.seams import DATA, Attack


def _corpus(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(DATA.glob(pattern))]


def _damaged(corpus: Sequence[bytes], chance: random.Random) -> bytes:
    made = chance.choice(corpus)
    if chance.random() < 0.03:
        return b"x = " + deep(chance).encode()
    for _ in range(chance.choice((1, 1, 1, 2))):
        made = of_text(made, chance)
    return made


def budgets() -> Attack:
    """Budgets; one of ten is held against a report."""
    from shardtoll.analyzers.budget.against_budget import judge
    from shardtoll.dashboards.check.check_shown import markdown
    from shardtoll.ledger.answers.budget import read_budget
    from tests import sample_reports

    corpus, report = _corpus("*.budget.toml"), sample_reports.report()

    def attack(chance: random.Random, folder: Path) -> None:
        path = folder / "budget.toml"
        path.write_bytes(_damaged(corpus, chance))
        budget = read_budget(path)
        if chance.random() < 0.1:
            markdown(judge(report, budget))

    return attack


def fabrics() -> Attack:
    """Fabrics; one of twenty prices a report."""
    from shardtoll.analyzers.analyses import run as analyze
    from shardtoll.analyzers.roofline import load_fabric
    from shardtoll.ledger import Ledger
    from tests import sample_reports

    shipped = files("shardtoll.analyzers.roofline.fabrics")
    corpus = _corpus("*.fabric.toml")
    corpus += [item.read_bytes() for item in shipped.iterdir() if item.name.endswith(".toml")]
    report = sample_reports.report()
    ledger = Ledger(report.run, report.groups, report.tables)

    def attack(chance: random.Random, folder: Path) -> None:
        path = folder / "fabric.toml"
        path.write_bytes(_damaged(corpus, chance))
        fabric = load_fabric(path)
        if chance.random() < 0.05:
            analyze(ledger, fabric)

    return attack


def kernels() -> Attack:
    """Tables of kernel names, and what they make of some names."""
    from shardtoll.profiler.traces.collectives.kernels import load_table

    corpus = _corpus("*.kernels.toml")
    names = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "gemm", "my_allreduce_kernel", "x" * 3_000, "")

    def attack(chance: random.Random, folder: Path) -> None:
        path = folder / "kernels.toml"
        path.write_bytes(_damaged(corpus, chance))
        table = load_table(path)
        for name in names:
            table.classify(name)

    return attack


def nccl_tests() -> Attack:
    """What nccl-tests print, as text and as JSON, up to the fabric that it shows."""
    from shardtoll.cli.jobs.calibration import fabric_of_nccl_tests

    texts, documents = _corpus("*.nccl.txt"), _corpus("*.nccl.json")

    def attack(chance: random.Random, folder: Path) -> None:
        path = folder / "all_reduce.txt"
        if chance.random() < 0.3:
            document = of_tree(json.loads(chance.choice(documents)), chance)
            path.write_text(json.dumps(document), encoding="utf-8", errors="surrogatepass")
        else:
            path.write_bytes(_damaged(texts, chance))
        fabric_of_nccl_tests([path], None, ranks=8, nodes=1)

    return attack


def sweeps() -> Attack:
    """Sweeps of measured times, up to their scores."""
    from shardtoll.cli.subcommands.fabrics_eval import evaluate

    corpus = _corpus("*.sweep.csv")

    def attack(chance: random.Random, folder: Path) -> None:
        path = folder / "sweep.csv"
        path.write_bytes(_damaged(corpus, chance))
        evaluate([path], None, [])

    return attack
