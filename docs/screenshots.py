"""Takes the pictures of every view that README and docs show, light and dark, from the demo.

    python docs/screenshots.py [OUT]       OUT: what `shardtoll demo --out OUT` wrote, out/demo unless told

If OUT holds no demo, it is run first. The demo has neither an accelerator nor a pipeline. The views of the
accelerator are taken from a trace of an H200 in tests/data, the pipeline from a made-up job. Needs chromium
and playwright; nothing is loaded from anywhere.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote

DOCS: Final = Path(__file__).resolve().parent
ROOT: Final = DOCS.parent
IMAGES: Final = DOCS / "images"

SCHEMES: Final = ("light", "dark")
WIDTH: Final = 1280
TALLEST: Final = 720
"""Pixels of a picture at most: a section that is taller is cut."""
MOST_BYTES: Final = 190_000

CARD: Final = ROOT / "tests" / "data" / "h200" / "ddp.rank0.json.gz"
"""A trace of one GPU."""
MADE_UP: Final = ("--ranks", "3", "--strategy", "pipeline", "--straggler", "1")


@dataclass(frozen=True, slots=True)
class Shot:
    """One picture: a section of a page."""

    name: str
    """Of the section, and of the file."""
    of: str
    """An attempt of the demo, `made-up`, or `card`."""
    opened: int | None = None
    """A finding of the bill to open, from 1."""


SHOTS: Final = (
    Shot("bill", "dit-dtensor", opened=1),
    Shot("anatomy", "dit-scatter"),
    Shot("fixed", "dit-dtensor"),
    Shot("roofline", "dit-scatter"),
    Shot("light", "card"),
    Shot("operators", "card"),
    Shot("timeline", "dit-scatter"),
    Shot("bytes", "dit-dtensor"),
    Shot("matrix", "dit-scatter"),
    Shot("modules", "dit-dtensor"),
    Shot("heat", "dit-scatter"),
    Shot("duplicated", "dit-scatter"),
    Shot("pipeline", "made-up"),
)
FIRST: Final = "first"
"""Picture of how a page begins: the verdict, the step as bars, the findings that cost most."""
SERVED: Final = ("serve", "runs")
"""Pictures of the server: one run, and the list of them."""
SERVED_RUN: Final = "dit-scatter/run"
SERVED_TALL: Final = 650
READ_MS: Final = 60_000
"""Until all runs of the list are read."""


def files() -> list[str]:
    """Return the names of all pictures."""
    names = (FIRST, *(shot.name for shot in SHOTS), *SERVED)
    return [f"{name}-{scheme}.png" for name in names for scheme in SCHEMES]


def take(demo: Path, images: Path) -> None:
    """Write every picture of the demo's reports into a folder."""
    from playwright.sync_api import sync_playwright

    images.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="screenshots-") as scratch, sync_playwright() as playwright:
        pages = {name: _page(demo, name, Path(scratch)) for name in dict.fromkeys(shot.of for shot in SHOTS)}
        # Drawn by the processor: the same pictures on every machine with the same fonts.
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for scheme in SCHEMES:
            context = browser.new_context(
                color_scheme=scheme, viewport={"width": WIDTH, "height": 900}, reduced_motion="reduce"
            )
            for of, path in pages.items():
                page = context.new_page()
                page.goto(path.as_uri())
                page.wait_for_selector("html[data-drawn]", state="attached")
                if of == SHOTS[0].of:
                    _top(page, images / f"{FIRST}-{scheme}.png")
                for shot in SHOTS:
                    if shot.of == of:
                        _section(page, shot, images / f"{shot.name}-{scheme}.png")
                page.close()
            with _server(demo) as address:
                _dashboard(context, address, images, scheme)
            context.close()
        browser.close()
    heavy = {name: size for name in files() if (size := (images / name).stat().st_size) > MOST_BYTES}
    if heavy:
        raise SystemExit(f"pictures above {MOST_BYTES:,} bytes: {heavy}")


def _page(demo: Path, of: str, scratch: Path) -> Path:
    """Return the page of an attempt, of the made-up job or of the trace."""
    target, source = scratch / f"{of}.html", demo / of / "report.json"
    if of == "made-up":
        source = scratch / "job"
        program = str(ROOT / "benchmarks" / "synthetic_job.py")
        subprocess.run(
            [sys.executable, program, str(source), *MADE_UP], check=True, stdout=subprocess.DEVNULL
        )
    elif of == "card":
        source = CARD
    _shardtoll("report", str(source), "-o", str(target), "--no-cache")
    return target


