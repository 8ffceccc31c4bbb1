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


SHARED = """import os

import pytest


@pytest.fixture(scope="module")
def shared():
    os.environ["OF_A_MODULE"] = "1"
    yield
    del os.environ["OF_A_MODULE"]


def test_before():
    pass


def test_with_it(shared):
    pass
"""
LEAVING = """import os


def test_after():
    pass


def test_leaving():
    os.environ["LEFT"] = "1"


def test_last():
    pass
"""


def test_what_tests_share_is_no_tests_fault_and_what_one_leaves_is(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    (tmp_path / "test_a.py").write_text(SHARED, encoding="utf-8")
    (tmp_path / "test_b.py").write_text(LEAVING, encoding="utf-8")
    ran = _pytest(tmp_path, *LACKING)
    assert "5 passed, 1 error" in ran.stdout, ran.stdout + ran.stderr
    assert "LEFT: None became '1'" in ran.stdout
    assert "OF_A_MODULE" not in ran.stdout


ALONE = (
    "import pytest\n\n\n@pytest.mark.alone\ndef test_measures():\n    pass\n\n\ndef test_here():\n    pass\n"
)
OTHERS = "def test_one():\n    pass\n\n\ndef test_two():\n    pass\n"


def test_files_whose_tests_run_alone_come_last(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n", encoding="utf-8")
    for name, text in {"a": OTHERS, "b": ALONE, "c": OTHERS}.items():
        (tmp_path / f"test_{name}.py").write_text(text, encoding="utf-8")
    ran = _pytest(tmp_path, "--collect-only", *LACKING)
    found = [line.rpartition("/")[2] for line in ran.stdout.splitlines() if "::" in line]
    others = [f"test_{name}.py::test_{number}" for name in "ac" for number in ("one", "two")]
    assert found == [*others, "test_b.py::test_measures", "test_b.py::test_here"], ran.stdout + ran.stderr


def test_each_test_here_has_a_time_limit(request: pytest.FixtureRequest):
    config = request.config
    if not config.pluginmanager.hasplugin("timeout") or config.getoption("--timeout") is not None:
        pytest.skip("no pytest-timeout here, or another limit was given")
    limit = request.node.get_closest_marker("timeout")
    assert limit is not None
    assert limit.args == (LONGEST_S,)
