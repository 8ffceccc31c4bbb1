"""Groups made and destroyed inside a step keep their own size and their own line in the counts."""

from __future__ import annotations

import pytest

from tests.live import group_programs
from tests.live.launch import run_ranks

pytestmark = pytest.mark.live


def test_groups_made_and_destroyed_in_a_step_keep_their_size_and_their_count() -> None:
    found = run_ranks(group_programs.groups_that_come_and_go, 3)[0]
    small = [c for c in found["collectives"] if c["message_bytes"] == 32]
    assert sorted((c["step"], c["rank"], c["group_size"]) for c in small) == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 0, 3),
        (1, 1, 3),
        (1, 2, 3),
    ]
    assert {len(ranks) for name, ranks in found["groups"] if name in {c["group"] for c in small}} == {2, 3}
    counted = {(row["step"], row["rank"], row["group"]): row for row in found["counts"]}
    for c in small:
        row = counted[c["step"], c["rank"], c["group"]]
        assert row["recorded"] == 1
        assert row["issued"] is None, "a group that is no more cannot be asked"
    assert "unmatched-collectives" not in found["kinds"]
