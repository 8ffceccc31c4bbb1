"""The page of evaluated sweeps in a real browser: it draws, asks for nothing and says nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardtoll.dashboards.fabrics import sweep_plot
from tests.browser.conftest import Opened
from tests.unit.dashboards.fabrics.test_sweeps import SIZES, line, table

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_sweeps_are_drawn(open_text: Callable[..., Opened], scheme: str):
    text = sweep_plot.render(table(line(), line(file="<b>b.csv", fitted=SIZES[:1])))
    seen = open_text(text, scheme, width=1000)
    page = seen.page
    assert page.get_attribute("html", "data-drawn") == "sweep0 sweep1"
    for number, traces in ((0, 4), (1, 5)):
        figure = page.locator(f"#sweep{number}-figure")
        # In the legend: band, model, speed of light, measured, and what was given to the model.
        assert figure.locator(".legend .traces").count() == traces
        assert figure.locator(".ytick text, .y2tick text").first.is_visible()
    assert seen.console == []
    assert seen.requests == [seen.path.as_uri()]
