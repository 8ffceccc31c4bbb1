"""No renderer computes a cost: dashboards read times off the report, and only scale, clip and place them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3] / "dashboards"

SCALES: Final = "a share or a mean of what the report carries, for words or the width of a bar"
ENDS: Final = "the end of a span, which is its start and its length"
SHIFTS: Final = "instants counted from the first one drawn"
FOLDS: Final = "the run's clock moved to where it is drawn, with gaps between steps folded"
SPREAD: Final = "which marks lie close enough to be drawn as one"
ALLOWED: Final = {
    "app/level_of_detail.py _touching": "what of a span lies in the window that is drawn",
    "app/layout.py _when": "a clock's time of day",
    "attempts/side_by_side.py _step": "a step without capture's own work, as its two parts are recorded",
    "compare/rows.py causes": SCALES,
    "exports/perfetto.py pieces": SHIFTS,
    "exports/perfetto.py first_step_ns": SHIFTS,
    "exports/perfetto.py of": ENDS,
    "exports/perfetto.py _steps": SHIFTS,
    "exports/perfetto.py _computes": ENDS,
    "fabrics/sweep_figure.py _ratio": SCALES,
    "fabrics/sweep_lines.py error": SCALES,
    "facts/figures_of_run.py tolls": SCALES,
    "facts/first_screen/first_facts.py shares": SCALES,
    "facts/figures_of_run.py exposed_ratio": SCALES,
    "facts/hta_tables.py hta_tables": "which of HTA's rows are the heaviest",
    "facts/hta_tables.py contradiction": SCALES,
    "facts/pipeline_parts.py parts_of": ENDS,
    "facts/pipeline_parts.py _operators": ENDS,
    "facts/step_times.py rank_times": "a step without capture's own work, as its two parts are recorded",
    "facts/step_times.py fold": SCALES,
    "facts/first_screen/under_bars.py not_explained": "whether bars and verdict have steps of one length",
    "page/html/fall.py waterfall": "what each change takes off, from the two times beside it",
    "page/html/first.py _bar": "the width of a bar's parts",
    "page/html/page_bill.py _finding": SCALES,
    "page/views/modules.py _leaves": SCALES,
    "page/views/page_pipeline.py _trace": SHIFTS,
    "page/views/page_pipeline.py _joined": SPREAD,
    "page/views/page_pipeline.py __init__": ENDS,
    "page/views/page_roofline.py ceilings": "bytes over time: the line of a bandwidth",
    "page/views/timeline.py _folded": SPREAD,
    "page/views/timeline_clock.py stretch": FOLDS,
    "page/views/timeline_clock.py drawn": FOLDS,
    "page/views/timeline_clock.py stripes": FOLDS,
    "page/views/timeline_clock.py notes": FOLDS,
    "page/views/timeline_clock.py _spans": ENDS,
    "terminal/middle.py _bar": "the width of a bar's parts",
    "terminal/middle.py steps": "which parts are wide enough to be drawn",
}
"""File and function -> why it does arithmetic on times."""

_OPERATORS: Final = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_CALLS: Final = ("subtract", "add", "multiply", "divide", "sub", "mul", "div", "diff")


def is_time(node: ast.AST) -> bool:
    """Whether an expression names a time: an attribute, a name or a column whose name ends in `_ns`."""
    if isinstance(node, (ast.List, ast.ListComp, ast.JoinedStr)):
        return False
    if isinstance(node, ast.Attribute) and node.attr.endswith("_ns"):
        return True
    if isinstance(node, ast.Name) and node.id.endswith("_ns"):
        return True
    columns: list[ast.expr] = []
    if isinstance(node, ast.Subscript):
        columns = [node.slice]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "column":
        columns = node.args
    if any(
        isinstance(name, ast.Constant) and str(name.value).endswith(("_ns", "_ns_mean")) for name in columns
    ):
        return True
    return any(is_time(child) for child in ast.iter_child_nodes(node))


def costs(source: str) -> Iterator[tuple[str, int]]:
    """Yield function and line of each arithmetic on a time."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, int]]:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.FunctionDef) else function
            operands: list[ast.expr] = []
            if isinstance(child, ast.BinOp) and isinstance(child.op, _OPERATORS):
                operands = [child.left, child.right]
            elif isinstance(child, ast.AugAssign) and isinstance(child.op, _OPERATORS):
                operands = [child.target, child.value]
            elif isinstance(child, ast.Call) and getattr(child.func, "attr", None) in _CALLS:
                operands = [child.func, *child.args]
            lists = any(isinstance(each, (ast.List, ast.JoinedStr, ast.ListComp)) for each in operands)
            if not lists and any(is_time(each) for each in operands):
                yield inside, child.lineno
            yield from visit(child, inside)

    yield from visit(ast.parse(source), "<module>")


def places() -> dict[str, list[int]]:
    """Return file and function -> the lines that do arithmetic on times."""
    lines: dict[str, list[int]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for function, line in costs(path.read_text(encoding="utf-8")):
            lines.setdefault(f"{path.relative_to(ROOT).as_posix()} {function}", []).append(line)
    return lines


def test_no_renderer_computes_a_cost():
    lines = places()
    new = {place: where for place, where in lines.items() if place not in ALLOWED}
    assert not new, "arithmetic on times: let an analysis put it into the report, or say why it is drawing"
    assert not ALLOWED.keys() - lines.keys(), "allowed, and no longer there"


@pytest.mark.parametrize(
    "planted",
    [
        "lost = frame['exposed_ns'] - frame['transfer_ns']",
        "waited = max(call.exposed_ns - call.transfer_ns, 0)",
        "late = np.subtract(last_ns, start_ns)",
        "late = pc.subtract(table.column('exposed_ns'), table.column('transfer_ns'))",
        "total = 0\n    total += step.idle_ns",
        "own = ints(table.column('duration_ns')) - ints(table.column('capture_ns'))",
        "moved = frame['exposed_ns'].sub(frame['waited_ns'])",
    ],
)
def test_a_cost_that_is_computed_is_seen(planted: str):
    assert {function for function, _ in costs(f"def draw():\n    {planted}\n")} == {"draw"}


@pytest.mark.parametrize(
    "innocent",
    [
        "rows += [step.idle_ns]",
        "words = f'{toll_ns}' + word",
        "size = call.message_bytes * 8",
        "x = max(a_ns, 0)",
    ],
)
def test_what_is_no_arithmetic_on_times_is_left_alone(innocent: str):
    assert not list(costs(f"def draw():\n    {innocent}\n"))
