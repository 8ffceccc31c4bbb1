"""The page in a real browser: it draws, it says nothing on the console, it asks nobody for anything."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import time
from itertools import groupby
from pathlib import Path

import pytest

from shardtoll.dashboards.page.page import render
from shardtoll.dashboards.words.text import clean
from tests import sample_reports
from tests.browser.conftest import ARGUMENTS, CHROMIUM
from tests.gapped import gapped

pytestmark = pytest.mark.browser
FIGURES = ["anatomy", "roofline", "timeline", "bytes", "matrix", "modules", "heat"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("name", "drawn"),
    [("report", FIGURES), ("hostile", FIGURES), ("unknown", ["anatomy"]), ("empty", [])],
)
def test_opens_clean_and_asks_nobody(open_page, name: str, drawn: list[str], scheme: str):
    seen = open_page(getattr(sample_reports, name)(), scheme)
    page = seen.page
    assert page.evaluate("document.documentElement.dataset.drawn.split(' ').filter(Boolean)") == drawn
    for figure in drawn:
        assert page.locator(f"#{figure}-figure .main-svg").count() > 0
    assert seen.console == []
    assert seen.requests == [seen.path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_hostile_names_stay_text(open_page):
    seen = open_page(sample_reports.hostile())
    page = seen.page
    text = page.evaluate("document.body.textContent")
    for key in ("script", "close", "quotes", "markup", "plotly"):
        assert clean(sample_reports.HOSTILE[key]) in text
    assert page.locator("img").count() == 0
    assert page.locator("a[href^=javascript]").count() == 0
    assert page.locator("script").count() == 3
    assert page.evaluate("[...document.querySelectorAll('a')].every(a => a.hash !== '' || !a.href)")
    # Plotly's labels show the name's own letters.
    labels = page.locator("#roofline-figure .legendtext").all_text_contents()
    assert [label for label in labels if sample_reports.HOSTILE["tag"] in label]


def test_findings_open_by_keyboard(open_page):
    page = open_page(sample_reports.report()).page
    second = page.locator("#finding-2")
    assert second.get_attribute("open") is None
    assert not second.locator(".body").is_visible()
    page.locator("#finding-1 > summary").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.parentElement.id") == "finding-2"
    page.keyboard.press("Enter")
    assert second.get_attribute("open") is not None
    assert second.locator(".body").is_visible()
    assert "RowwiseParallel(output_layouts=Shard(1))" in second.locator("pre").inner_text()
    # The remedy's code and the tables scroll by keyboard too.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "PRE"


def test_focus_can_be_seen(open_page):
    page = open_page(sample_reports.report()).page
    page.keyboard.press("Tab")
    style = "getComputedStyle(document.activeElement).outlineStyle"
    assert (page.evaluate("document.activeElement.tagName"), page.evaluate(style)) == ("A", "solid")


def test_light_and_dark_differ_and_follow_the_reader(open_page):
    page = open_page(sample_reports.report(), "light").page
    figure = "document.getElementById('anatomy-figure').layout.font.color"
    colours = f"[getComputedStyle(document.body).backgroundColor, {figure}]"
    light = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    deadline = time.monotonic() + 10
    while page.evaluate(figure) == light[1] and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    dark = page.evaluate(colours)
    assert light == ["rgb(246, 248, 250)", "#1c2128"]
    assert dark == ["rgb(13, 17, 23)", "#e6edf3"]
    picture = page.screenshot(full_page=True)
    width, height = struct.unpack(">II", picture[16:24])
    assert (width, height > 1500) == (1280, True)


def test_the_pointer_tells_what_a_collective_is(open_page):
    page = open_page(sample_reports.report()).page
    page.evaluate("Plotly.relayout('timeline-figure', {'xaxis.range': [20, 36]})")
    area = page.locator("#timeline-figure .nsewdrag")
    area.scroll_into_view_if_needed()
    box = area.bounding_box()
    # Rank 2's row for tp, the fifth of eight; the all_reduce that starts at 24 ms.
    page.mouse.move(box["x"] + box["width"] * (24.7 - 20) / 16, box["y"] + box["height"] * 4.5 / 8)
    tip = page.locator(".tip")
    assert tip.inner_text() == (
        "rank 2: all_reduce ×2 tp, 2.10 MB\n"
        "train.py:42 (step) · aten.mm.default · module blocks.0.mlp · (Partial(sum),) → (Replicate(),) · "
        "forward, implicit\n"
        "step 0, number 3 of its group\n"
        "took 1.45 ms, exposed 624 µs, waited 200 µs, floor 624 µs"
    )
    page.mouse.move(box["x"] + box["width"] * (29 - 20) / 16, box["y"] + box["height"] * 4.5 / 8)
    assert tip.inner_text() == "step 0, 53 ms"
    page.mouse.move(5, 5)
    assert tip.is_hidden()


def test_drawn_rectangles_are_where_the_ledger_says(open_page):
    page = open_page(sample_reports.report()).page
    trace = page.evaluate(
        "(() => { const t = document.getElementById('timeline-figure').data.find(t => t.name === 'exposed');"
        " return {x: t.x, y: t.y}; })()"
    )
    # Rank 0's fourth collective, the second of its group's row: 24 ms + 1.248576 ms, its exposed half drawn
    # at the end. A row is one path: down to its lower edge after each rectangle, and a null after the last.
    place = next(at for at, x in enumerate(trace["x"]) if x == pytest.approx(24 + 1.248576 - 0.624288))
    left, right = 24 + 1.248576 - 0.624288, 24 + 1.248576
    assert trace["x"][place : place + 4] == pytest.approx([left, left, right, right])
    assert trace["y"][place : place + 4] == pytest.approx([0.22, 0.38, 0.38, 0.22])
    assert trace["x"].count(None) == trace["y"].count(None) == 8
    rows = [list(group) for gap, group in groupby(trace["y"], lambda y: y is None) if not gap]
    assert all(set(row[::4]) == set(row[3::4]) == {min(row)} for row in rows)


def test_each_row_of_the_timeline_is_one_path_however_many_it_holds(open_page):
    page = open_page(sample_reports.many(8, 500)).page
    rows = page.evaluate(
        "JSON.parse(document.getElementById('figures').textContent).timeline.columns.rows.rank"
    )
    # Plotly makes an element of each stretch and joins them in the end: 4,000 of them took it a second.
    paths = page.locator("#timeline-figure .scatterlayer .js-fill").evaluate_all(
        "all => all.map(one => one.getAttribute('d').split('M').length - 1)"
    )
    assert len(paths) >= 3
    assert all(0 < count <= len(rows) for count in paths)


def test_the_bill_works_before_plotly_is_read(chromium, tmp_path: Path):
    """The figures come afterwards, those in sight first, each lit by what was picked meanwhile."""
    path = tmp_path / "page.html"
    # A page that is never painted does not go on to read Plotly.
    hold = (
        "<script>const own = window.requestAnimationFrame; window.requestAnimationFrame = later => {"
        "window.later = () => { window.requestAnimationFrame = own; later(); }; };</script>"
    )
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", render(sample_reports.report()))
    path.write_text(text.replace("<head>", f"<head>{hold}"), encoding="utf-8")
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    page.locator("#finding-2 > summary").click()
    assert page.evaluate("[typeof Plotly, location.hash]") == ["undefined", "#finding-2"]
    assert page.locator("#finding-2 .body").is_visible()
    page.locator("#heat").scroll_into_view_if_needed()
    page.evaluate("window.later()")
    page.wait_for_selector("html[data-drawn]", state="attached")
    assert page.locator("html").get_attribute("data-first") in ("modules", "heat")
    assert page.evaluate("document.getElementById('roofline-figure').data[2].selectedpoints") == [0, 1, 2, 3]
    page.close()


def test_paper_does_not_wait_for_the_figures(chromium, tmp_path: Path):
    path = tmp_path / "page.html"
    hold = "<script>window.requestAnimationFrame = later => 0; window.setTimeout = () => 0;</script>"
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", render(sample_reports.report()))
    path.write_text(text.replace("<head>", f"<head>{hold}"), encoding="utf-8")
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    page.goto(path.as_uri())
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    for figure in FIGURES:
        assert page.locator(f"#{figure}-figure .main-svg").count() > 0
    page.close()


def test_figures_fit_the_paper_and_the_screen_again(open_page):
    """The width of the screen is no width of the paper: figures were cut, and flows between bars missing."""
    page = open_page(sample_reports.report()).page
    wide = """Array.from(document.querySelectorAll('.figure'), place =>
        [place.clientWidth, Number(place.querySelector('.main-svg').getAttribute('width'))])"""
    before = page.evaluate(wide)
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate(wide) == [[960, 960]] * len(FIGURES)
    flows = page.locator("#bytes-figure .sankey-link, #bytes-figure .sankey-node")
    assert set(flows.evaluate_all("all => all.map(one => getComputedStyle(one).opacity)")) == {"1"}
    # Each bar stands where its flows begin or end, as the link's outline says.
    placed = (
        """Array.from(document.querySelectorAll('#bytes-figure .sankey-node'), node => node.getCTM().e)"""
    )
    ends = """Array.from(document.querySelectorAll('#bytes-figure .sankey-link'), link =>
        { const box = link.getBBox(), at = link.getCTM().e; return [at + box.x, at + box.x + box.width]; })"""
    bars, thick = page.evaluate(placed), 15
    for begin, end in page.evaluate(ends):
        assert any(abs(bar + thick - begin) < 3 for bar in bars), (begin, bars)
        assert any(abs(bar - end) < 3 for bar in bars), (end, bars)
    page.emulate_media(media="screen")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(wide) == before


def test_a_page_that_is_saved_as_pdf_at_once_has_its_figures(tmp_path: Path):
    """Chromium prints when the page has loaded, before a figure was drawn on the screen."""
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium to run the browser tests")
    whole = render(sample_reports.report())
    sizes = []
    for name, text in (("whole", whole), ("bare", whole.replace('id="plotly"', 'id="nothing"'))):
        page, pdf = tmp_path / f"{name}.html", tmp_path / f"{name}.pdf"
        page.write_bytes(text.encode())
        command = [CHROMIUM, "--headless", *ARGUMENTS, f"--print-to-pdf={pdf}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        sizes.append(pdf.stat().st_size)
    # Without Plotly the same page has no figure: what is more of it are the figures.
    assert sizes[0] > 1.5 * sizes[1], sizes


def test_no_button_sends_the_chart_away(open_page):
    page = open_page(sample_reports.report()).page
    titles = page.evaluate(
        "[...document.querySelectorAll('#roofline-figure .modebar-btn')].map(b => b.dataset.title)"
    )
    assert titles == ["Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]


def test_the_policy_stops_other_scripts_and_requests(open_page):
    """Not a test of chromium, but of the policy that our page gives it."""
    page = open_page(sample_reports.report()).page
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}/"
        page.evaluate(
            """address => {
                const script = document.createElement("script");
                document.body.append(Object.assign(script, {text: "window.ran = 1"}));
                document.body.append(Object.assign(new Image(), {src: address + "x.png"}));
                return fetch(address).catch(() => 0);
            }""",
            address,
        )
        page.wait_for_timeout(300)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert page.evaluate("window.ran") is None


def test_twenty_thousand_collectives_open_in_reasonable_time(open_page):
    report = sample_reports.many(8, 2500)
    start = time.monotonic()
    seen = open_page(report)
    assert seen.page.evaluate("document.getElementById('timeline-figure').data.length") == 4
    assert seen.console == []
    # About 2 s on two slow cores without a GPU; 20,000 elements of their own took above 9 s.
    assert time.monotonic() - start < 20
    assert seen.path.stat().st_size < 8_000_000


@pytest.mark.parametrize("width", [600, 1280])
def test_no_sideways_scrolling(open_page, width: int):
    page = open_page(sample_reports.hostile(), width=width).page
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_axis_says_the_runs_clock_where_gaps_are_folded(open_page):
    # Drawn at 0, 11 and 22 ms: the gaps of 990 and 8,990 ms are folded to 1 ms each.
    page = open_page(gapped(0, 1_000, 10_000)).page

    def ticks() -> dict[float, str]:
        axis = "document.getElementById('timeline-figure').layout.xaxis"
        return dict(page.evaluate(f"{axis}.tickvals.map((at, i) => [at, {axis}.ticktext[i]])"))

    every = {0: "0", 5: "5", 10: "10", 16: "1,005", 21: "1,010", 27: "10,005", 32: "10,010"}
    assert ticks() == every
    page.evaluate("Plotly.relayout('timeline-figure', {'xaxis.range': [22, 24]})")
    assert ticks() == {22: "10,000", 22.5: "10,000.5", 23: "10,001", 23.5: "10,001.5", 24: "10,002"}
    page.evaluate("Plotly.relayout('timeline-figure', {'xaxis.autorange': true})")
    assert ticks() == every