def _shardtoll(*words: str) -> None:
    program = "from shardtoll.cli import main; main()"
    subprocess.run([sys.executable, "-c", program, *words], check=True, stdout=subprocess.DEVNULL)


def _top(page: Any, target: Path) -> None:
    """Take a page from its verdict to the end of its first screen."""
    top, bottom = page.evaluate(
        """() => [document.getElementById("headline").getBoundingClientRect().top - 16,
        document.querySelector("details.more").getBoundingClientRect().top]"""
    )
    clip = {"x": 0, "y": top, "width": WIDTH, "height": min(bottom - top, TALLEST)}
    page.screenshot(path=str(target), full_page=True, clip=clip, animations="disabled")


def _section(page: Any, shot: Shot, target: Path) -> None:
    """Take one section from its heading down."""
    if shot.opened is not None:
        page.locator(f"#finding-{shot.opened} > summary").click()
    page.locator(f"#{shot.name}-section").scroll_into_view_if_needed()
    # Figures are drawn as they come into view; what stays at the top of the window must not lie over them.
    page.wait_for_timeout(400)
    page.evaluate("window.scrollTo(0, 0)")
    page.wait_for_timeout(100)
    box = page.evaluate(
        """name => { const box = document.getElementById(name).getBoundingClientRect();
        return [box.top + window.scrollY, box.height]; }""",
        f"{shot.name}-section",
    )
    top, height = box
    if shot.opened is not None:
        page.locator(f"#finding-{shot.opened} > summary").blur()
    page.screenshot(
        path=str(target),
        full_page=True,
        clip={"x": 0, "y": top, "width": WIDTH, "height": min(height, TALLEST)},
        animations="disabled",
    )
    if shot.opened is not None:
        # What it lights up is no part of the other pictures.
        page.locator(f"#finding-{shot.opened} > summary").click()


@contextmanager
def _server(path: Path) -> Iterator[str]:
    """Serve a folder of runs on a free port, and give the address."""
    program = "from shardtoll.cli import main; main()"
    words = [sys.executable, "-u", "-c", program, "serve", str(path), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stdout is not None, "it was asked for"
            line = serving.stdout.readline()
            found = re.search(r"http://\S+", line)
            if found is None:
                raise SystemExit(f"shardtoll serve said {line!r}")
            yield found.group()
        finally:
            serving.terminate()
            serving.wait(timeout=20)


def _dashboard(context: Any, address: str, images: Path, scheme: str) -> None:
    page = context.new_page()
    page.goto(address)
    page.locator("#list a").filter(has_text=SERVED_RUN).first.wait_for(timeout=60_000)
    # The list shows what each run holds once it has been read.
    page.locator("#list td", has_text="not read yet").first.wait_for(state="detached", timeout=READ_MS)
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": SERVED_TALL}
    page.screenshot(path=str(images / f"runs-{scheme}.png"), clip=clip, animations="disabled")
    page.goto(f"{address}?run={quote(SERVED_RUN, safe='')}&view=timeline")
    page.wait_for_selector("#shown .main-svg", timeout=60_000)
    page.wait_for_timeout(2_000)
    # From the filters down: what stands above them is on every page.
    clip["y"] = page.evaluate("document.getElementById('filters').getBoundingClientRect().top") - 16
    page.screenshot(
        path=str(images / f"serve-{scheme}.png"), clip=clip, full_page=True, animations="disabled"
    )
    page.close()


def main() -> None:
    """Take the pictures, after the demo where there is none yet."""
    parser = argparse.ArgumentParser(description="writes docs/images")
    parser.add_argument("demo", nargs="?", type=Path, default=Path("out/demo"), metavar="OUT")
    parser.add_argument("--images", type=Path, default=IMAGES, help="where to write them")
    asked = parser.parse_args()
    if not (asked.demo / "index.html").exists():
        _shardtoll("demo", "--out", str(asked.demo))
    take(asked.demo, asked.images)
    for name in files():
        print(asked.images / name)


if __name__ == "__main__":
    main()
