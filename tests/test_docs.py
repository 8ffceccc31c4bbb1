"""The documentation says only what is so: commands, options, imports, fields, kinds and links exist."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from shardtoll.cli.jobs.demo_job import LESSONS
from shardtoll.dashboards.attempts.side_by_side import rows
from shardtoll.ledger import KINDS, PHASES
from shardtoll.ledger.answers.hang import Difference as HangDifference
from shardtoll.ledger.answers.hang import Divergence, GroupStand, HangAnswer, RankStand, Standing, Why
from shardtoll.ledger.records.flight import FlightCall

ROOT = Path(__file__).resolve().parent.parent
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "findings").glob("*.md")),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO = (ROOT / "docs" / "demo.md").read_text(encoding="utf-8")
SHOWN = [ROOT / "README.md", ROOT / "docs" / "capture.md"]
"""Documents whose Python is shown to be pasted."""
PYTHON = "\n".join(path.read_text(encoding="utf-8") for path in SHOWN)


def _blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def _text(path: Path) -> str:
    """Return a document without its blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def _commands() -> list[str]:
    """Return every `$ ...` line of the documents' console blocks, without its comment."""
    lines = [
        line for path in DOCS for block in _blocks(path.read_text(encoding="utf-8"), "console")
        for line in block.splitlines()
    ]  # fmt: skip
    return [shlex.join(shlex.split(line[2:], comments=True)) for line in lines if line.startswith("$ ")]


def _mentioned() -> list[str]:
    """Return every shardtoll command of the documents, in console blocks and in running text."""
    inline = [each for path in DOCS for each in re.findall(r"`(shardtoll [^`\n]+)`", _text(path))]
    return sorted({line for line in [*_commands(), *inline] if line.startswith("shardtoll ")})


@cache
def _help(*command: str) -> str:
    program = "import sys; from shardtoll.cli import main; sys.argv[0] = 'shardtoll'; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *command, "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin", "NO_COLOR": "1", "TERM": "dumb"},
    )
    assert done.returncode == 0, f"shardtoll {' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


GROUPS = ("budget", "fabrics", "forecast")
"""Commands with others under them."""


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


def test_the_readme_shows_what_its_made_up_job_prints(tmp_path):
    (job,) = re.findall(r"`python (benchmarks/synthetic_job.py out/job [^`]+)`", README)
    (shown,) = (block for block in _blocks(README, "text") if block.startswith("$ shardtoll report"))
    said = ""
    for words in (
        [str(ROOT / job.split()[0]), *job.split()[1:]],
        ["-c", "from shardtoll.cli import main; main()", "report", "out/job"],
    ):
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "SHARDTOLL_CACHE": str(tmp_path / "kept")},
        )
        assert done.returncode == 0, done.stderr
        said = done.stdout
    lines = [line.rstrip() for line in shown.splitlines()[1:]]
    assert lines[-1] == " ..."
    assert [line.rstrip() for line in said.splitlines()][: len(lines) - 1] == lines[:-1]


def test_the_readme_shows_commands():
    assert any(line.startswith("shardtoll report") for line in _mentioned())
    assert "make demo" in _commands()


def test_the_demos_table_has_the_rows_that_the_demo_prints():
    (table,) = re.findall(r"^\| \| dit-chunk .*?\n\n", DEMO, flags=re.MULTILINE | re.DOTALL)
    header, _, *lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.split("\n") if line
    ]
    attempts = [lesson.name for lesson in LESSONS]
    assert header[1:] == attempts
    assert [line[0] for line in lines] == [row.label for row in rows([])]
    assert all(len(line) == 1 + len(attempts) and all(line) for line in lines)


@pytest.mark.parametrize("line", _mentioned())
def test_every_command_of_the_docs_exists_with_its_options(line):
    words = shlex.split(line)[1:]
    # What follows the script of `shardtoll run` is the script's.
    own = words[: next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))]
    options = [word.partition("=")[0] for word in own if re.match(r"--?[a-z]", word)]
    named = words[: 1 if words[0] not in GROUPS else 2]
    if words[0] == "forecast" and words[1] != "eval":
        named = ["forecast", "run"]  # the command under it that needs no name
    shown = _help() if words[0].startswith("-") else _help(*(word for word in named if word[0] != "-"))
    assert all(re.search(rf"(?<![\w-]){option}\b", shown) for option in options), line


@pytest.mark.parametrize("line", [line for line in _commands() if line.startswith("make ")])
def test_every_make_target_of_the_docs_exists(line):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert line.split()[1] in targets


@pytest.mark.parametrize("code", _blocks(PYTHON, "python"))
def test_python_of_the_readme_parses_and_imports_what_exists(code):
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    # A test takes its fixture from the plugin, not by an import.
    assert imports or "def test_" in code
    for node in imports:
        module = importlib.import_module(node.module or "")
        missing = [name.name for name in node.names if not hasattr(module, name.name)]
        assert missing == [], f"{node.module} has no {missing}"


def test_attributes_the_readme_reads_from_a_report_exist():
    from shardtoll.ledger import Report
    from shardtoll.ledger.tables.tables import SCHEMAS

    used = set(re.findall(r"\breport\.([a-z_]+)\b", "\n".join(_blocks(PYTHON, "python"))))
    assert {"show", "findings", "collectives"} <= used
    assert used <= {*dir(Report), *Report.__dataclass_fields__}
    columns = re.findall(r'\["([a-z_]+)"\]|groupby\("([a-z_]+)"\)', "\n".join(_blocks(PYTHON, "python")))
    assert {name for pair in columns for name in pair if name} <= set(SCHEMAS["collectives"].names)


