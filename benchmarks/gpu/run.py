"""Everything worth knowing of one CUDA card, in parts with a limit each: `make gpu`.

Each part is a process of its own and writes `PART.json` into $OUT, else out/gpu: checks, figures, notes and
the machine. A part that fails or comes too late leaves what it had, and the next one begins. `summary.md`
says how each ended. The exit code is 1 if any check of any part failed.

    python benchmarks/gpu/run.py                    all parts, on the first CUDA card, in under 9 minutes
    python benchmarks/gpu/run.py tables models      these parts
    python benchmarks/gpu/run.py --rehearse         the same plan on the CPU with tiny sizes
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the plan; its limit ends it, and all processes that it started."""

    name: str
    limit_s: float
    about: str
    needs: tuple[str, ...] = ()
    """Modules that it imports, beside torch and numpy."""


_OURS: Final = ("pyarrow", "msgspec", "isal", "zstandard", "pandas", "rich")
"""What shardtoll itself imports to record and to read."""
PARTS: Final = (
    Part("card_tests", 95, "tests/gpu", (*_OURS, "pytest")),
    Part("audited", 190, "audits under DDP and FSDP2: counts, bytes, times against other readings", _OURS),
    Part("overhead", 110, "what watching and surveying add, beside CommDebugMode and torch.profiler", _OURS),
    Part("tables", 80, "matrix products, attention, bandwidth and launches of this card"),
    Part("models", 130, "step time and peak memory of six models"),
    Part("traces", 30, "recordings to keep as test data", _OURS),
    Part("foreseen", 55, "dry runs of the models, held against their measurement", (*_OURS, "typer")),
)
WHOLE_S: Final = 520.0
"""All parts together; one that begins late has less than its limit. 9 minutes are all there is."""
_LEAST_S: Final = 10.0
"""A part that has less left is not begun."""
REHEARSED: Final = 4
"""In rehearsal limits are so many times as long."""


def lacking(one: Part) -> list[str]:
    """Return the modules that a part needs and this Python does not have."""
    return [name for name in ("torch", "numpy", *one.needs) if importlib.util.find_spec(name) is None]


def left_out(one: Part, out: Path, why: str) -> dict[str, Any]:
    """Write and return the result of a part that cannot run here; the others may."""
    result: dict[str, Any] = {"part": one.name, "finished": False, "ok": False, "checks": [], "notes": []}
    result |= {"ended": why, "seconds": 0.0}
    (out / f"{one.name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def run_part(one: Part, out: Path, device: str) -> dict[str, Any]:
    """Run a part within its limit and return its result; one that wrote none gets a result that says why."""
    path, log = out / f"{one.name}.json", out / f"{one.name}.log"
    path.unlink(missing_ok=True)
    began_s = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", f"gpu.{one.name}", str(out.resolve()), device],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": _path(), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        try:
            ended = f"exit {process.wait(one.limit_s)}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {one.limit_s:g} s"
        finally:
            # Ranks that a part has started are of its session, and go with it.
            _end(process)
    result = _read(path) or {"part": one.name, "finished": False, "ok": False, "checks": [], "notes": []}
    if not result["finished"]:
        tail = log.read_text(encoding="utf-8", errors="replace")[-1_500:]
        result |= {"ok": False, "ended": ended, "said": tail}
    else:
        # What it printed is in its result; few files are easier to bring home.
        log.unlink()
    result["seconds"] = round(time.monotonic() - began_s, 1)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _path() -> str:
    ours = [str(ROOT / ".typing"), str(ROOT / "benchmarks"), str(ROOT)]
    return os.pathsep.join([*ours, *filter(None, [os.environ.get("PYTHONPATH")])])


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


def line(result: dict[str, Any]) -> str:
    """Return how a part ended, in one line."""
    checks = result["checks"]
    failed = [check["name"] for check in checks if not check["ok"]]
    words = f"{result['part']:10} {'ok' if result['ok'] else 'FAILED':6} {result['seconds']:6.1f} s"
    words += f"  {len(checks) - len(failed)} of {len(checks)} checks hold"
    if not result["finished"]:
        words += f"; {result.get('ended', 'no result')}"
    return words + "".join(f"; not: {name}" for name in failed)


def main() -> int:
    """Run the plan; return the exit code."""
    deadline_s = time.monotonic() + WHOLE_S
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(one.name for one in PARTS))
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with tiny sizes")
    parser.add_argument("-o", "--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "out" / "gpu"))
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - {one.name for one in PARTS}
    if unknown:
        parser.error(
            f"no part is named {', '.join(sorted(unknown))}: name some of {', '.join(o.name for o in PARTS)}"
        )
    if not arguments.rehearse and not _has_cuda():
        parser.error(
            "torch sees no CUDA card here: run it where there is one, or rehearse it (make gpu-rehearsal)"
        )
    arguments.out.mkdir(parents=True, exist_ok=True)
    results = []
    for one in PARTS:
        if arguments.parts and one.name not in arguments.parts:
            continue
        print(f"{one.name}: {one.about} (at most {one.limit_s:g} s)", flush=True)
        if arguments.rehearse:
            # A rehearsal looks for mistakes, on a CPU that others may use too.
            one = replace(one, limit_s=REHEARSED * one.limit_s)
        results.append(_result(one, arguments.out, deadline_s, rehearse=arguments.rehearse))
        print(f"  {line(results[-1])}", flush=True)
    machine: dict[str, Any] = next((result["machine"] for result in results if "machine" in result), {})
    about = ", ".join(f"{key} {value}" for key, value in machine.items())
    text = "\n".join(["# make gpu", "", about, "", *(f"- {line(result)}" for result in results), ""])
    (arguments.out / "summary.md").write_text(text, encoding="utf-8")
    print(f"results: {arguments.out}")
    return 0 if all(result["ok"] for result in results) else 1


def _result(one: Part, out: Path, deadline_s: float, *, rehearse: bool) -> dict[str, Any]:
    """Run a part if this Python has what it needs and time is left."""
    absent = lacking(one)
    if absent:
        return left_out(one, out, f"this Python lacks {', '.join(absent)}: pip install {' '.join(absent)}")
    if rehearse:
        return run_part(one, out, "cpu")
    left_s = deadline_s - time.monotonic()
    if left_s < _LEAST_S:
        return left_out(one, out, f"the {WHOLE_S:g} s of all parts were over")
    return run_part(replace(one, limit_s=min(one.limit_s, left_s)), out, "cuda")


def _has_cuda() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


if __name__ == "__main__":
    sys.exit(main())
