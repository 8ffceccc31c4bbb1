from __future__ import annotations

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from shardtoll.dashboards.exports import markdown as markdown_file
from shardtoll.dashboards.exports.markdown import MOST, markdown
from shardtoll.dashboards.words.markdown_table import cell
from shardtoll.ledger import Evidence, Remedy, Where
from tests import sample_reports


def cells(text: str) -> list[list[str]]:
    """Return the rows of the first table of the Markdown, its marks taken out."""
    lines = text[text.index("| #") :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_it_says_what_is_dearest_and_how_the_step_divides(tmp_path: Path):
    report = sample_reports.report()
    assert markdown_file.write(report, tmp_path / "x.md") == [tmp_path / "x.md"]
    text = (tmp_path / "x.md").read_text(encoding="utf-8")
    assert text.startswith("## shardtoll: 1 error, 1 warning, 1 note\n\n1 error to fix first: ")
    _, _, *rows = cells(text)
    assert [row[:5] for row in rows] == [
        ["1", "error **wrong-gradient**", "blocks.0.mlp.weight", "–", "–"],
        ["2", "warning **implicit-redistribute**", "train.py:42 (step)", "9.40 ms", "8.20 ms"],
        ["3", "info **latency-bound**", "group world", "820 µs", "unknown"],
    ]
    assert (
        "The step of the slowest rank, 2 (mean of 2 steps): 53.0 ms = compute 30.0 ms (57 %), "
        "exposed comm 15.0 ms (28 %), idle 5.00 ms (9.4 %), unattributed 3.00 ms (5.7 %)."
    ) in text
    assert text.count("<details>") == text.count("</details>") == 3


@pytest.mark.parametrize("make", ["empty", "unknown"])
def test_what_is_unknown_is_said(make: str):
    text = markdown(getattr(sample_reports, make)())
    assert "None" not in text
    assert "nan" not in text
    assert ("No step finished" in text) is (make == "empty")


def test_a_comment_is_never_too_long():
    report = sample_reports.report()
    long = replace(
        report.findings[0],
        title="x" * 5000,
        evidence=tuple(Evidence("e" * 500, "v" * 5000) for _ in range(40)),
        remedy=Remedy("r" * 5000, "c\n" * 5000),
    )
    for count in (1, 30, 500):
        text = markdown(replace(report, findings=(long,) * count))
        assert len(text) <= MOST
        assert text.count("<details>") == text.count("</details>")
        assert ("are left out" in text) is (count > 1)
    assert "480 more findings not in this table" in text


NASTY = "a|b `c` *d* _e_ [f](http://evil) <img src=x> @someone #12 ~~g~~ $h$ \\ www.evil.com ``` & &lt;"


@pytest.mark.parametrize("name", [NASTY, *sample_reports.HOSTILE.values()])
def test_names_stay_text(name: str):
    finding = replace(
        sample_reports.FINDINGS[0],
        title=name,
        where=Where(source=name, module=name),
        evidence=(Evidence(name, name),),
        remedy=Remedy(name, f"{name}\n  ````\n# not a heading\n", name),
    )
    text = markdown(sample_reports.report(findings=(finding,), headline=name))
    shown = unescape(text.split("```")[0])
    assert re.search(r"@\w|#\d|://\w|www\.\w", shown) is None
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h2"]
    inline = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in inline} <= {
        *("text", "softbreak", "strong_open", "strong_close", "html_inline"),
    }  # fmt: skip
    tags = {child.content for child in inline if child.type == "html_inline"}
    assert tags <= {"<sub>", "</sub>"}
    blocks = [token.content for token in tokens if token.type == "html_block"]
    assert len(blocks) == 2
    assert re.fullmatch(r"<details><summary>[^<>]*</summary>\n?", blocks[0])
    # One row has as many cells as the head: no name ends one.
    assert all(len(row) == 6 for row in cells(text))
    assert len([token for token in tokens if token.type == "fence"]) == 1


@pytest.mark.parametrize("name", [NASTY, *sample_reports.HOSTILE.values()])
def test_cells_of_compare_and_verify_call_nobody_and_link_nowhere(name: str):
    shown = cell(name)
    assert re.search(r"@\w|(?<!&)#\d|://\w|www\.\w", shown) is None
    (line,) = MarkdownIt("commonmark").enable(["strikethrough"]).parseInline(shown)
    assert {child.type for child in line.children or ()} <= {"text", "text_special"}
