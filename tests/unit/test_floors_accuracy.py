"""docs/floors.md: its table of errors is that of `benchmarks/results/model_accuracy.json`.

After `python benchmarks/model_accuracy.py -o benchmarks/results/model_accuracy.json`,
`pytest --renew-golden tests/unit/test_floors_accuracy.py` writes the table anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "floors.md"
RESULTS = ROOT / "benchmarks" / "results" / "model_accuracy.json"
BEGIN = "<!-- errors: written by pytest --renew-golden tests/unit/test_floors_accuracy.py -->\n"
END = "<!-- end of the errors -->\n"
BANDS = ("<=64K", "128K-8M", "16-256M", ">=512M", "all")
HEADS = (
    "",
    *(f"{band}" for band in BANDS),
    "in the band",
    "below the floor",
    "redistribute_cost",
    "inductor",
)


def figures() -> dict[str, dict[str, dict[tuple[str, str], float]]]:
    """Return constants -> class of predictions -> (band, figure) -> its value."""
    found: dict[str, dict[str, dict[tuple[str, str], float]]] = {}
    for name, value in json.loads(RESULTS.read_text(encoding="utf-8"))["figures"].items():
        constants, _, rest = name.partition(": ")
        parts = re.fullmatch(r"(.*), ([^,]+): ([^:]+)", rest)
        assert parts is not None, name
        kind, band, figure = parts.groups()
        found.setdefault(constants, {}).setdefault(kind, {})[band, figure] = value
    return found


def percent(known: dict[tuple[str, str], float], band: str, *names: str) -> str:
    told = [known.get((band, name)) for name in names]
    return " / ".join("-" if one is None else f"{100 * one:.1f}" for one in told)


def written() -> str:
    """Return the tables as the page should have them."""
    parts = []
    for constants, kinds in figures().items():
        rows = []
        for kind, known in kinds.items():
            errors = [percent(known, band, "median", "p90") for band in BANDS]
            inside = f"{100 * known['all', 'in band']:.0f} %"
            below = f"{100 * known['all', 'below floor']:.1f} %"
            peers = [percent(known, "all", f"{peer} median") for peer in ("redistribute_cost", "inductor")]
            rows.append(
                [kind, *(("" if cell == "- / -" else cell) for cell in errors), inside, below, *peers]
            )
        lines = [HEADS, ["---"] * len(HEADS), *rows]
        table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
        parts.append(f"\nConstants {constants}:\n\n{table}\n")
    return "".join(parts) + "\n"


def test_the_table_is_that_of_the_benchmarks_results(golden_part):
    golden_part(PAGE, BEGIN, END, written())


def test_all_classes_and_bands_are_there():
    for kinds in figures().values():
        assert sum(kind.startswith("not fitted") for kind in kinds) >= 3
        assert any(kind.startswith("calibrated") for kind in kinds)
        assert any(kind.startswith("transferred") for kind in kinds)
        assert all(("all", "median") in known for known in kinds.values())
