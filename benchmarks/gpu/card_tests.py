"""The tests that need a CUDA card, run by pytest; in rehearsal pytest only looks for them."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Final

from gpu.place import Place, part
from gpu.sheet import Sheet

FOLDER: Final = Path(__file__).resolve().parents[2] / "tests" / "gpu"
NOTHING_COLLECTED: Final = 5
"""How pytest ends if a module skips itself as a whole."""


def measure(sheet: Sheet, place: Place, out: Path) -> None:
    """Run them, and record each that failed."""
    report = out / "card_tests.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        str(FOLDER),
        "-q",
        "-p",
        "no:cacheprovider",
        f"--junitxml={report}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sheet.figure("exit_code", done.returncode)
    sheet.figure("tail", done.stdout[-1_500:])
    suite = ElementTree.parse(report).getroot().find("testsuite")
    counts = {
        key: int(suite.get(key, 0)) if suite is not None else 0
        for key in ("tests", "failures", "errors", "skipped")
    }
    sheet.figure("counts", counts)
    sheet.check("failed tests", counts["failures"] + counts["errors"], 0)
    if place.rehearses:
        sheet.check("pytest finds the tests", done.returncode in (0, NOTHING_COLLECTED), True)
    else:
        ran = counts["tests"] - counts["skipped"]
        sheet.check("tests that ran", ran, "some", ok=done.returncode == 0 and ran > 0)
    report.unlink()


if __name__ == "__main__":
    part("card_tests", measure, __doc__ or "")
