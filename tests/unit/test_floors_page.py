"""docs/floors.md: every line of its worked example is done again, and the last are the model's own answers.

`pytest --renew-golden tests/unit/test_floors_page.py` writes the example anew with the library's constants.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardtoll.analyzers.roofline import Cost, Placement, collective_cost, load_fabric
from shardtoll.analyzers.roofline.model.library import load_library
from shardtoll.analyzers.roofline.model.model import ALGORITHMS
from shardtoll.ledger.records.volume import busbw_factor

PAGE = Path(__file__).resolve().parents[2] / "docs" / "floors.md"
BEGIN = "<!-- worked example: written by pytest --renew-golden tests/unit/test_floors_page.py -->\n"
END = "<!-- end of the worked example -->\n"
S = 1 << 30
FABRIC = "h100x8-ib400"

UNITS = {"ms": 1e-3, "us": 1e-6, "GB/s": 1e9, "GB": 1e9, "B": 1.0, "": 1.0}
STEPS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip


def value(words: str) -> float:
    """Return what an expression such as `2 x 21.1 us + 3 B / (450 GB/s)` comes to, in seconds and bytes."""
    plain = re.sub(
        r"([\d.]+)\s*(GB/s|GB|ms|us|B)?(?![\w/])",
        lambda found: f"({found[1]}*{UNITS[found[2] or '']!r})",
        words.replace(" x ", " * "),
    )

    def of(node: Any) -> float:
        if isinstance(node, ast.BinOp):
            return STEPS[type(node.op)](of(node.left), of(node.right))
        if isinstance(node, ast.Call):
            given = [of(one) for one in node.args]
            return {"sqrt": math.sqrt, "max": max}[node.func.id](*given)
        assert isinstance(node, ast.Constant), ast.dump(node)
        return float(node.value)

    return of(ast.parse(plain, mode="eval").body)


def shown(number: float, unit: str) -> str:
    """Return a number in a unit with four figures."""
    scaled = number / UNITS[unit]
    return f"{scaled:.{max(0, 3 - math.floor(math.log10(scaled)))}f} {unit}"


def number(name: str, *special: str) -> float:
    return load_library("nccl").number(name, *special)


def rows() -> list[tuple[str, str, str]]:
    """Return what, how, and in which unit: line by line, each may use the results above it by {name}."""
    near = number("near_share.nvls", "hopper")
    ring = load_fabric(FABRIC).intra
    assert ring is not None
    ring_share = ring.reached["ring"].value if "ring" in ring.reached else number("near_share.ring", "hopper")
    tree_near, tree_net = number("near_share.nvlstree"), number("net_share.tree", "infiniband")
    base_us, hop_us = number("base_us.ring", "Simple"), number("near_hop_us.ring", "Simple")
    nvls_us, nvlstree_us = number("base_us.nvls", "Simple"), number("base_us.nvlstree", "Simple")
    net_us = number("net_hop_us.nvlstree", "Simple")
    ramp_ring, ramp_nvls = number("ramp.ring", "near"), number("ramp.nvls", "near")
    ramp_nvlstree = number("ramp.nvlstree", "infiniband", "net")
    return [
        ("one host", "", ""),
        ("light", f"7/8 x {S} B / 450 GB/s", "ms"),
        ("ring latency", f"{base_us:g} us + 14 x {hop_us:g} us", "us"),
        ("ring transfer", f"2 x 7/8 x {S} B / (450 GB/s x {ring_share:g})", "ms"),
        ("ring ramp", f"{ramp_ring:g} x sqrt({{ring latency}} x {{ring transfer}})", "ms"),
        ("ring", "{ring latency} + {ring transfer} + {ring ramp}", "ms"),
        ("nvls latency", f"{nvls_us:g} us", "us"),
        ("nvls transfer", f"9/8 x {S} B / (450 GB/s x {near:g})", "ms"),
        ("nvls ramp", f"{ramp_nvls:g} x sqrt({{nvls latency}} x {{nvls transfer}})", "ms"),
        ("nvls", "{nvls latency} + {nvls transfer} + {nvls ramp}", "ms"),
        ("bus bandwidth", f"2 x 7/8 x {S} B / {{nvls}}", "GB/s"),
        ("two hosts", "", ""),
        ("light of two", f"2 x 1/2 x {S} B / (8 x 50 GB/s)", "ms"),
        ("nvlstree latency", f"{nvlstree_us:g} us + 2 x {net_us:g} us", "us"),
        ("near", f"9/8 x {S} B / (450 GB/s x {tree_near:g})", "ms"),
        ("net", f"{S} B / (8 x 50 GB/s x {tree_net:g})", "ms"),
        ("nvlstree ramp", f"{ramp_nvlstree:g} x sqrt({{nvlstree latency}} x max({{near}}, {{net}}))", "ms"),
        ("nvlstree", "{nvlstree latency} + max({near}, {net}) + {nvlstree ramp}", "ms"),
        ("bus bandwidth of two", f"2 x 15/16 x {S} B / {{nvlstree}}", "GB/s"),
    ]


TITLES = {
    "one host": "Eight ranks on one host. A ring takes 14 steps, NVLS one, in which the NVSwitch adds.\n"
    "For light too a GPU then need send 7/8 S only, not twice that:",
    "two hosts": "Sixteen ranks on two hosts by NVLSTree. NVLink and the eight cards work at once, and the\n"
    "slower counts. With two hosts each is root of one tree and leaf of the other, so that it sends S:",
}


def written() -> str:
    """Return the example as the page should have it."""
    known: dict[str, str] = {}
    parts: list[str] = []
    for name, words, unit in rows():
        if name in TITLES:
            parts.append(("```\n\n" if parts else "\n") + TITLES[name] + "\n\n```worked\n")
            continue
        filled = re.sub(r"\{([^}]+)\}", lambda found: known[found[1]], words)
        known[name] = shown(value(filled), unit)
        parts.append(f"{name:<20} = {filled} = {known[name]}\n")
    return "".join(parts) + "```\n\n"


def lines() -> dict[str, tuple[str, str]]:
    page = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```worked\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    split = [line.split(" = ") for block in blocks for line in block.splitlines()]
    assert all(len(line) == 3 for line in split)
    return {name.strip(): (words, result) for name, words, result in split}


def result(name: str) -> float:
    return value(lines()[name][1])


def test_the_example_is_that_of_the_librarys_constants(golden_part):
    golden_part(PAGE, BEGIN, END, written())


@pytest.mark.parametrize("name", lines())
def test_every_line_comes_to_what_it_says(name):
    words, said = lines()[name]
    # Results are shown with four figures, and later lines go on with them.
    assert value(words) == pytest.approx(value(said), rel=1e-3)


def cost(at: Placement) -> Cost:
    found = collective_cost(load_fabric(FABRIC), "all_reduce", S, at)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("at", "algorithm", "light", "latency", "busbw"),
    [
        (Placement(8, 1, 8), "nvls", "light", "nvls latency", "bus bandwidth"),
        (Placement(16, 2, 8), "nvlstree", "light of two", "nvlstree latency", "bus bandwidth of two"),
    ],
)
def test_the_last_lines_are_the_models_own_answers(at, algorithm, light, latency, busbw):
    found = cost(at)
    assert found.algorithm == algorithm
    assert found.time_ns == pytest.approx(result(algorithm) * 1e9, rel=1e-3)
    assert found.latency_ns == pytest.approx(result(latency) * 1e9, rel=1e-3)
    assert found.light_ns == pytest.approx(result(light) * 1e9, rel=1e-3)
    factor = busbw_factor("all_reduce", at.ranks)
    assert factor is not None
    assert S * factor / found.time_ns == pytest.approx(result(busbw) / 1e9, rel=1e-3)


def test_the_ring_would_be_slower():
    assert result("nvls") < result("ring")


def test_the_table_has_every_algorithm_of_the_model():
    page = PAGE.read_text(encoding="utf-8").lower().replace("two levels", "hierarchical")
    table = page[page.index("| collective | algorithm |") :]
    names = {name.replace("_", " and " if name == "halving_doubling" else " ") for name in ALGORITHMS}
    names = {"double binary tree" if name == "tree" else name for name in names}
    assert [name for name in sorted(names) if name not in table] == []
