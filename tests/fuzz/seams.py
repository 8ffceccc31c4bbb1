"""The seams by name, and what holds for each: an input is read, or refused in one short line."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardtoll.ledger.records.errors import ShardtollError

LONGEST_LINE: Final = 300
DATA: Final = Path(__file__).resolve().parents[1] / "data" / "fuzz"

Attack = Callable[[random.Random, Path], None]
"""Makes one damaged input of a chance, in a folder of its own if it needs one, and reads it to the end."""


@dataclass(frozen=True, slots=True)
class Seam:
    """One way in."""

    name: str
    prepare: str
    """`module:function`, which returns the attack: what it builds is no part of an input's time."""

    def attack(self) -> Attack:
        """Return the attack, ready to run."""
        from pkgutil import resolve_name

        made: Attack = resolve_name(self.prepare)()
        return made


SEAMS: Final[tuple[Seam, ...]] = (
    Seam("traces", "tests.fuzz.of_traces:traces"),
    Seam("nsys", "tests.fuzz.of_traces:nsys"),
    Seam("runs", "tests.fuzz.of_runs:runs"),
    Seam("ledgers", "tests.fuzz.of_runs:ledgers"),
    Seam("hangs", "tests.fuzz.of_hangs:hangs"),
    Seam("reports", "tests.fuzz.of_reports:reports"),
    Seam("budgets", "tests.fuzz.of_texts:budgets"),
    Seam("fabrics", "tests.fuzz.of_texts:fabrics"),
    Seam("kernels", "tests.fuzz.of_texts:kernels"),
    Seam("nccl-tests", "tests.fuzz.of_texts:nccl_tests"),
    Seam("sweeps", "tests.fuzz.of_texts:sweeps"),
    Seam("server", "tests.fuzz.of_server:server"),
)
PLANTED: Final = Seam("planted", "tests.fuzz.planted:planted")
"""Faults of every kind, which the engine itself is tested with."""


def seam_of(name: str) -> Seam:
    """Return the seam of that name."""
    return next(seam for seam in (*SEAMS, PLANTED) if seam.name == name)


def check_line(error: ShardtollError) -> None:
    """Fail unless the error is printed as one line of at most 300 characters, each with a glyph."""
    line = f"shardtoll: {error}"
    assert len(line) <= LONGEST_LINE, f"an error line of {len(line):,} characters: {line[:200]!r}"
    odd = {char for char in line if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not odd, f"an error line with {odd!r}: {line!r}"


def refused(attack: Attack, chance: random.Random, folder: Path) -> bool:
    """Run one attack; return whether the input was refused in words. Whatever else it raises is a fault."""
    try:
        attack(chance, folder)
    except ShardtollError as error:
        said = error
    else:
        return False
    check_line(said)
    assert said.exit_code == 2, f"exit code {said.exit_code}"
    assert "our fault" not in str(said), str(said)
    return True
