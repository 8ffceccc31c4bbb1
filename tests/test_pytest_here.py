"""A reader's test runs in this folder with what `make demo` installs, and ours keep to more than theirs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LONGEST_S

ROOT = Path(__file__).resolve().parent.parent
WARNS = "import warnings\n\n\ndef test_it():\n    warnings.warn('an old name', DeprecationWarning)\n"
LACKING = ["-p", "no:timeout", "-p", "no:xdist", "-p", "no:hypothesispytest"]
"""Plugins that `make demo` does not install."""


def _pytest(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", ROOT, "-c", ROOT / "pyproject.toml"]
    return subprocess.run(
        [str(each) for each in (*command, *arguments)], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def test_a_test_of_a_reader_needs_none_of_our_plugins_and_may_warn(tmp_path: Path):
    mine = tmp_path / "test_mine.py"
    mine.write_text(WARNS, encoding="utf-8")
    ran = _pytest(mine, *LACKING)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 passed, 1 warning" in ran.stdout


def test_a_warning_fails_a_test_of_ours(tmp_path: Path):
    # The rules are those of tests/conftest.py, wherever it lies.
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    mine = tmp_path / "test_mine.py"
    mine.write_text(WARNS, encoding="utf-8")
    ran = _pytest(mine, *LACKING)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "DeprecationWarning: an old name" in ran.stdout


def test_each_test_here_has_a_time_limit(request: pytest.FixtureRequest):
    config = request.config
    if not config.pluginmanager.hasplugin("timeout") or config.getoption("--timeout") is not None:
        pytest.skip("no pytest-timeout here, or another limit was given")
    limit = request.node.get_closest_marker("timeout")
    assert limit is not None
    assert limit.args == (LONGEST_S,)
