"""Options and fixtures for all tests."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import alone, leftovers
from tests.shared_inputs import FOLDER, MISSING

GOLDEN = Path(__file__).parent / "golden"


LONGEST_S = 300
"""A test that takes longer hangs."""


def pytest_configure(config: pytest.Config) -> None:
    """Make warnings errors: in our tests alone, not in what a reader tries in this folder."""
    config.addinivalue_line("filterwarnings", "error")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As shells start what runs in the background; commands under test would inherit it and ignore Ctrl-C.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # As the command line has it: to look for garbage among what is imported took a tenth of the suite's time.
    gc.set_threshold(50_000, 20, 20)
    with contextlib.suppress(ImportError):
        # Not with what `make demo` installs.
        from hypothesis import HealthCheck, settings

        # How long an example takes says how busy the machine is.
        patient = settings(
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            # What CI runs comes again as it was; everywhere else, and by `make fuzz`, new examples are tried.
            derandomize="CI" in os.environ,
        )
        settings.register_profile("patient", patient)
        settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have tests that run alone last; give each a time limit where pytest-timeout is there and none given."""
    items[:] = alone.last(items)
    if config.pluginmanager.hasplugin("timeout") and config.getoption("--timeout") is None:
        for item in items:
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(LONGEST_S))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Let tests that measure times run alone; waiting for that is no part of a test's time limit."""
    with alone.turn_of(item, nextitem):
        yield


def pytest_collection_finish() -> None:
    """Leave what is imported by now, and the tests themselves, to no later search for garbage."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how many tests had no shared input."""
    skipped = [each for each in terminalreporter.stats.get("skipped", []) if MISSING in str(each.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests skipped: {FOLDER} lacks their shared inputs")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--renew-golden",
        action="store_true",
        help="write tests/golden anew from what is printed now; look at the difference before you commit",
    )


_row = leftovers.Row()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """After every test: no mode, patch, hook, profiler, thread, setting or open session is left behind."""
    with _row.none_expected():
        yield


def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """What tests share is made between them: no test is held to how the process was before."""
    if fixturedef.scope != "function":
        _row.forget()


def pytest_fixture_post_finalizer(fixturedef: pytest.FixtureDef[object]) -> None:
    """What tests shared is taken down between them."""
    if fixturedef.scope != "function":
        _row.forget()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the file of that name in tests/golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--renew-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no {path}: run pytest --renew-golden once and look at what it writes"
        assert text == path.read_text(encoding="utf-8")

    return compare


@pytest.fixture
def golden_part(request: pytest.FixtureRequest) -> Callable[[Path, str, str, str], None]:
    """Compare a text with what stands in a page between two lines."""

    def compare(page: Path, begin: str, end: str, text: str) -> None:
        head, _, rest = page.read_text(encoding="utf-8").partition(begin)
        _, mark, tail = rest.partition(end)
        assert mark, f"{page} has lost its marks"
        renewed = head + begin + text + end + tail
        if request.config.getoption("--renew-golden"):
            page.write_text(renewed, encoding="utf-8")
        assert page.read_text(encoding="utf-8") == renewed

    return compare


@pytest.fixture
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed depends on no variable of the one who runs the tests."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert "FORCE_COLOR" not in os.environ
