"""The tab that tests share: nothing that one of them leaves in storage is there for the next."""

from __future__ import annotations

from tests.browser.conftest import Tab

KEPT = "() => [localStorage.length, sessionStorage.length, document.cookie]"


def test_a_cleared_tab_has_empty_storage(file_tab: tuple[Tab, object], tmp_path):
    tab, _ = file_tab
    page = tmp_path / "left.html"
    page.write_text("<!doctype html><title>left</title>")
    tab.page.goto(page.as_uri())
    tab.page.evaluate("() => { localStorage.setItem('a', '1'); sessionStorage.setItem('b', '2') }")
    assert tab.page.evaluate(KEPT) == [1, 1, ""]
    tab.clear()
    tab.page.goto(page.as_uri())
    assert tab.page.evaluate(KEPT) == [0, 0, ""]
    tab.clear()
    # A document that has no storage is cleared too.
    tab.clear()
