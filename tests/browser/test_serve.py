"""The server in a real browser: it draws, lights up, filters, restores and follows, and asks nobody else."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from shardtoll.dashboards.app.app import make_app
from shardtoll.dashboards.app.server import listen, serving
from shardtoll.dashboards.app.source import RunEntry, Snapshot
from shardtoll.dashboards.app.state import keys
from shardtoll.dashboards.page.views.views import VIEWS
from shardtoll.dashboards.words.text import clean
from shardtoll.ledger import Report
from tests import sample_reports
from tests.browser.conftest import Tab
from tests.gapped import gapped

pytestmark = pytest.mark.browser
DRAWN = "#shown .main-svg"


@dataclass
class Fixed:
    """Reports by name, as a source that a test may change under the server."""

    reports: dict[str, Snapshot]
    single: bool = True

    def runs(self) -> list[RunEntry]:
        return [
            RunEntry(
                name, name, "run", 1_700_000_000 * 10**9, 4, 2, "a title" if one.report else None, one.error
            )
            for name, one in self.reports.items()
        ]

    def report(self, name: str, wait_s: float = 0.0) -> Snapshot:
        return self.reports.get(name, Snapshot(None, "0", error=f"there is no run {name}"))

    def close(self) -> None:
        pass


@dataclass
class Visit:
    page: object
    url: str
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    pending: int = 0

    def ended(self, _request: object) -> None:
        self.pending -= 1

    def asked(self, request: object) -> None:
        self.pending += 1
        self.requests.append(request.url)

    def go(self, path: str = "/", wait: str = DRAWN) -> None:
        self.page.goto(self.url + path)
        self.page.wait_for_selector(wait, timeout=60_000)
        if wait == DRAWN:
            # The frame stands before its figure is known.
            self.until("document.querySelector('#shown .js-plotly-plot').data.length > 0")
        self.settled()

    def settled(self) -> None:
        """Wait until no answer is due: one that comes while a key is pressed takes the focus with it."""
        deadline, quiet = time.monotonic() + 45, 0
        while quiet < 4:
            assert time.monotonic() < deadline, f"{self.pending} answers never came"
            self.page.wait_for_timeout(50)
            quiet = 0 if self.pending else quiet + 1

    def until(self, expression: str, wanted: object = True, seconds: float = 45) -> None:
        """Not wait_for_function, which the policy forbids."""
        deadline = time.monotonic() + seconds
        while (found := self.page.evaluate(expression)) != wanted:
            assert time.monotonic() < deadline, f"{expression} is {found!r}, not {wanted!r}"
            self.page.wait_for_timeout(50)

    def query(self) -> str:
        return self.page.evaluate("location.search")

    def clean(self) -> None:
        assert self.console == []
        assert [url for url in self.requests if not url.startswith((self.url, "data:", "blob:"))] == []


@contextlib.contextmanager
def served(source: object, token: str | None = None) -> Iterator[str]:
    listening = listen("127.0.0.1", 0)
    server = serving(make_app(source, {"127.0.0.1"}, token), listening)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.shutdown()
    thread.join()
    server.server_close()
    listening.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    with contextlib.ExitStack() as started:
        yield lambda source, token=None: started.enter_context(served(source, token))


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    """A server of the sample report, for all tests that change nothing in it."""
    with served(only(sample_reports.report())) as url:
        yield url


@pytest.fixture(scope="module")
def reader(chromium) -> Iterator[Tab]:
    """A tab for the first reader of each test: its browser's profile keeps the scripts."""
    context = chromium.new_context()
    yield Tab(context.new_page())
    context.close()