def test_the_json_page_names_the_fields_of_a_hang():
    text = (ROOT / "docs" / "json.md").read_text().partition("`hang -o x.json`")[2]
    for kind in (HangAnswer, RankStand, GroupStand, HangDifference, Divergence, FlightCall):
        missing = [name for name in kind.__dataclass_fields__ if not re.search(rf"\b{name}\b", text)]
        assert not missing, kind
    for word in (*get_args(Why), *get_args(Standing)):
        assert f"`{word}`" in text


def test_the_json_table_names_fields_of_the_records():
    from shardtoll.ledger import FabricInfo, Figure, Finding, Group, Occurrence, Report, Rows, Run, Where
    from shardtoll.ledger.answers.hta_figures import HtaFigures
    from shardtoll.ledger.answers.overlap import Overlap
    from shardtoll.ledger.answers.pipeline import Pipelines
    from shardtoll.ledger.answers.step_roofline import StepRoofline
    from shardtoll.ledger.answers.traffic import SoundCheck, Traffic
    from shardtoll.ledger.answers.unbilled import Unbilled
    from shardtoll.ledger.answers.what_if import Foreseen
    from shardtoll.ledger.tables.tables import DRY, SCHEMAS

    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)(?:\[\])?` \| ([^|]+) \|$", text, flags=re.MULTILINE))
    known = {
        "run": set(Run.__dataclass_fields__),
        "fabric": set(FabricInfo.__dataclass_fields__),
        "steps": set(SCHEMAS["steps"].names),
        "collectives": set(SCHEMAS["collectives"].names),
        "groups": set(Group.__dataclass_fields__),
        "leadups": set(SCHEMAS["leadups"].names),
        "stalls": set(SCHEMAS["stalls"].names),
        "values": set(SCHEMAS["values"].names),
        "parameters": set(SCHEMAS["parameters"].names),
        **{name: set(SCHEMAS[name].names) for name in ("device_ops", *DRY)},
        "roofline": set(StepRoofline.__dataclass_fields__),
        "hta": set(HtaFigures.__dataclass_fields__),
        "pipelines": set(Pipelines.__dataclass_fields__),
        "traffic": set(Traffic.__dataclass_fields__),
        "sound_checks": set(SoundCheck.__dataclass_fields__),
        "foreseen": set(Foreseen.__dataclass_fields__),
        "unbilled": set(Unbilled.__dataclass_fields__),
        "overlaps": set(Overlap.__dataclass_fields__),
        "findings": {
            name for kind in (Finding, Where, Figure, Rows, Occurrence) for name in kind.__dataclass_fields__
        },
    }
    assert set(rows) == {*known, "headline"}
    assert "headline" in Report.__dataclass_fields__
    for part, names in known.items():
        assert set(re.findall(r"\w+", rows[part])) <= names, part


SPEAK_OF_KINDS = ("verify.py", "looked_at.py", "gradient_equality.py", "remedies.py")
"""Files of the analyzers that name kinds and make no finding."""


def _emitted() -> set[str]:
    """Return the kinds that the code of analyzers and profiler names.

    `recompute` is also a phase: it counts only where it is given as `kind=`.
    """
    nodes = [
        node
        for folder in ("analyzers", "profiler")
        for path in (ROOT / folder).rglob("*.py")
        if path.name not in SPEAK_OF_KINDS
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    named = {node.value for node in nodes if isinstance(node, ast.Constant)}
    given = {
        node.value.value
        for node in nodes
        if isinstance(node, ast.keyword) and node.arg == "kind" and isinstance(node.value, ast.Constant)
    }
    return (named - set(PHASES) | given) & set(KINDS)


def test_kinds_that_none_emits_are_said_to_be_so():
    silent = {
        path.stem
        for path in (ROOT / "docs" / "findings").glob("*.md")
        if "| severity | not reported yet |" in path.read_text(encoding="utf-8")
    }
    assert silent == set(KINDS) - _emitted()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(path):
    text = path.read_text(encoding="utf-8")
    targets = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in targets if not (path.parent / link.partition("#")[0]).exists()] == []


def test_every_view_has_pictures_and_every_picture_is_shown():
    from docs.screenshots import IMAGES, SERVED, SHOTS, files
    from shardtoll.dashboards.page.views.views import VIEWS

    assert [shot.name for shot in SHOTS] == ["bill", *(view.name for view in VIEWS)]
    assert {path.name for path in IMAGES.iterdir()} == set(files())
    views = (ROOT / "docs" / "views.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(images/([^)]+)\)", views)
    assert shown == files()
    assert set(SERVED) < {name.partition("-")[0] for name in shown}


def test_pictures_are_small_and_of_one_width():
    from docs.screenshots import IMAGES, MOST_BYTES, WIDTH

    for path in IMAGES.iterdir():
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG")
        assert int.from_bytes(data[16:20], "big") == WIDTH
        assert len(data) <= MOST_BYTES, path.name


def test_every_document_is_reached_from_the_readme():
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        path = todo.pop()
        links = re.findall(r"\]\(([^)#]+\.md)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        found = {(path.parent / link).resolve() for link in links if "://" not in link} - seen
        seen |= found
        todo += [one for one in found if one.exists()]
    assert {path for path in DOCS if path.name != "README.md"} <= seen


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_placeholder_is_left(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"TO BE REPLACED|TODO|FIXME|TBD", text)


def test_folders_of_the_layout_exist():
    (layout,) = _blocks((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), "text")
    folders = re.findall(r"^(\w+)/", layout, flags=re.MULTILINE)
    assert folders
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
    texts = re.split(r"^\w+/", layout, flags=re.MULTILINE)[1:]
    for root, text in zip(folders, texts, strict=True):
        below = re.findall(r"(\w+)/", text)
        assert [folder for folder in below if not (ROOT / root / folder).is_dir()] == []
