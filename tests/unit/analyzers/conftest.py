"""Real traces, where this machine has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of real traces; skips the test where there is none."""
    folder = Path(os.environ.get("SHARDTOLL_SHARED", ROOT.parent / "shared")) / "traces"
    if not folder.is_dir():
        pytest.skip(f"real traces: no folder {folder} (set SHARDTOLL_SHARED)")
    return folder