def answered() -> None:
    """Wait for the threads that answer the requests of a page that has gone."""
    deadline = time.monotonic() + 20
    while any("process_request_thread" in thread.name for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a request is still being answered"
        time.sleep(0.02)


@pytest.fixture
def visit(chromium, reader) -> Iterator[Callable[..., Visit]]:
    made = []

    def opened(url: str, scheme: str = "light", width: int = 1280, own: bool = False) -> Visit:
        tab = Tab(chromium.new_page()) if own else reader
        assert not tab.heard, "a second reader would take the first one's place"
        if own:
            made.append(tab.page)
        tab.page.emulate_media(color_scheme=scheme)
        tab.page.set_viewport_size({"width": width, "height": 900})
        seen = Visit(tab.page, url)
        tab.hear("console", lambda message: seen.console.append(f"{message.type}: {message.text}"))
        tab.hear("pageerror", lambda error: seen.console.append(str(error)))
        tab.hear("request", seen.asked)
        tab.hear("requestfinished", seen.ended)
        tab.hear("requestfailed", seen.ended)
        return seen

    # Threads that leave `catch_warnings` in another order than they entered it leave filters behind.
    with warnings.catch_warnings():
        yield opened
        reader.clear()
        for page in made:
            page.close()
        answered()


def only(report: Report) -> Fixed:
    return Fixed({"a": Snapshot(report, "1")})


@pytest.mark.parametrize("name", ["report", "hostile"])
def test_every_view_renders_cleanly(serve, visit, name: str):
    report = getattr(sample_reports, name)()
    seen = visit(serve(only(report)), "dark" if name == "hostile" else "light")
    seen.go()
    # The list of views comes with another answer than the figure.
    seen.until("document.querySelectorAll('#views a').length > 0")
    offered = seen.page.locator("#views a").evaluate_all("all => all.map(one => one.id.slice(5))")
    some = [view.name for view in VIEWS if not view.figure(report).empty]
    assert set(some) <= set(offered)
    for view in offered:
        seen.page.click(f"#view-{view}")
        seen.until(f"document.querySelector('#views .here a').id === 'view-{view}'")
        if view in some:
            seen.until("document.querySelector('#shown .js-plotly-plot')?.id", f"{view}-figure")
            traces = len(next(one for one in VIEWS if one.name == view).figure(report).data)
            seen.until("document.querySelector('#shown .js-plotly-plot').data.length", traces)
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 1280
    seen.clean()


def test_hostile_names_stay_text(serve, visit):
    seen = visit(serve(only(sample_reports.hostile())))
    seen.go("/?view=roofline")
    seen.page.locator("#findings summary").nth(0).click()
    text = seen.page.evaluate("document.body.textContent")
    for key in ("script", "close", "quotes", "markup", "plotly", "rtl"):
        assert clean(sample_reports.HOSTILE[key]) in text
    assert seen.page.locator("#page img").count() == 0
    assert seen.page.evaluate("[...document.querySelectorAll('a')].every(a => a.protocol === 'http:')")
    labels = seen.page.locator("#shown .legendtext").all_text_contents()
    assert [label for label in labels if sample_reports.HOSTILE["tag"] in label]
    seen.clean()


def test_a_clicked_finding_lights_up_and_its_link_restores_it(plain, visit):
    report = sample_reports.report()
    seen = visit(plain)
    seen.go("/?view=timeline")
    # The outlines round what is picked; arrivals are joined by other shapes.
    lit = (
        "document.querySelector('#shown .js-plotly-plot').layout.shapes"
        ".filter(shape => shape.path.endsWith('Z')).map(shape => shape.path.split('Z').length - 1).join()"
    )
    assert seen.page.evaluate(lit) == ""
    second = seen.page.locator("#findings details").nth(1)
    second.locator("summary").focus()
    seen.page.keyboard.press("Enter")
    seen.until(lit, "32")
    key = next(key for key, number in keys(report.findings).items() if number == 2)
    assert f"finding={key}" in seen.query()
    seen.until("document.querySelectorAll('#findings details')[1].open")
    seen.until("document.querySelectorAll('.finding.picked').length", 1)
    assert "32 marks" in seen.page.locator("#timeline-said").inner_text()
    assert "marks: timeline 32" in seen.page.locator("#picked-words").inner_text()
    # Another reader opens the link; then the first goes back.
    other = visit(seen.url, own=True)
    other.go(f"/{seen.query()}")
    other.until(lit, "32")
    other.until("document.querySelector('.finding.picked')?.open")
    seen.page.go_back()
    seen.until(lit, "")
    assert seen.query() == "?view=timeline"
    seen.clean()
    other.clean()


def test_keys_step_from_mark_to_mark_and_enter_picks_the_finding(plain, visit):
    seen = visit(plain)
    seen.go("/?view=timeline")
    # Listeners are there when the first drawing has ended.
    seen.page.locator("#timeline-figure").focus()
    seen.page.keyboard.press("ArrowRight")
    seen.until("document.getElementById('told').textContent.startsWith('rank 0: all_reduce ×2 tp')")
    seen.page.keyboard.press("Enter")
    seen.until("document.querySelectorAll('.finding.picked').length", 1)
    seen.until("location.search.includes('finding=')")
    assert seen.page.evaluate("document.activeElement.id") == "timeline-figure"
    seen.page.keyboard.press("Escape")
    seen.until("location.search", "?view=timeline")
    seen.clean()


def test_filters_change_figures_and_the_address_and_links_restore_them(plain, visit):
    seen = visit(plain)
    seen.go()
    bars = "document.querySelector('#shown .js-plotly-plot').data[0].y.length"
    seen.until(bars, 4)
    seen.page.fill("#filter-ranks", "0-1")
    seen.page.keyboard.press("Enter")
    seen.until(bars, 2)
    assert seen.query() == "?ranks=0-1"
    # An answer that comes now draws the menu anew, shut.
    seen.settled()
    seen.page.click("#filter-kinds")
    # Of the menu, not of the bill, which has the word too while the menu is not open yet.
    seen.page.locator(".dash-dropdown-options").get_by_text("latency-bound", exact=True).click()
    seen.page.keyboard.press("Escape")
    seen.until("document.querySelectorAll('#findings details').length", 1)
    assert seen.query() == "?ranks=0-1&kind=latency-bound"
    seen.page.reload()
    seen.page.wait_for_selector(DRAWN)
    seen.until("document.getElementById('filter-ranks').value", "0-1")
    seen.until("document.querySelectorAll('#findings details').length", 1)
    seen.settled()
    seen.page.click("#clear")
    seen.until(bars, 4)
    assert seen.query() == ""
    seen.settled()
    seen.page.go_back()
    seen.until(bars, 2)
    seen.until("document.getElementById('filter-ranks').value", "0-1")
    seen.clean()


def test_an_answer_that_is_dropped_for_a_newer_one_leaves_no_field_empty(plain, visit):
    seen = visit(plain)
    seen.go("/?ranks=0-1")
    seen.until("document.getElementById('filter-ranks').value", "0-1")
    seen.page.click("#clear")
    seen.until("document.getElementById('filter-ranks').value", "")
    seen.until("location.search", "")
    seen.settled()
    held = []

    def hold(route: object) -> None:
        if not held and route.request.post_data_json["output"].startswith("..address.search"):
            held.append(route)
        else:
            route.continue_()

    seen.page.route(lambda url: "/_dash-update-component" in url, hold)
    seen.page.go_back()
    deadline = time.monotonic() + 45
    while not held:
        assert time.monotonic() < deadline, "the new address was never asked about"
        seen.page.wait_for_timeout(20)
    # As a poll does when a run has grown.
    seen.page.evaluate("dash_clientside.set_props('subject', {data: {run: 'a', version: 'held'}})")
    seen.until("document.getElementById('filter-ranks').value", "0-1")
    held[0].continue_()
    seen.settled()
    assert seen.query() == "?ranks=0-1"
    seen.clean()


def zoom_by_hand(seen: Visit) -> None:
    before = seen.query()
    box = seen.page.locator("#shown .nsewdrag").first.bounding_box()
    seen.page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 20)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 22, steps=4)
    seen.page.mouse.up()
    seen.until(f"location.search.includes('zoom=x') && location.search !== {json.dumps(before)}")


