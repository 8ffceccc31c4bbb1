"""The pages of findings are whole, say what the code says, and their made-up examples are what is printed."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest

from docs import finding_pages
from docs.finding_pages import FACTS, HEADINGS, INDEX, PAGES, ROOT, WIDTH, entry, source
from shardtoll.ledger import KINDS, analyze
from shardtoll.profiler.traces.job.job import read_traces

sys.path.insert(0, str(ROOT / "benchmarks"))
import synthetic_job

KNOWN = finding_pages.pages()
NOT_EMITTED: tuple[str, ...] = ()
"""Kinds that no analysis emits: their pages say so."""


def test_every_kind_has_a_page_and_no_other():
    assert {path.stem for path in PAGES.iterdir()} == set(KINDS)


def test_the_index_is_what_the_pages_make_of_it():
    assert finding_pages.index() == INDEX.read_text(encoding="utf-8"), "run python docs/finding_pages.py"


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_all_its_parts(kind: str):
    page = KNOWN[kind]
    assert page.text.startswith(f"# `{kind}`\n\n")
    assert page.headings == list(HEADINGS)
    assert tuple(page.facts) == FACTS
    for heading, body in re.findall(r"^## (.+)\n\n((?:(?!^## ).*\n?)*)", page.text, flags=re.MULTILINE):
        assert len(body.split()) >= 8, f"{heading} is empty"
    assert page.summary.endswith(".")
    assert "|" not in page.summary
    assert "```" in page.text.split("## How to fix it")[1].split("## What it looks like")[0], "a fix has code"
    confirmed = page.text.split("## How to confirm it")[1].split("## ")[0]
    assert "shardtoll report" not in confirmed, "another tool confirms it"


@pytest.mark.parametrize("kind", KINDS)
def test_severities_are_of_those_that_are_said(kind: str):
    said = set(re.findall(r"\b(error|warning|info)\b", KNOWN[kind].facts["severity"]))
    assert bool(said) is (kind not in NOT_EMITTED)
    assert said <= {word for file in _files(kind) for word in _strings(file)}


def _files(kind: str) -> list[Path]:
    return [ROOT / name for name in re.findall(r"`([^`]+)`", KNOWN[kind].facts["code"])]


@cache
def _strings(path: Path) -> frozenset[str]:
    """Return the texts in a file's code, with what f-strings leave open as `{}`."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            found.add("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return frozenset(found)


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_named_makes_findings_of_that_kind(kind: str):
    files = _files(kind)
    assert files
    assert all(file.is_file() for file in files)
    assert any(kind in _strings(file) for file in files)


@cache
def _module(name: str) -> str:
    """Return the full name of the one module of the analyzers with this name."""
    (path,) = (ROOT / "analyzers").rglob(f"{name}.py")
    return "shardtoll." + ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KNOWN[kind].limits])
def test_limits_are_those_of_the_code(kind: str):
    for module, name, value in KNOWN[kind].limits:
        constant = getattr(importlib.import_module(_module(module)), name)
        assert ast.literal_eval(value) == constant, f"{module}.{name} is {constant!r}"


def test_most_pages_quote_limits_and_labels():
    assert sum(bool(page.limits) for page in KNOWN.values()) > 20
    assert sum(bool(page.labels) for page in KNOWN.values()) > 20


@pytest.mark.parametrize("kind", [kind for kind in KINDS if KNOWN[kind].labels])
def test_labels_of_evidence_are_in_the_code(kind: str):
    texts = {text for file in _files(kind) for text in _strings(file)}
    patterns = [re.escape(text).replace(r"\{\}", ".+") for text in texts]
    for label in KNOWN[kind].labels:
        assert label in texts or any(re.fullmatch(each, label) for each in patterns), label


@pytest.mark.parametrize("kind", KINDS)
def test_examples_are_of_the_kind(kind: str):
    last = KNOWN[kind].text.split("## What it looks like")[1]
    shown = re.findall(r"^```text\n(.*?)^```", last, re.M | re.S)
    assert len(shown) == len(KNOWN[kind].examples) == (0 if kind in NOT_EMITTED else 1)
    for text in shown:
        assert re.match(rf" ?\d+ (error|warning|info) {kind}\b", text)
        assert re.search(r"^   remedy: ", text, flags=re.MULTILINE)


MADE_UP = [(kind, told) for kind, page in KNOWN.items() for told in page.examples if told.startswith("job ")]


@pytest.mark.parametrize(("kind", "told"), MADE_UP, ids=[kind for kind, _ in MADE_UP])
def test_what_made_up_jobs_show_is_what_is_printed(
    kind: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], plain_terminal: None
):
    synthetic_job.main([str(tmp_path / "job"), *shlex.split(told)[1:]])
    (job,) = read_traces([str(tmp_path / "job")], jobs=1, cache=False)
    analyze(job.ledger).show(WIDTH)
    assert entry(capsys.readouterr().out, kind, told) in KNOWN[kind].text
    assert source(told).shown in KNOWN[kind].text
