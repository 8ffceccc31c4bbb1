"""An empty export of Nsight Systems for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nsys_exports import Small


@pytest.fixture
def small(tmp_path: Path) -> Small:
    """An empty export."""
    return Small(tmp_path)
