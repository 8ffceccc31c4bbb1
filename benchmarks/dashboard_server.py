"""What `shardtoll serve` needs for a run of many ranks: memory, and how soon it answers a reader.

A real server process shows a made-up report of that size from its file. The reader is this program, which
asks as the page in a browser does: the callbacks of the app, over HTTP. No figure is asked for twice, so
that none comes from what the server keeps. The size of an answer is what travels to the browser.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from harness import Result, main
from synthetic.report import SLOT_NS, synthetic_report

from shardtoll.dashboards.page.views.views import VIEWS

AIM_S: Final = 1.0
WAIT_S: Final = 600.0
FILTERS: Final = ("ranks=0-7", "module=layers.3", "phase=backward", "group=tp")


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=1_000)
    parser.add_argument("--collectives", type=int, default=200, help="of each rank")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5, help="zooms and filters of each kind")
    parser.add_argument(
        "--run-folder", action="store_true", help="a run folder, analysed; else a report.json"
    )


class Server:
    """A `shardtoll serve` process and what asks it."""

    def __init__(self, path: Path) -> None:
        command = [str(Path(sys.executable).with_name("shardtoll")), "serve", str(path), "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+?/(?=\s|\?|$)", line)
        if found is None:
            raise RuntimeError(f"the server said {line!r}")
        self.address = found.group(0)
        with urllib.request.urlopen(f"{self.address}_dash-dependencies", timeout=60) as answer:
            self.callbacks: list[dict[str, Any]] = json.load(answer)

    def ask(self, output: str, query: str, **values: Any) -> tuple[dict[str, Any], float, int]:
        """Call the callback that writes `output`; return its answer, seconds and bytes."""
        said = {"address.search": query, "clock.n_intervals": 1, **values}
        callback = next(one for one in self.callbacks if output in one["output"])
        body = {
            "output": callback["output"],
            "outputs": _outputs(callback["output"]),
            "inputs": _with_values(callback["inputs"], said),
            "state": _with_values(callback["state"], said),
            "changedPropIds": ["address.search"],
        }
        request = urllib.request.Request(
            f"{self.address}_dash-update-component",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Origin": self.address.rstrip("/")},
        )
        begun = time.perf_counter()
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            raw = answer.read()
        return (json.loads(raw) if raw else {}), time.perf_counter() - begun, len(raw)

    def memory_bytes(self) -> int:
        """The most memory that the server has held so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", text)
        return int(peak) * 1024

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait(timeout=60)


def _with_values(parts: list[dict[str, Any]], said: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**one, "value": said.get(f"{one['id']}.{one['property']}")} for one in parts]


def _outputs(text: str) -> Any:
    parts = text.strip(".").split("...")
    found = [dict(zip(("id", "property"), part.rsplit(".", 1), strict=True)) for part in parts]
    return found if text.startswith("..") else found[0]


def _spread(name: str, samples: list[float]) -> dict[str, float | None]:
    ordered = sorted(samples)
    p50, p95 = statistics.median(ordered), ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]
    print(f"  {name}: p50 {p50:.3f} s, p95 {p95:.3f} s of {len(ordered)}")
    return {f"{name}_p50_s": p50, f"{name}_p95_s": p95}


def _wait(server: Server) -> float:
    """Seconds until the first report is there."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < WAIT_S:
        answer, _, _ = server.ask("drawing.data", "?view=anatomy")
        if answer["response"]["drawing"]["data"]:
            return time.perf_counter() - begun
        time.sleep(0.5)
    raise RuntimeError("the server had no report in time")


def measure(chosen: argparse.Namespace) -> Result:
    """Ask one server for every view of everything and filtered, and for the timeline zoomed."""
    report = synthetic_report(chosen.ranks, chosen.collectives, chosen.steps)
    figures: dict[str, float | None] = {"collectives": float(report.tables["collectives"].num_rows)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        with path.open("w", encoding="utf-8") as file:
            file.writelines(report.json_pieces())
        figures["report_bytes"] = float(path.stat().st_size)
        del report
        server = Server(path)
        try:
            figures["idle_memory_bytes"] = float(server.memory_bytes())
            figures["first_figure_s"] = _wait(server)
            print(f"  first figure after {figures['first_figure_s']:.1f} s")
            sizes = []
            for view in VIEWS:
                took = []
                for only in ("", *(f"&{each}" for each in FILTERS)):
                    _, seconds, size = server.ask("drawing.data", f"?view={view.name}{only}")
                    took.append(seconds)
                    sizes.append(size)
                figures |= _spread(view.name, took)
            zooms, end_ms = [], SLOT_NS * chosen.collectives / 1e6
            for part in range(2, 2 + 4 * chosen.repeats):
                zoom = f"x:{end_ms * (0.5 - 0.5 / part):.6g}:{end_ms * (0.5 + 0.5 / part):.6g}"
                _, seconds, size = server.ask("drawing.data", f"?view=timeline&zoom={zoom}")
                zooms.append(seconds)
                sizes.append(size)
            figures |= _spread("zoom", zooms)
            figures["largest_answer_bytes"] = float(max(sizes))
            figures["peak_memory_bytes"] = float(server.memory_bytes())
        finally:
            server.close()
    print(f"  memory {figures['peak_memory_bytes']:.3g} bytes, largest answer {max(sizes):,} bytes")
    return Result(figures, {"zoom_p95_s": AIM_S})


if __name__ == "__main__":
    main(measure, about=__doc__, options=_options)
