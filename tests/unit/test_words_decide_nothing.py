"""Nothing decides by what people read: titles, labels, remedies and evidence are printed, never compared.

What a decision needs, findings carry beside their words: kind, cause, figures, parameters, rows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRODUCT = ("ledger", "profiler", "analyzers", "dashboards", "cli")

WORDS = ("title", "label", "counterfactual")
"""Attributes that hold display words whatever they belong to."""

OF_REMEDY = ("text", "code")
OF_EVIDENCE = ("label", "value")

ASKING = ("startswith", "endswith", "find", "index", "count", "partition", "rpartition", "split", "contains")
MATCHING = ("match", "search", "fullmatch", "findall", "finditer")

ALLOWED = {
    "profiler/live/gradients/findings.py says_replicate": "ranks name mesh dimensions by label",
    "profiler/live/gradients/remedies.py for_all": "writes code: asks for what it replaces",
    "analyzers/roofline/machines/gpu.py _is": "an accelerator's own name, which a device may report as well",
    "dashboards/exports/parquet.py _evidence": "prints: numbers and texts have their columns",
    "dashboards/facts/first_screen/first_facts.py remedy": "prints: the first sentence",
    "dashboards/page/views/duplicated.py evidence": "prints: picks the entry that a tooltip repeats",
    "dashboards/terminal/terminal_bill.py _code": "prints: breaks code into lines",
}
"""`file function`: why it may."""


def _is_words(node: ast.expr, words: set[str], entries: set[str]) -> bool:
    """Whether this expression itself reads display words; `words`, `entries`: local names that hold them."""
    if isinstance(node, ast.Name):
        return node.id in words
    if isinstance(node, ast.Subscript):
        return _is_evidence(node.value)
    if not isinstance(node, ast.Attribute):
        return False
    if isinstance(node.value, ast.Name) and node.value.id in entries and node.attr in OF_EVIDENCE:
        return True
    of_remedy = node.attr in OF_REMEDY and _name(node.value) == "remedy"
    return node.attr in WORDS or of_remedy


def _name(node: ast.expr) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _is_evidence(node: ast.expr) -> bool:
    return _name(node) == "evidence"


def _reads(node: ast.expr, words: set[str], entries: set[str]) -> bool:
    parts = (part for part in ast.walk(node) if isinstance(part, ast.expr))
    return any(_is_words(part, words, entries) for part in parts)


def _entries(function: ast.AST) -> set[str]:
    """Return the names of loops over evidence."""
    loops = (node for node in ast.walk(function) if isinstance(node, (ast.For, ast.comprehension)))
    return {
        loop.target.id
        for loop in loops
        if isinstance(loop.target, ast.Name) and any(map(_is_evidence, _expressions(loop.iter)))
    }


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    return (part for part in ast.walk(node) if isinstance(part, ast.expr))


def _assigned(function: ast.AST, entries: set[str]) -> set[str]:
    """Return the local names that are given display words, also by way of other names."""
    words: set[str] = set()
    while True:
        more = set(words)
        for node in ast.walk(function):
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if _is_words(node.value, words, entries):
                    more.update(target.id for target in targets if isinstance(target, ast.Name))
        if more == words:
            return words
        words = more


def _decides(node: ast.AST, words: set[str], entries: set[str]) -> bool:
    if isinstance(node, ast.Compare):
        # `is None` asks whether there are words, not what they say.
        sides = [node.left, *node.comparators]
        return not all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops) and any(
            _reads(side, words, entries) for side in sides
        )
    if isinstance(node, ast.Match):
        return _reads(node.subject, words, entries)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        owner, asked = node.func.value, node.func.attr
        asks = asked in (*ASKING, *MATCHING)
        return asks and any(_reads(given, words, entries) for given in (owner, *node.args))
    return False


def deciding(source: str) -> list[tuple[str, int]]:
    """Return function and line of each decision that reads display words."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    inner = {
        id(part) for each in functions for part in ast.walk(each) if part is not each and part in functions
    }
    places = set()
    for function in functions:
        if id(function) in inner:
            continue
        entries = _entries(function)
        words = _assigned(function, entries)
        places |= {
            (function.name, node.lineno)  # type: ignore[attr-defined]
            for node in ast.walk(function)
            if _decides(node, words, entries)
        }
    return sorted(places, key=lambda place: place[1])


def decisions() -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for root in PRODUCT:
        for path in sorted((ROOT / root).rglob("*.py")):
            for name, line in deciding(path.read_text()):
                places.setdefault(f"{path.relative_to(ROOT).as_posix()} {name}", []).append(line)
    return places


def test_no_decision_reads_what_people_read() -> None:
    places = decisions()
    unmeant = {place: lines for place, lines in places.items() if place not in ALLOWED}
    assert not unmeant, "decide by kind, cause, figures, parameters or rows instead"
    assert set(places) == set(ALLOWED), "what is allowed and gone leaves the list"


@pytest.mark.parametrize(
    "body",
    [
        'return finding.title == "x"',
        'return "late" in finding.title',
        "return finding.title in seen",
        'return finding.remedy.text.startswith("Shard")',
        'return [each for each in finding.evidence if each.label == "factor"]',
        "return any(each.value > 1 for each in finding.evidence)",
        "return finding.evidence[0].value > 1",
        'return dict(evidence)["factor"] > 1 or evidence["factor"] > 1',
        "return re.search('late', finding.title) is not None",
        "return LATE.match(finding.label)",
        'title = finding.title\n    return title == "x"',
        'first = finding.title\n    again = first\n    return "x" in again',
        'match finding.title:\n        case "x":\n            return 1',
        'def inner():\n        return finding.title == "x"\n    return inner',
        "return frame['title'].str.contains(finding.title)",
    ],
)
def test_a_planted_decision_is_seen(body: str) -> None:
    assert [name for name, _ in deciding(f"def planted(finding):\n    {body}\n")] == ["planted"]


@pytest.mark.parametrize(
    "body",
    [
        "return finding.title",
        'return f"{finding.title}: {finding.remedy.text}"',
        "return [(each.label, each.value) for each in finding.evidence]",
        "return finding.remedy.code is None",
        'return finding.kind == "straggler" and finding.figure("factor") > 2',
        'title = finding.kind\n    return title == "x"',
    ],
)
def test_printing_and_typed_facts_are_no_such_decision(body: str) -> None:
    assert deciding(f"def sound(finding):\n    {body}\n") == []
