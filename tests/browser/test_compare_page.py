"""The page of a comparison in a real browser: it draws, asks for nothing and says nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shardtoll.dashboards.compare import compare_page
from tests.browser.conftest import Opened
from tests.unit.dashboards.compare.test_compare import FOUND

pytestmark = pytest.mark.browser


def test_the_comparison_is_drawn(open_text: Callable[..., Opened]):
    seen = open_text(compare_page.render(FOUND), scheme="dark")
    page = seen.page
    assert page.get_attribute("html", "data-drawn") == "anatomy changes"
    assert page.locator("#anatomy-figure .bars .point").count() >= 8
    assert seen.console == []
    assert seen.requests == [seen.path.as_uri()]