def test_zoom_stands_in_the_address_and_stays_while_a_run_grows(serve, visit):
    report = sample_reports.report()
    source = Fixed({"a": Snapshot(report, "1", live=True)})
    seen = visit(serve(source))
    seen.go("/?view=timeline")
    seen.page.locator("#findings summary").nth(1).click()
    seen.until("document.querySelectorAll('.finding.picked').length", 1)
    # A figure that is drawn again for the finding ends a drag.
    seen.settled()
    zoom_by_hand(seen)
    axis = "document.querySelector('#shown .js-plotly-plot').layout.xaxis.range"
    zoomed = seen.page.evaluate(axis)
    assert seen.page.locator("#status").inner_text() == "live, 2 steps"
    tables = dict(report.tables)
    tables["steps"] = sample_reports.to_table(
        "steps", [sample_reports.step(number, rank) for number in range(3) for rank in range(4)]
    )
    source.reports["a"] = Snapshot(replace(report, tables=tables), "2", live=True)
    seen.until("document.getElementById('status').textContent", "live, 3 steps")
    assert seen.page.evaluate(axis) == pytest.approx(zoomed)
    seen.until("document.querySelectorAll('#findings details')[1].open")
    # The new bill is there before its picked finding is framed again.
    seen.until("document.querySelectorAll('.finding.picked').length", 1)
    seen.page.click("#unzoom")
    seen.until("location.search.includes('zoom')", False)
    seen.until(f"{axis}[1] > {zoomed[1]}")
    seen.clean()


