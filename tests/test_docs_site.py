"""Links of the documents lead to headings that exist; the site of `make docs` is whole and loads nothing."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
LOADS = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?(?:https?:)?//"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon))[^>]*?\bhref=[\"']?(?:https?:)?//"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//|url\([\"']?(?:https?:)?//"
)
"""What makes a browser fetch from another host as it opens a page."""


def _text(path: Path) -> str:
    """Return a document without its blocks, in which `#` begins a comment and brackets are no links."""
    return re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@cache
def _anchors(path: Path) -> frozenset[str]:
    """Return the ids that both GitHub and MkDocs give the document's headings."""
    found = set()
    for heading in re.findall(r"^#{1,6} (.+)$", _text(path), flags=re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain)))
    return frozenset(found)


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_anchors_of_links_are_headings(path: Path):
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)", _text(path)) if "://" not in link]
    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        file = (path.parent / name).resolve() if name else path
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_of_the_site_link_to_nothing_outside_it(path: Path):
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", _text(path))]
    files = [(path.parent / link).resolve() for link in links if link and "://" not in link]
    assert [file for file in files if not file.is_relative_to(DOCS)] == []


def test_every_page_is_in_the_navigation_once():
    named = re.findall(r"^ +- (\S+\.md)$", CONFIG.partition("\nnav:\n")[2], flags=re.MULTILINE)
    assert sorted(named) == sorted(path.relative_to(DOCS).as_posix() for path in PAGES)


def test_the_site_is_set_up_to_load_nothing():
    assert re.search(r"^  font: false$", CONFIG, flags=re.MULTILINE)
    assert re.search(r"^use_directory_urls: false$", CONFIG, flags=re.MULTILINE)
    assert "//" not in CONFIG.replace("file://", "")


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://x.org/a.js">',
        '<link rel="stylesheet" href="//x.org/a.css">',
        '<link href="https://x.org/a.css" rel=stylesheet>',
        '<img alt="a" src="http://x.org/a.png">',
        '@import "https://x.org/a.css"',
        "url(https://x.org/a.woff2)",
    ],
)
def test_what_loads_from_elsewhere_is_seen(text: str):
    assert LOADS.search(text)
    assert not LOADS.search(
        text.replace("https://x.org/", "").replace("http://x.org/", "").replace("//x.org/", "")
    )


@pytest.mark.slow
@pytest.mark.skipif(
    not (importlib.util.find_spec("mkdocs") and importlib.util.find_spec("material")),
    reason="no MkDocs here: `make docs` installs it",
)
def test_the_site_builds_strictly_and_loads_nothing(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    built = [path for path in (tmp_path / "site").rglob("*") if path.suffix in (".html", ".css")]
    pages = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in PAGES}
    assert pages <= {path.relative_to(tmp_path / "site").as_posix() for path in built}
    assert [path.name for path in built if LOADS.search(path.read_text(encoding="utf-8"))] == []
    assert list((tmp_path / "site").rglob("*.py")) == []
