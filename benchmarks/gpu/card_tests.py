"""The tests that need a CUDA card, run by pytest; in rehearsal pytest only looks for them.

Each test starts interpreters of its own, which takes longer than what it tests. So groups of tests run side
by side, and after them, alone, those that measure times. What a group found is on disk as soon as it ends.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu.place import Place, part
from gpu.sheet import Sheet

FOLDER: Final = Path(__file__).resolve().parents[2] / "tests" / "gpu"
NOTHING_COLLECTED: Final = 5
"""How pytest ends if a module skips itself as a whole."""
BESIDE: Final = (
    "recorded_whole and survey",
    "recorded_whole and schedule",
    "same_kernels and watched",
    "same_kernels and surveyed",
)
"""Which tests each group has, as pytest's `-k` takes it."""
ALONE: Final = "not recorded_whole and not same_kernels"


@dataclass(frozen=True, slots=True)
class Ran:
    """How one group of tests ended."""

    exit_code: int
    tail: str
    tests: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()


def run_group(chosen: str, report: Path) -> Ran:
    """Run the chosen tests; `report` is a file of pytest's that goes again."""
    command = [sys.executable, "-m", "pytest", str(FOLDER), "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", *(["-k", chosen] if chosen else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    tail = (done.stdout + done.stderr)[-1_500:]
    if not report.exists():
        return Ran(done.returncode, tail)
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    report.unlink()
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Ran(done.returncode, tail, len(cases), skipped, tuple(str(case.get("name")) for case in failed))


def measure(sheet: Sheet, place: Place, out: Path) -> None:
    """Run them, and record each that failed."""
    groups: Sequence[Sequence[str]] = [[""]] if place.rehearses else [BESIDE, [ALONE]]
    for number, beside in enumerate(groups):
        with ThreadPoolExecutor(len(beside)) as pool:
            files = [out / f"card_tests.{number}.{index}.xml" for index in range(len(beside))]
            running = {
                pool.submit(run_group, chosen, file): chosen
                for chosen, file in zip(beside, files, strict=True)
            }
            for future in as_completed(running):
                _record(sheet, place, running[future] or "all", future.result())


def _record(sheet: Sheet, place: Place, group: str, ran: Ran) -> None:
    sheet.figure(
        group, {"exit_code": ran.exit_code, "tests": ran.tests, "skipped": ran.skipped, "tail": ran.tail}
    )
    sheet.check(f"failed tests of: {group}", list(ran.failed), [])
    if place.rehearses:
        sheet.check("pytest finds the tests", ran.exit_code in (0, NOTHING_COLLECTED), True)
    else:
        count = ran.tests - ran.skipped
        sheet.check(f"tests that ran of: {group}", count, "some", ok=ran.exit_code == 0 and count > 0)


if __name__ == "__main__":
    part("card_tests", measure, __doc__ or "")