def test_a_zoom_over_folded_gaps_stands_in_the_address_as_the_runs_clock(serve, visit):
    seen = visit(serve(only(gapped(0, 1_000, 10_000))))
    # Drawn at 11 and 22 ms, with a gap of 990 and one of 8,990 ms folded to 1 ms each.
    seen.go("/?view=timeline&zoom=x:1002:10004")
    axis = "document.querySelector('#shown .js-plotly-plot').layout.xaxis"
    assert seen.page.evaluate(f"{axis}.range") == pytest.approx([13, 26])
    assert {"1,006", "10,002"} <= set(seen.page.evaluate(f"{axis}.ticktext"))
    seen.page.evaluate(
        "Plotly.relayout(document.querySelector('#shown .js-plotly-plot'), {'xaxis.range': [1, 15]})"
    )
    seen.until("new URLSearchParams(location.search).get('zoom')", "x:1:1004")
    seen.settled()
    assert seen.page.evaluate(f"{axis}.range") == pytest.approx([1, 15])
    seen.clean()


def test_a_zoom_is_taken_back_before_its_figure_has_come(serve, visit):
    seen = visit(serve(only(sample_reports.report())))
    seen.go("/?view=timeline")
    held: list[object] = []
    holding = False

    def hold(route: object) -> None:
        if holding and "drawing.data" in route.request.post_data_json["output"]:
            held.append(route)
        else:
            route.continue_()

    seen.page.route(lambda url: "/_dash-update-component" in url, hold)
    axis = "document.querySelector('#shown .js-plotly-plot').layout.xaxis.range"
    # From all of it, and from a zoom whose figure has come: the address counts, not the last hand.
    for _ in range(2):
        before, query = seen.page.evaluate(axis), seen.query()
        holding = True
        zoom_by_hand(seen)
        seen.until(f"{axis}[1] < {before[1]}")
        deadline = time.monotonic() + 45
        while not held:
            assert time.monotonic() < deadline, "the zoomed figure was never asked for"
            seen.page.wait_for_timeout(20)
        seen.page.go_back()
        seen.until("location.search", query)
        holding = False
        while held:
            held.pop().continue_()
        seen.until(f"{axis}[1]", pytest.approx(before[1], rel=1e-6))
        seen.settled()
        assert seen.page.evaluate(axis) == pytest.approx(before, rel=1e-6)
        zoom_by_hand(seen)
        seen.settled()
    seen.clean()


def test_runs_are_listed_and_what_is_wrong_is_told_in_words(serve, visit):
    runs = {
        "good": Snapshot(sample_reports.report(), "1"),
        "<b>odd</b>": Snapshot(None, "1", error="run.rank00000.json is damaged"),
    }
    source = Fixed(runs, single=False)
    seen = visit(serve(source))
    seen.go(wait=".runs")
    seen.until("document.querySelectorAll('.runs tbody tr').length", 2)
    assert "run.rank00000.json is damaged" in seen.page.locator(".runs").inner_text()
    seen.page.get_by_text("<b>odd</b>").click()
    seen.until("document.querySelectorAll('#trouble p').length", 1)
    assert seen.page.locator("#board").is_hidden()
    seen.page.get_by_text("All runs").click()
    seen.page.get_by_text("good", exact=True).click()
    seen.page.wait_for_selector(DRAWN)
    assert seen.query() == "?run=good"
    # The run is deleted while it is looked at: what was read stays, and the reason is told.
    source.reports["good"] = Snapshot(runs["good"].report, "1", error="no run folder at good")
    seen.until("document.getElementById('trouble').textContent", "no run folder at good")
    assert seen.page.locator("#board").is_visible()
    seen.go("/?run=gone", wait="#trouble p")
    assert "there is no run gone" in seen.page.locator("#trouble").inner_text()
    seen.clean()


