"""A real browser, where there is one: Debian's chromium, driven through Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from shardtoll.dashboards.page.page import render
from shardtoll.ledger import Report

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-sync",
    "--no-first-run",
]
DRAWN = "html[data-drawn]"
EMPTIED = """() => {
  for (const kind of ["localStorage", "sessionStorage"]) {
    let kept = null;
    try { kept = window[kind]; } catch (error) { /* A document without an origin has none. */ }
    kept?.clear();
  }
}"""
"""Storage belongs to the document's origin, which pages that come later may share."""


@dataclass
class Opened:
    """A page that was opened, and everything it did wrong."""

    page: object
    path: Path
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium to run the browser tests")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclass
class Tab:
    """One page for tests that come one after the other: a document of each test's own, in the same renderer.

    A script that comes again from the same address is compiled once. In a page and at an address of its own,
    each document took three times as long to open.
    """

    page: Any
    heard: list[tuple[str, Any]] = field(default_factory=list)

    def hear(self, event: str, listener: Any) -> None:
        """Call the listener for each such event until the tab is cleared."""
        self.page.on(event, listener)
        self.heard.append((event, listener))

    def clear(self) -> None:
        """Leave the document; the next test finds no listener, route, emulation, storage or pointer of it."""
        for event, listener in self.heard:
            self.page.remove_listener(event, listener)
        self.heard.clear()
        self.page.unroute_all()
        self.page.evaluate(EMPTIED)
        self.page.goto("about:blank")
        self.page.context.clear_cookies()
        self.page.mouse.move(0, 0)
        self.page.emulate_media(media="null", color_scheme="light")


@pytest.fixture(scope="session")
def file_tab(chromium, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Tab, Path]]:
    """A tab for pages that are files, and where each of them is put."""
    context = chromium.new_context()
    yield Tab(context.new_page()), tmp_path_factory.mktemp("page") / "page.html"
    context.close()


@pytest.fixture
def open_text(file_tab: tuple[Tab, Path]) -> Iterator[Callable[..., Opened]]:
    """Open the text of a page as a file; every console line, error and request is kept. Once a test."""
    tab, path = file_tab

    def opened(text: str, scheme: str = "light", width: int = 1280) -> Opened:
        assert not tab.heard, "a second page would take the first one's place"
        path.write_bytes(text.encode())
        page = tab.page
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        seen = Opened(page, path)
        tab.hear("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
        tab.hear("pageerror", lambda error: seen.console.append(str(error)))
        tab.hear("dialog", lambda dialog: (seen.console.append(f"dialog {dialog.message}"), dialog.dismiss()))
        tab.hear("request", lambda request: seen.requests.append(request.url))
        page.goto(path.as_uri())
        # Not wait_for_function: it evaluates strings in the page, which the page's policy forbids.
        page.wait_for_selector(DRAWN, state="attached")
        return seen

    yield opened
    tab.clear()


@pytest.fixture
def open_page(open_text: Callable[..., Opened]) -> Callable[..., Opened]:
    """Render a report and open it, as `open_text` does."""

    def opened(report: Report, scheme: str = "light", width: int = 1280) -> Opened:
        return open_text(render(report), scheme, width)

    return opened
