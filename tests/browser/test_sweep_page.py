"""The page of evaluated sweeps in a real browser: it draws, asks for nothing and says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.dashboards import sweep_plot
from tests.browser.conftest import DRAWN
from tests.unit.dashboards.test_sweeps import SIZES, line, table

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sweeps_are_drawn(chromium, tmp_path: Path, scheme: str):
    path = tmp_path / "page.html"
    path.write_text(sweep_plot.render(table(line(), line(file="<b>b.csv", fitted=SIZES[:1]))))
    context = chromium.new_context(color_scheme=scheme, viewport={"width": 1000, "height": 900})
    page = context.new_page()
    console: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: console.append(message.text))
    page.on("pageerror", lambda error: console.append(str(error)))
    context.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector(DRAWN, state="attached")
    assert page.get_attribute("html", "data-drawn") == "sweep0 sweep1"
    for number, traces in ((0, 4), (1, 5)):
        figure = page.locator(f"#sweep{number}-figure")
        # In the legend: band, model, speed of light, measured, and what was given to the model.
        assert figure.locator(".legend .traces").count() == traces
        assert figure.locator(".ytick text, .y2tick text").first.is_visible()
    assert console == []
    assert [url for url in requests if url != path.as_uri() and not url.startswith(("data:", "blob:"))] == []
    context.close()
