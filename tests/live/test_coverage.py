"""The page of what is captured says what the strategies' tests have shown."""

from __future__ import annotations

import pytest

from tests.live import coverage


def test_the_page_is_what_the_tests_wrote(request: pytest.FixtureRequest) -> None:
    """Run with --renew-golden after the strategies' tests, which write the rows."""
    text = coverage.page()
    if request.config.getoption("--renew-golden"):
        coverage.PAGE.write_text(text, encoding="utf-8")
    assert coverage.PAGE.read_text(encoding="utf-8") == text
    assert text.count("\n| ") > 20
