"""What goes wrong around a session is everybody's to know, at once, and harms no later session."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.profiler.live.session import gather
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


def test_sessions_leave_nothing_in_the_process_or_the_store() -> None:
    for rank in run_ranks(fault_programs.many_sessions, 2):
        more = {name: late for name, late in rank["late"].items() if late > rank["early"].get(name, 0)}
        assert more == {}
    assert rank["late"]["keys of the store"] > 0


def test_a_rank_does_not_wait_for_a_session_that_rank_0_has_been_through(tmp_path: Path) -> None:
    first, second = run_ranks(fault_programs.missed_session, 2, str(tmp_path))
    assert second["took_s"] < gather._OPENING_LIMIT_S / 2
    assert sorted(first["ranks"]) == [0, 1], "the next session has both ranks"
