"""What goes wrong around a session is everybody's to know, at once, and harms no later session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.live import fault_programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live


def test_all_ranks_raise_what_one_met_and_later_sessions_pair(tmp_path: Path) -> None:
    first, second = run_ranks(fault_programs.openings, 2, str(tmp_path))
    line = (
        f"RunFolderError: rank 1: run folder {tmp_path / 'file' / 'run'} cannot be made "
        "(Not a directory): name another with out="
    )
    assert (first["error"], second["error"]) == (line, line)
    assert max(first["took_s"], second["took_s"]) < 20, "nobody waits for the opening limit"
    assert sorted(first["ranks"]) == [0, 1], "the session after one that rank 1 opened alone has both ranks"
