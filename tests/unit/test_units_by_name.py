"""Units cannot be mixed up unseen: every number's name tells its unit, and what is computed of it fits.

First the check itself is held to planted mistakes and to code that is right; then it looks at ours.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.units_by_name import in_folder, mistakes, signatures, unit_of_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
ROOFLINE = ROOT / "analyzers" / "roofline"
FOLDERS = [
    "analyzers/roofline",
    "analyzers",
    "ledger",
    "profiler",
    "profiler/live",
    "profiler/traces",
    "cli",
    "benchmarks",
]


def found(body: str) -> list[str]:
    lines = "\n    ".join(body.split("\n"))
    tree = ast.parse(
        "def f_ns(a_ns, b_us, c_ms, wire_bytes, node_gbps, work_flops, peak_tflops, x, link, frame):\n"
        f"    {lines}\n"
        "class Terms:\n    steps: int\n    latency_ns: float\n    near_bytes: int\n"
        "def cost_us(latency_us, nodes):\n    pass\n"
    )
    return [words for _, words in mistakes(tree, signatures([tree]))]


@pytest.mark.parametrize(
    "wrong",
    [
        "a_ns + b_us",
        "a_ns - wire_bytes",
        "max(a_ns, b_us)",
        "min(a_ns, 3 * b_us)",
        "a_ns < b_us",
        "t_us = a_ns",
        "t_ns = wire_bytes",
        "t_ns = b_us * 1e6",
        "t_us = a_ns * 1000",
        "t_us = wire_bytes / node_gbps",
        "t_gbps = wire_bytes / b_us",
        "t_ns = wire_bytes * node_gbps",
        "t_ns = work_flops / peak_tflops",
        "t_ns = link.latency_us.value",
        "t_ns = frame['wait_us'].to_numpy()",
        "t_ns = a_ns\nt_ns += b_us",
        "y = b_us\nreturn y",
        "return wire_bytes",
        "return a_ns if x else b_us",
        "Terms(3, b_us, wire_bytes)",
        "Terms(3, near_bytes=a_ns, latency_ns=a_ns)",
        "Terms(3, latency_ns=wire_bytes, near_bytes=wire_bytes)",
        "cost_us(a_ns, 4)",
        "t_ns = cost_us(b_us, 4)",
        "t_ns, t_bytes = wire_bytes, a_ns",
        "return [a_ns + c for c in (b_us,)][0] + c_ms",
    ],
)
def test_a_mistake_is_found(wrong):
    assert found(wrong)


@pytest.mark.parametrize(
    "right",
    [
        "return a_ns + b_us * 1000",
        "return a_ns + 1000 * b_us + c_ms * 1e6",
        "t_us = a_ns / 1000\nreturn t_us * 1e3",
        "return wire_bytes / node_gbps",
        "return 2 * a_ns + wire_bytes / (4 * node_gbps)",
        "t_gbps = wire_bytes / a_ns",
        "t_ns = work_flops / peak_tflops / 1000",
        "t_bytes = a_ns * node_gbps",
        "return max(a_ns, 0) + 1",
        "return x * b_us * 1000 if x else 0",
        "ratio = a_ns / wire_bytes * node_gbps\nreturn ratio * a_ns",
        "steps = 3\nreturn steps * a_ns",
        "return a_ns + x",
        "if a_ns > 1000: return 0",
        "return Terms(3, a_ns, wire_bytes)",
        "bytes_per_ns = wire_bytes / a_ns\nreturn wire_bytes / bytes_per_ns",
        "y = b_us\ny = wire_bytes\nreturn y",
    ],
)
def test_what_is_right_is_let_pass(right):
    assert found(right) == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_units_fit_in_our_code(folder):
    assert in_folder(ROOT / folder) == []


WITHOUT_UNIT = {
    # counts
    "ranks_per_domain", "per_host", "ranks_per_host", "group_size", "peers", "samples", "count", "sizes",
    "line", "gpus", "size", "used", "hosts_of_a_domain", "sms",
    # Gb/s, as network cards are named
    "card_gbit", "node_gbit",
    # the version of a chip
    "capability",
    # ratios
    "reached", "ramp", "most_of_a_host", "end_of_the_trees",
    # factors of a correction, logarithms of a band's factors, relative errors and quantiles of them
    "latency", "transfer", "band", "band_of_model", "known", "median", "p90", "inside", "width",
    "below_floor", "below_light", "errors", "error", "quantiles",
    # a number of any unit, which the holder's name tells
    "value", "quantity", "quantities", "rates", "number", "numbers", "least", "most", "otherwise",
}  # fmt: skip


def numbers(path: Path) -> Iterator[tuple[str, str]]:
    """Yield where and name of every public field, parameter and answer of a file that is a number."""

    def is_number(annotation: ast.expr | None) -> bool:
        words = set(re.findall(r"\w+", "" if annotation is None else ast.unparse(annotation)))
        return bool(words & {"int", "float", "Quantity"}) and not words & {"Callable", "dict", "str"}

    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
    for node in [part for holder in (tree, *classes) for part in holder.body]:
        if getattr(node, "name", "_").startswith("_"):
            continue
        if isinstance(node, ast.FunctionDef):
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                if is_number(argument.annotation):
                    yield f"{path.name}: {node.name}({argument.arg})", argument.arg
            if is_number(node.returns):
                yield f"{path.name}: {node.name} returns", node.name
        elif isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and is_number(part.annotation):
                    yield f"{path.name}: {node.name}.{ast.unparse(part.target)}", ast.unparse(part.target)


def nameless(found: Iterable[tuple[str, str]]) -> list[str]:
    return [
        where for where, name in found if unit_of_name(name) is None and name.strip("_") not in WITHOUT_UNIT
    ]


@pytest.mark.parametrize("path", sorted(ROOFLINE.rglob("*.py")), ids=lambda path: path.name)
def test_the_name_of_every_number_of_the_model_tells_its_unit(path):
    assert nameless(numbers(path)) == []


def leaves(table: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the keys that lead to each number of a TOML table."""
    if isinstance(table, dict):
        for key, value in table.items():
            yield from leaves(value, (*path, key))
    elif isinstance(table, list):
        for value in table:
            yield from leaves(value, path)
    elif isinstance(table, int | float) and not isinstance(table, bool):
        yield path


@pytest.mark.parametrize("path", sorted(ROOFLINE.rglob("*.toml")), ids=lambda path: path.name)
def test_a_key_above_every_number_of_a_shipped_file_tells_its_unit(path):
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    nameless_keys = [
        keys
        for keys in leaves(table)
        if all(key in ("value", "numbers") or nameless([("", key)]) for key in keys)
    ]
    assert nameless_keys == []
