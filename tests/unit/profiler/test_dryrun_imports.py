"""A program that goes on without packages of kernels gets no stand-ins for them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from shardtoll.profiler.dryrun.run import dry
from tests.dry_runs import options

GUARDED = {
    "caught": "try:\n    import NAME\n    made = True\nexcept ImportError:\n    made = False",
    "a part of it": (
        "try:\n    from NAME.ops import kernel\n    made = True\nexcept Exception:\n    made = False"
    ),
    "of several errors": (
        "try:\n    import NAME\n    made = True\nexcept (ModuleNotFoundError, OSError):\n    made = False"
    ),
    "suppressed": (
        "import contextlib\nmade = False\n"
        "with contextlib.suppress(ImportError):\n    import NAME\n    made = True"
    ),
    "looked for": "import importlib.util\nmade = importlib.util.find_spec('NAME') is not None",
    "in a branch": (
        "try:\n    if True:\n        import NAME\n    made = True\nexcept ImportError:\n    made = False"
    ),
    "in another file": (
        "try:\n    import its_kernels\n    made = True\nexcept ImportError:\n    made = False"
    ),
    "in a function": (
        "def look():\n    try:\n        import NAME\n"
        "    except ImportError:\n        return False\n    return True\nmade = look()"
    ),
}
NEEDED = {
    "at the top": "import NAME\nmade = True",
    "raised again": (
        "try:\n    import NAME\n"
        "    made = True\nexcept ImportError as error:\n    raise RuntimeError from error"
    ),
    "another error": "try:\n    import NAME\n    made = True\nexcept KeyError:\n    made = False",
    "only called where it is caught": (
        "def look():\n    import NAME\ntry:\n    look()\n    made = True\nexcept Exception:\n    made = False"
    ),
}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a program as a file in a dry run; returns whether it got the package, and what is listed."""
    if any(importlib.util.find_spec(name) for name in ("triton", "flash_attn")):
        pytest.skip("the packages of kernels are installed here")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "its_kernels.py").write_text("import triton\n")

    def run(text: str, name: str) -> tuple[bool, list[str]]:
        path = tmp_path / "train.py"
        path.write_text(text.replace("NAME", name))
        names: dict[str, Any] = {"__name__": "__main__"}
        with dry(options(1)) as made:
            exec(compile(path.read_text(), str(path), "exec"), names)
        sys.modules.pop("its_kernels", None)
        return names["made"], made.notices()

    return run


@pytest.mark.parametrize("about", GUARDED)
def test_where_it_does_without_it_gets_none(program: Any, about: str) -> None:
    made, notices = program(GUARDED[about], "triton")
    assert not made
    (listed,) = [line for line in notices if "not installed" in line]
    assert listed.startswith("triton is not installed here, and the program does without it, 1 time, at ")
    assert ("its_kernels.py:1" if about == "in another file" else "train.py:") in listed


@pytest.mark.parametrize("about", NEEDED)
def test_where_it_needs_it_it_gets_a_stand_in(program: Any, about: str) -> None:
    made, notices = program(NEEDED[about], "flash_attn")
    assert made
    assert not [line for line in notices if "not installed" in line]
