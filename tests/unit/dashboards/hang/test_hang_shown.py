"""Every view says the verdict, and names from programs stay text."""

from __future__ import annotations

from rich.console import Console

from shardtoll.analyzers.hang.diagnose import diagnose
from shardtoll.dashboards.hang import hang_page, hang_shown
from shardtoll.ledger.answers.hang import HangAnswer
from tests.flights import NOW, call, flight

HOSTILE = "<img src=x onerror=alert(1)>|`*\x1b[31m\n@you"


def hostile() -> HangAnswer:
    here = flight(0, [call(1), call(2, finished_ns=None, source=HOSTILE)], blocked_s=50)
    there = flight(1, [call(1)], line=HOSTILE, stacks=HOSTILE)
    failed = flight(2, [call(1)], state="failed", error=HOSTILE, life="dead")
    return diagnose([here, there, failed], NOW, None, [HOSTILE])


def test_a_terminal_gets_no_escape_and_all_rows():
    for width in (60, 160):
        console = Console(width=width, record=True, file=None, force_terminal=False)
        with console.capture() as shown:
            console.print(hang_shown.renderable(hostile(), width))
        text = shown.get()
        assert "\x1b[31m" not in text
        assert "ranks" in text
        assert "waits" in text


def test_the_name_of_an_operation_reaches_no_terminal_raw():
    odd = diagnose([flight(0, [call(1, HOSTILE, finished_ns=None)], blocked_s=50), flight(1, [])], NOW)
    for width in (60, 160):
        console = Console(width=width, force_terminal=False)
        with console.capture() as shown:
            console.print(hang_shown.renderable(odd, width))
        assert "\x1b" not in shown.get()


def test_markdown_and_page_escape_names():
    answer = hostile()
    text = hang_shown.markdown(answer)
    assert text.startswith("# shardtoll hang: hang\n")
    assert "<img" not in text
    page = hang_page.render(answer)
    assert "<img" not in page
    assert "&lt;img" in page


def test_equal_answers_give_equal_bytes():
    assert hang_page.render(hostile()) == hang_page.render(hostile())
