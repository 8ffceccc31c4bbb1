"""Real traces, where this machine has them; and no finding without code to write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardtoll import analyzers
from tests.unit.remedies import checked

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of real traces; skips the test where there is none."""
    folder = Path(os.environ.get("SHARDTOLL_SHARED", ROOT.parent / "shared")) / "traces"
    if not folder.is_dir():
        pytest.skip(f"real traces: no folder {folder} (set SHARDTOLL_SHARED)")
    return folder


@pytest.fixture(autouse=True)
def every_remedy_has_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an analysis finds in a test says what to write."""
    monkeypatch.setattr(analyzers, "ANALYSES", tuple(checked(find) for find in analyzers.ANALYSES))
