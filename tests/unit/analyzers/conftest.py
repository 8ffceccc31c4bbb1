"""Real traces, where this machine has them; and no finding without code to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.analyzers.analyses import Analysis
from tests.shared_inputs import shared
from tests.unit.remedies import checked

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of real traces; skips the test where there is none."""
    return shared("traces")


@pytest.fixture(autouse=True)
def every_remedy_has_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an analysis finds in a test says what to write."""
    monkeypatch.setattr(Analysis, "find", checked(Analysis.find))
