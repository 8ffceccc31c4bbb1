"""A few damaged inputs at every seam, the same each time; `make fuzz` tries as many as there is time for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.child import chance_of
from tests.fuzz.run import SeamResult, turn
from tests.fuzz.seams import PLANTED, SEAMS, Seam, refused

INPUTS = {"traces": 60, "nsys": 40, "runs": 40, "ledgers": 2, "reports": 60, "fabrics": 100, "server": 60}
"""What takes long is tried less often."""


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
@pytest.mark.filterwarnings("ignore")
def test_what_is_damaged_is_read_or_refused_in_one_line(seam: Seam, tmp_path: Path) -> None:
    attack, told = seam.attack(), 0
    for index in range(INPUTS.get(seam.name, 200)):
        try:
            told += refused(attack, chance_of("suite", seam.name, index), tmp_path)
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz --seed suite --again {seam.name} {index}") from error
    assert told or seam.name == "ledgers"


def test_the_engine_counts_every_kind_of_fault(tmp_path: Path) -> None:
    result = SeamResult()
    for _ in range(4):
        if result.next_input < 8:
            turn(PLANTED.name, "s", result, 8 - result.next_input, 60.0, tmp_path, wall_s=3.0)
    kinds = {fault["input"]: fault["kind"] for fault in result.tally.faults}
    assert kinds == {2: "KeyError", 3: "AssertionError", 4: "crash", 5: "hang", 6: "MemoryError"}
    assert (result.tally.inputs, result.tally.refused, result.crashes, result.hangs) == (8, 1, 1, 1)
