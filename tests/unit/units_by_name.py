"""Checks units by names: `time_ns = wire_bytes / peak_tflops` or `latency_us + hop_ns` is found.

The last word of a name is its unit. Of an expression the unit is worked out (bytes / GB/s is ns) and held to
the name it is given, the parameter it is passed as, the function that returns it and what it is added to or
compared with. Literals 1000, 1e6, 1e-9 and the like convert: `time_us * 1000` is ns; other literals have no
unit. What cannot be worked out is let pass, so that nothing is found that is right.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Unit:
    """Powers of seconds, bytes and floating-point operations, and the decimal exponent of the scale."""

    seconds: int = 0
    bytes: int = 0
    flops: int = 0
    exponent: int = 0

    def times(self, other: Unit, sign: int = 1) -> Unit:
        return Unit(
            self.seconds + sign * other.seconds,
            self.bytes + sign * other.bytes,
            self.flops + sign * other.flops,
            self.exponent + sign * other.exponent,
        )


PLAIN = Unit()
UNITS = {
    "s": Unit(seconds=1),
    "ms": Unit(seconds=1, exponent=-3),
    "us": Unit(seconds=1, exponent=-6),
    "ns": Unit(seconds=1, exponent=-9),
    "bytes": Unit(bytes=1),
    "gbps": Unit(seconds=-1, bytes=1, exponent=9),
    "flops": Unit(flops=1),
    "tflops": Unit(seconds=-1, flops=1, exponent=12),
}
NO_UNIT = frozenset(
    {
        "n",
        "g",
        "k",
        "ranks",
        "nodes",
        "ranks_per_node",
        "steps",
        "rounds",
        "hops",
        "cards",
        "sharing",
        "surely_sharing",
    }
)
"""Names of counts."""

RATIOS = ("share", "ratio", "factor", "hops", "ranks", "nodes", "steps", "rounds")
"""Last words of names of ratios and counts."""

SAME = frozenset({
    "abs", "ceil", "floor", "round", "int", "float", "fsum", "sum", "min", "max", "mean", "median",
    "quantile",
    "minimum", "maximum", "clip", "astype", "to_numpy", "fillna", "sorted", "asarray", "array",
})  # fmt: skip
"""Functions and methods whose answer has the unit of what they are given."""


def unit_of_name(name: str) -> Unit | None:
    """Return the unit that a name tells; None where it tells none."""
    words = name.strip("_").lower().split("_")
    if name.lower() in NO_UNIT or (len(words) > 1 and words[-1] in RATIOS):
        return PLAIN
    if "per" in words:
        above, below = words[: words.index("per")], words[words.index("per") + 1 :]
        rate = [
            UNITS.get(above[-1]) if above else None,
            UNITS.get(f"{below[-1]}s", UNITS.get(below[-1])) if below else None,
        ]
        return rate[0].times(rate[1], -1) if rate[0] is not None and rate[1] is not None else None
    if len(words) == 1 and words[0] not in ("ns", "gbps", "tflops"):
        return None
    return UNITS.get(words[-1])


def _named(node: ast.expr) -> str | None:
    """Return the name by which an expression is known, as `node_gbps` of `link.node_gbps.value`."""
    if isinstance(node, ast.Attribute):
        return _named(node.value) if node.attr in ("value", "values", "array") else node.attr
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript):
        key = node.slice
        return (
            key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else _named(node.value)
        )
    return None


def _power_of_1000(node: ast.expr) -> int | None:
    """Return the decimal exponent of a literal that only converts."""
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool | str | bytes | None):
        return None
    value = float(node.value)
    if value <= 0:
        return None
    exponent = round(math.log10(value))
    return exponent if exponent % 3 == 0 and exponent and value == 10.0**exponent else None


class _Function:
    """One function: what its names hold, and what in it does not fit."""

    def __init__(self, signatures: dict[str, list[str]]) -> None:
        self.signatures = signatures
        self.held: dict[str, Unit | None] = {}
        self.found: list[tuple[int, str]] = []

    def unit(self, node: ast.expr | None) -> Unit | None:
        """Return the unit of an expression; None where it is not known or where any would do, as of 0."""
        if isinstance(node, ast.BinOp):
            return self._of_operation(node)
        if isinstance(node, ast.UnaryOp):
            return self.unit(node.operand)
        if isinstance(node, ast.IfExp):
            return self._alike(node, [node.body, node.orelse])
        if isinstance(node, ast.BoolOp):
            return self._alike(node, node.values)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.GeneratorExp | ast.ListComp):
            return self.unit(node.elt)
        name = None if node is None else _named(node)
        if name is None:
            return None
        told = unit_of_name(name)
        return told if told is not None else self.held.get(name)

    def _alike(self, node: ast.expr, parts: list[ast.expr]) -> Unit | None:
        known = {unit for unit in map(self.unit, parts) if unit is not None}
        if len(known) > 1:
            self.found.append((node.lineno, f"mixes units: {ast.unparse(node)}"))
        return known.pop() if len(known) == 1 else None

    def _of_operation(self, node: ast.BinOp) -> Unit | None:
        if isinstance(node.op, ast.Add | ast.Sub):
            return self._alike(node, [node.left, node.right])
        left, right = self.unit(node.left), self.unit(node.right)
        if not isinstance(node.op, ast.Mult | ast.Div | ast.FloorDiv):
            return left if isinstance(node.op, ast.Mod) else None
        sign = 1 if isinstance(node.op, ast.Mult) else -1
        for one, other in ((node.right, left), (node.left, right)):
            converts = _power_of_1000(one)
            if converts is not None and other is not None and (sign == 1 or one is node.right):
                return other.times(Unit(exponent=converts), -sign)
        left = PLAIN if isinstance(node.left, ast.Constant) else left
        right = PLAIN if isinstance(node.right, ast.Constant) else right
        return None if left is None or right is None else left.times(right, sign)

    def _of_call(self, node: ast.Call) -> Unit | None:
        name = _named(node.func) or ""
        for keyword in node.keywords:
            self._fits(keyword.value, keyword.arg or "", f"{name}({keyword.arg}=...)")
        for parameter, given in zip(self.signatures.get(name, ()), node.args, strict=False):
            self._fits(given, parameter, f"{name}({parameter})")
        if name in SAME:
            parts = list(node.args[:1] if name in ("round", "clip", "quantile") else node.args)
            method = isinstance(node.func, ast.Attribute) and _named(node.func.value) not in (
                "math",
                "np",
                "pd",
            )
            if method and isinstance(node.func, ast.Attribute):
                return self.unit(node.func.value)
            return self._alike(node, parts) if parts else None
        return unit_of_name(name)

    def _fits(self, node: ast.expr | None, name: str, where: str) -> None:
        told, has = unit_of_name(name), self.unit(node)
        if told is not None and has is not None and told != has and node is not None:
            self.found.append((node.lineno, f"{where} is given {ast.unparse(node)}"))

    def assign(self, target: ast.expr, value: ast.expr | None) -> None:
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            for one, other in zip(target.elts, value.elts, strict=True):
                self.assign(one, other)
            return
        name = _named(target)
        if name is None or isinstance(target, ast.Tuple):
            return
        if unit_of_name(name) is not None:
            self._fits(value, name, name)
        elif isinstance(target, ast.Name):
            has = self.unit(value)
            # A name that holds this here and that there tells nothing.
            self.held[name] = has if self.held.get(name, has) == has else None


def _functions(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def signatures(trees: Iterable[ast.Module]) -> dict[str, list[str]]:
    """Return parameters of functions and fields of classes, in order, where a name means one thing."""
    known: dict[str, list[list[str]]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
                known.setdefault(node.name, []).append(
                    [name for name in names if name not in ("self", "cls")]
                )
            elif isinstance(node, ast.ClassDef):
                fields = [
                    part.target.id
                    for part in node.body
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
                ]
                known.setdefault(node.name, []).append(fields)
    return {name: found[0] for name, found in known.items() if len(found) == 1}


def mistakes(tree: ast.Module, known: dict[str, list[str]]) -> list[tuple[int, str]]:
    """Return line and words of every place where units do not fit."""
    found: set[tuple[int, str]] = set()
    for function in _functions(tree):
        one = _Function(known)
        nodes = [node for node in ast.walk(function) if isinstance(node, ast.expr | ast.stmt)]
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    one.assign(target, node.value)
            elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
                one.assign(node.target, node.value)
            elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
                one._fits(node.value, _named(node.target) or "", ast.unparse(node.target))
            elif isinstance(node, ast.Return):
                one._fits(node.value, function.name, f"{function.name} returns: it")
            elif isinstance(node, ast.Compare):
                one._alike(node, [node.left, *node.comparators])
            elif isinstance(node, ast.expr):
                one.unit(node)
        found |= set(one.found)
    return sorted(found)


def in_folder(folder: Path) -> list[str]:
    """Return every mistake of a folder's Python files as file:line: words."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))}
    known = signatures(trees.values())
    return [
        f"{path.name}:{line}: {words}"
        for path, tree in trees.items()
        for line, words in mistakes(tree, known)
    ]
