"""The page in a real browser: it draws, it says nothing on the console, it asks nobody for anything."""

from __future__ import annotations

import socket
import struct
import time

import pytest

from shardtoll.dashboards.text import clean
from tests import sample_reports

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
        " return {x: t.x.slice(15, 20), y: t.y.slice(15, 20)}; })()"
    )
    # Rank 0's fourth collective: 24 ms + 1.248576 ms, its exposed half drawn at the end.
    assert trace["x"][:2] == pytest.approx([24 + 1.248576 - 0.624288, 24 + 1.248576])
    assert trace["y"][:3] == pytest.approx([0.22, 0.22, 0.38])
    assert trace["x"][4] is None


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
