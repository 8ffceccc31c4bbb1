"""The list of analyses: each is named once, is what it says, and is left out only if it finds nothing."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from shardtoll import analyzers
from shardtoll.analyzers import ANALYSES
from shardtoll.analyzers.analyses import Analysis
from shardtoll.analyzers.context.context import make_context
from shardtoll.ledger.tables.tables import SCHEMAS
from tests.unit.analyzers.fabrics import MEASURED
from tests.unit.analyzers.ledgers import collective, ledger

NAMED = [each.module for each in ANALYSES]


def test_every_analysis_is_listed_once():
    assert len(set(NAMED)) == len(NAMED)


def test_every_file_with_a_find_is_listed():
    folder = Path(analyzers.__file__).parent / "findings"
    files = [path for path in folder.rglob("*.py") if "\ndef find(" in path.read_text(encoding="utf-8")]
    assert sorted(NAMED) == sorted(".".join(path.relative_to(folder).with_suffix("").parts) for path in files)


@pytest.mark.parametrize("module", NAMED)
def test_an_analysis_takes_the_context_and_returns_findings(module):
    find = import_module(f"shardtoll.analyzers.findings.{module}").find
    assert find.__annotations__ == {"context": "Context", "return": "list[Finding]"}


@pytest.mark.parametrize("analysis", [each for each in ANALYSES if each.needs], ids=lambda each: each.module)
def test_an_analysis_left_out_finds_nothing_without_its_table(analysis):
    assert analysis.needs in SCHEMAS
    made = ledger([collective(rank=rank, parameter="w", exposed_ns=10, phase="backward") for rank in (0, 1)])
    made = replace(made, tables={**made.tables, analysis.needs: SCHEMAS[analysis.needs].empty_table()})
    assert analysis._replace(needs=None).find(make_context(made, MEASURED)) == []


def test_an_analysis_is_not_imported_without_its_table(monkeypatch):
    def refuse(name):
        raise AssertionError(f"imported {name}")

    context = make_context(ledger([collective()]), MEASURED)
    monkeypatch.setattr("shardtoll.analyzers.analyses.import_module", refuse)
    assert Analysis("replicas.drift", "replica-drift", "values").find(context) == []
    with pytest.raises(AssertionError, match=r"imported shardtoll\.analyzers\.findings\.stalls\.recompute"):
        Analysis("stalls.recompute", "recompute").find(context)
