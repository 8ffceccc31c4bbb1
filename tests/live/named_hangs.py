"""What the live tests of hangs share: where a line of a program stands, and whether verdicts name a hang."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.cli.inputs.flights import flights_of
from tests.live.launch import ROOT


def line_in(program: str, text: str) -> str:
    """Return where the one line of a program that holds the text stands, as verdicts name it."""
    lines = (ROOT / program).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, start=1) if text in line]
    return f"{program}:{number}"


def check_named(folder: Path, why: str, words: Sequence[str]) -> None:
    """Fail unless the verdict while the job hung, and the one after it, have that reason and those words."""
    live = json.loads((folder / "live.json").read_text())
    flights, now_ns, _ = flights_of(folder / "run")
    after = diagnose(flights, now_ns)
    for verdict, reason in ((live["verdict"], live["why"]), (after.verdict, after.why)):
        assert reason == why, verdict
        for each in words:
            assert each in verdict, f"{each} is missing: {verdict}"
