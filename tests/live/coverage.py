"""What the strategies' tests have shown, one row per strategy; `docs/coverage.md` is made from it.

A test that has held a run to its closed form says so here, cell by cell. What it says is compared with the
file it was said to last time; under `--renew-golden` it is written there instead. A cell is `yes`, or the
words of the limit that was met; `-` where nobody has looked, or where the column does not apply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = Path(__file__).parent / "coverage_rows"
COLUMNS: Final = ("counted", "bytes exact", "cause", "phase", "implicit flag", "compile", "watch")
PAGE: Final = Path(__file__).parents[2] / "docs" / "coverage.md"


def covered(
    config: pytest.Config, family: str, strategy: str, cells: Mapping[str, str] | None = None
) -> None:
    """Say that a strategy was held to its closed form: `yes` in every column but those in `cells`.

    Nothing is said of the columns `compile` and `watch`: see `cover`.
    """
    said = {column: "yes" for column in COLUMNS if column not in ("compile", "watch")} | dict(cells or {})
    cover(config, family, strategy, said)


def cover(config: pytest.Config, family: str, strategy: str, cells: Mapping[str, str]) -> None:
    """Say what these cells of a strategy's row hold."""
    assert set(cells) <= set(COLUMNS), cells
    path = FOLDER / f"{family}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if config.getoption("--renew-golden"):
        path.parent.mkdir(exist_ok=True)
        row = known.setdefault(strategy, {}) | cells
        known[strategy] = {column: row[column] for column in COLUMNS if column in row}
        path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    told = {column: known.get(strategy, {}).get(column) for column in cells}
    assert told == cells, f"pytest --renew-golden writes what {path.name} has to say of {strategy}"


def page() -> str:
    """Return the documentation page of all rows on file."""
    lines = [
        "# What is captured, strategy by strategy",
        "",
        "Written by the tests (`pytest --renew-golden tests/live`). Each row was held, on real ranks, to a",
        "closed form of every record's operation, group, bytes, cause and phase. *counted*: as many as the",
        "group itself counted. *cause*: operator or wrapper, module or parameter, mesh dimension, line.",
        "*watch*: watched steps say the same as a surveyed one, in every column but the times.",
    ]
    for path in sorted(FOLDER.glob("*.json")):
        rows: dict[str, dict[str, str]] = json.loads(path.read_text(encoding="utf-8"))
        lines += ["", f"## {path.stem.replace('_', ' ')}", "", f"| strategy | {' | '.join(COLUMNS)} |"]
        lines.append("|" + "---|" * (len(COLUMNS) + 1))
        for strategy, row in rows.items():
            lines.append(f"| {strategy} | {' | '.join(row.get(column, '-') for column in COLUMNS)} |")
    return "\n".join(lines) + "\n"
