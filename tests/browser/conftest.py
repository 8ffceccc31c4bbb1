"""A real browser, where there is one: Debian's chromium, driven through Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

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


@pytest.fixture
def open_text(chromium, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Open the text of a page as a file; every console line, error and request is kept."""
    contexts = []

    def opened(text: str, scheme: str = "light", width: int = 1280) -> Opened:
        path = tmp_path / "page.html"
        path.write_bytes(text.encode())
        context = chromium.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        seen = Opened(page, path)
        page.on("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.console.append(str(error)))
        page.on("dialog", lambda dialog: (seen.console.append(f"dialog {dialog.message}"), dialog.dismiss()))
        context.on("request", lambda request: seen.requests.append(request.url))
        page.goto(path.as_uri())
        # Not wait_for_function: it evaluates strings in the page, which the page's policy forbids.
        page.wait_for_selector(DRAWN, state="attached")
        return seen

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(open_text: Callable[..., Opened]) -> Callable[..., Opened]:
    """Render a report and open it, as `open_text` does."""

    def opened(report: Report, scheme: str = "light", width: int = 1280) -> Opened:
        return open_text(render(report), scheme, width)

    return opened