def test_a_token_lets_in_and_nothing_else_does(serve, visit):
    url = serve(only(sample_reports.report()), "sesame-42")
    refused = visit(url, own=True)
    answer = refused.page.goto(f"{url}/?token=wrong")
    assert answer.status == 403
    assert "<script" not in answer.text()
    seen = visit(url, own=True)
    seen.go("/?view=timeline&token=sesame-42")
    assert seen.query() == "?view=timeline"
    cookie = seen.page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    seen.clean()


def test_dark_and_light_follow_the_reader(plain, visit):
    seen = visit(plain, "light")
    seen.go()
    font = "document.querySelector('#shown .js-plotly-plot').layout.font.color"
    seen.until(font, "#1c2128")
    seen.page.emulate_media(color_scheme="dark")
    seen.until(font, "#e6edf3")
    seen.clean()


_CLIPPED = """() => {
  const over = [...document.querySelectorAll(".side .row")].flatMap(row => [...row.querySelectorAll(".num")]
    .filter(one => one.scrollWidth > one.clientWidth + 1 && !one.matches(".toll")));
  return over.map(one => one.textContent);
}"""


def test_the_bills_numbers_stay_in_their_columns_on_a_laptop(plain, visit):
    seen = visit(plain, width=1024)
    seen.go()
    assert seen.page.locator(".side .row .num").count()
    wide = "Array.from(document.querySelectorAll('.side .finding')).map(o => o.scrollWidth - o.clientWidth)"
    assert max(seen.page.evaluate(wide)) <= 1
    assert seen.page.evaluate(_CLIPPED) == []
    seen.clean()


def test_a_clicked_cell_picks_its_finding_and_the_heading_comes_with_the_figure(serve, visit):
    report = sample_reports.report()
    seen = visit(serve(only(report)))
    seen.go("/?view=matrix")
    seen.until("document.querySelector('#shown h2').textContent", "Bytes from rank to rank")
    box = seen.page.locator("#shown .nsewdrag").first.bounding_box()
    # Row 0, column 1 of four by four.
    seen.page.mouse.move(box["x"] + box["width"] * 3 / 8, box["y"] + box["height"] / 8)
    seen.page.wait_for_selector("#shown .hoverlayer .hovertext")
    seen.page.mouse.down()
    seen.page.mouse.up()
    seen.until("document.querySelectorAll('.finding.picked').length", 1)
    assert "finding=" in seen.query()
    seen.clean()


def test_the_policy_stops_other_scripts(serve, visit):
    seen = visit(serve(only(sample_reports.report())))
    seen.go()
    seen.page.evaluate(
        """() => {
            document.body.append(Object.assign(document.createElement("script"), {text: "window.ran = 1"}));
            // What runs later is no longer excused by the browser's driver.
            setTimeout(() => { window.made = 1; window.made = new Function("return 2")(); }, 0);
            return fetch("http://127.0.0.1:9/").catch(() => 0);
        }"""
    )
    seen.until("window.made", 1)
    assert seen.page.evaluate("window.ran") is None
    assert len([line for line in seen.console if "Content Security Policy" in line]) >= 3


def test_an_empty_report_says_so(serve, visit):
    seen = visit(serve(only(sample_reports.empty())))
    seen.go(wait="#headline")
    assert "Nothing found" in seen.page.locator("#headline").inner_text()
    seen.until(
        "document.querySelector('#shown h2') !== null && document.querySelector('#shown .panel') === null"
    )
    assert json.loads(
        seen.page.evaluate("JSON.stringify([...document.querySelectorAll('.note')].map(n => n.textContent))")
    )
    seen.clean()
