"""The page of a comparison in a real browser: it draws, asks for nothing and says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.dashboards import compare_page
from tests.browser.conftest import DRAWN
from tests.unit.dashboards.test_compare import FOUND

pytestmark = pytest.mark.browser


def test_the_comparison_is_drawn(chromium, tmp_path: Path):
    path = tmp_path / "page.html"
    path.write_text(compare_page.render(FOUND))
    context = chromium.new_context(color_scheme="dark", viewport={"width": 1280, "height": 900})
    page = context.new_page()
    said: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    context.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector(DRAWN, state="attached")
    assert page.get_attribute("html", "data-drawn") == "anatomy changes"
    assert page.locator("#anatomy-figure .bars .point").count() >= 8
    assert said == []
    assert [url for url in requests if url != path.as_uri() and not url.startswith(("data:", "blob:"))] == []
    context.close()
