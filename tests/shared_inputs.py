"""Inputs too large for the repository, in the folder that `SHARDTOLL_SHARED` names, else `../shared`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("SHARDTOLL_SHARED", Path(__file__).resolve().parents[2] / "shared"))
MISSING = "no shared input"


def shared(*parts: str) -> Path:
    """Return a file or folder of the shared inputs; skips the test if it is not there."""
    path = FOLDER.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"{MISSING} {path} (set SHARDTOLL_SHARED)")
    return path
