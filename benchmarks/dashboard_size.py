"""How large the page is and how soon it can be used, by ranks.

The reports are made up (`synthetic.report`). Times are from the start of the navigation, in a chromium that
opens the file from disk in a new tab. A page is usable when the bill can be read and clicked and the first
figure is drawn (`html[data-first]`), and drawn when the last one is (`html[data-drawn]`), also those that
the reader must scroll to. The peer is the same roofline and timeline written by plotly's own `write_html`,
one mark and one shape a collective; it is usable when all is drawn, and we are compared by that too.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final, TypeAlias

from harness import Result, main
from synthetic.peer import write as write_peer
from synthetic.report import synthetic_report

from shardtoll.dashboards.page.page import render

RANKS: Final = (1, 8, 64)
AIM_BYTES: Final = 15e6
AIM_S: Final = 2.0
Figures: TypeAlias = dict[str, float | None]
ARGUMENTS: Final = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
PEER_MOST_S: Final = 120
"""The browser is not waited for longer than this."""


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="sizes of the job")
    parser.add_argument("--collectives", type=int, default=200_000, help="of all ranks together")
    parser.add_argument("--a-rank", action="store_true", help="that many of each rank instead")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3, help="times each page is opened")
    parser.add_argument("--peer", type=int, default=20_000, help="collectives of the peer's page; 0: no peer")


DRAWN: Final = "html[data-drawn]"
CLOCK: Final = """
window.told = {};
new MutationObserver(() => {
  for (const name of ["first", "drawn"]) {
    if (name in document.documentElement.dataset && !(name in told)) { told[name] = performance.now(); }
  }
}).observe(document, { subtree: true, attributeFilter: ["data-first", "data-drawn"] });
"""
"""Notes in the page when each was told: a page that draws answers nobody's questions from outside."""


def _told_s(browser: Any, path: Path) -> tuple[float, float] | None:
    """Seconds from the start of the navigation to the first figure seen and to the last one drawn.

    None: it takes too long.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(CLOCK)
    try:
        if _waited_s(page, path, DRAWN) is None:
            return None
        told = page.evaluate("window.told")
        return told["first"] / 1e3, told["drawn"] / 1e3
    finally:
        page.close()


def _waited_s(page: Any, path: Path, ready: str) -> float | None:
    """Seconds until `ready` is there, seen from outside; None: it takes too long."""
    from playwright.sync_api import TimeoutError

    begun = time.perf_counter()
    try:
        page.goto(path.as_uri(), timeout=PEER_MOST_S * 1e3)
        page.wait_for_selector(ready, state="attached", timeout=PEER_MOST_S * 1e3)
    except TimeoutError as error:
        print(f"  not ready after {time.perf_counter() - begun:.0f} s ({type(error).__name__})")
        return None
    return time.perf_counter() - begun


def _opened_s(browser: Any, path: Path, ready: str) -> float | None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    try:
        return _waited_s(page, path, ready)
    finally:
        page.close()


def _medians(times: list[tuple[float, ...] | None]) -> tuple[float | None, ...]:
    """The first opening is not counted: it starts the browser's processes."""
    known = [each for each in times[1:] if each is not None]
    if len(known) < len(times) - 1:
        return (None, None)
    return tuple(statistics.median(each) for each in zip(*known, strict=True))


def _said(seconds: float | None) -> str:
    return "too late" if seconds is None else f"{seconds:.2f} s"


def measure_page(
    browser: Any, folder: Path, ranks: int, chosen: argparse.Namespace
) -> dict[str, float | None]:
    """Measure the page of one size of job."""
    each = chosen.collectives if chosen.a_rank else max(chosen.collectives // ranks, chosen.steps)
    report = synthetic_report(ranks, each, chosen.steps)
    begun = time.perf_counter()
    text = render(report)
    rendered = time.perf_counter() - begun
    path = folder / f"{ranks}.html"
    path.write_text(text, encoding="utf-8")
    size = path.stat().st_size
    del report, text
    gc.collect()
    usable, drawn = _medians([_told_s(browser, path) for _ in range(chosen.repeats + 1)])
    said = f"{size / 1e6:.1f} MB, rendered in {rendered:.2f} s, usable {_said(usable)}, drawn {_said(drawn)}"
    print(f"{ranks} ranks x {each:,} collectives: {said}")
    names = (f"page_{ranks}_ranks_{what}" for what in ("bytes", "render_s", "usable_s", "drawn_s"))
    return dict(zip(names, (float(size), rendered, usable, drawn), strict=True))


def measure_peer(browser: Any, folder: Path, chosen: argparse.Namespace) -> Figures:
    """Measure our page and the peer's of the same report, of as many calls as the peer can show."""
    report = synthetic_report(8, chosen.peer // 8, chosen.steps)
    ours, theirs = folder / "ours.html", folder / "theirs.html"
    begun = time.perf_counter()
    ours.write_text(render(report), encoding="utf-8")
    between = time.perf_counter()
    write_peer(report, theirs)
    ended = time.perf_counter()
    drawn = _opened_s(browser, ours, DRAWN)
    # The peer has drawn when its last shape is in the page.
    peer = _opened_s(browser, theirs, ".shapelayer path, .shape-group")
    sizes = ours.stat().st_size, theirs.stat().st_size
    print(
        f"peer, {chosen.peer:,} collectives: ours {sizes[0] / 1e6:.1f} MB {between - begun:.2f} s, drawn "
        f"{_said(drawn)}; plotly's write_html {sizes[1] / 1e6:.1f} MB {ended - between:.2f} s, {_said(peer)}"
    )
    ratio = drawn / peer if drawn and peer else None
    print(f"  drawn, ours over peer: {'not known' if ratio is None else f'{ratio:.3f}'}")
    return {
        "peer_drawn_s": peer,
        "ours_beside_peer_drawn_s": drawn,
        "drawn_over_peer": ratio,
        "bytes_over_peer": sizes[0] / sizes[1],
        "render_over_peer": (between - begun) / (ended - between),
    }


def measure(chosen: argparse.Namespace) -> Result:
    """Measure all sizes, the peer and the server, as asked."""
    from playwright.sync_api import sync_playwright

    figures: dict[str, float | None] = {}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        for ranks in chosen.ranks:
            figures |= measure_page(browser, Path(folder), ranks, chosen)
        if chosen.peer:
            figures |= measure_peer(browser, Path(folder), chosen)
        browser.close()
    most = max(chosen.ranks)
    return Result(figures, {f"page_{most}_ranks_bytes": AIM_BYTES, f"page_{most}_ranks_usable_s": AIM_S})


if __name__ == "__main__":
    main(measure, about=__doc__, options=_options)
