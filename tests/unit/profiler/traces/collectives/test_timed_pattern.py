"""Patterns that take a power of a name's length: refused once names show it, taken where they are quick."""

from __future__ import annotations

import random
import re
import signal
import string
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardtoll.ledger.records.errors import UsageError
from shardtoll.profiler.traces.collectives import timed_pattern
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.collectives.timed_pattern import TimedPattern, timed
from tests.unit.profiler.traces.collectives.test_patterns import NAMING

SLOW = {
    ".*a.*b.*c.*d.*e": "abcd" * 500,
    "a.*a.*a.*b": "a" * 2_000,
    "\\w*a\\w*b\\w*c\\w*d": "abc" * 700,
    "(x|.*.*)(y|.*.*)z": "a" * 2_000,
    "a{4,}a{4,}a{4,}a{4,}b": "a" * 2_000,
    "a?" * 30 + "c": "a" * 60,
    "(a|aa)" * 20 + "b": "a" * 2_000,
    "a{0,3}" * 16 + "b": "a" * 400,
    "a?" * 180 + "b": "a" * 500,
    # No piece of it is slow: the whole is.
    "(?=.*Z)\\w*a\\w*b\\w*c\\w*d": "abc" * 600 + "Z",
}
QUICK_PIECES = ("(?=.*Z)\\w*a\\w*b\\w*c\\w*d",)
NEVER_ENDING = {
    "(?:a|aa)+$": "x" * 520 + "a" * 60 + "!" * 400,
    "(x?){30}x{30}": "x" * 30,
    "(?=.*Z)(x+x+)+y": "x" * 60 + "Z",
}
CUTLASS = (
    "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int>, "
    + "cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<4, " * 12
    + "ncclDevKernel_AllReduce_Sum_f32_RING_LL" + ">" * 40
)  # fmt: skip
PLAUSIBLE = {
    "ncclDev.*AllReduce.*Sum.*f32.*LL": True,
    "nccl.*Kernel.*(AllReduce|ReduceScatter|AllGather).*(f16|bf16|f32).*(RING|TREE).*(LL128|LL|SIMPLE)": True,
    "(?i)all_?reduce.*sum.*f(16|32).*ring": True,
    "^void .*cutlass.*gemm.*Sm90.*bf16.*$": False,
    "(my|our)_.*(one|two)_shot.*(reduce|gather).*\\d+": False,
}


@pytest.mark.parametrize("text", SLOW, ids=lambda text: text[:20])
def test_a_pattern_that_takes_long_on_a_name_is_refused_in_one_line(text: str, tmp_path, monkeypatch):
    assert timed_pattern.NAME_S == 1
    monkeypatch.setattr(timed_pattern, "NAME_S", 0.2)
    table = tmp_path / "mine.toml"
    table.write_text(f"[[kernel]]\npattern = 'first'\n[[kernel]]\npattern = '{text}'\n")
    begin_s = time.thread_time()
    with pytest.raises(UsageError, match=r"mine.toml, entry 2: pattern .* is too slow") as caught:
        load_table(table).classify(SLOW[text])
    assert time.thread_time() - begin_s < 8.0
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", NEVER_ENDING)
def test_a_search_in_progress_is_ended(text: str, monkeypatch):
    monkeypatch.setattr(timed_pattern, "NAME_S", 0.2)
    with pytest.raises(UsageError, match="is too slow"):
        TimedPattern(re.compile(text), "a table").search(NEVER_ENDING[text])


@pytest.mark.parametrize("text", PLAUSIBLE)
def test_a_plausible_pattern_is_taken_on_long_names(text: str):
    pattern = timed(re.compile(text), "a table")
    assert isinstance(pattern, TimedPattern)
    names = [f"{CUTLASS}{number}" for number in range(30)]
    assert {bool(pattern.search(name)) for name in names} == {PLAUSIBLE[text]}


def test_it_finds_what_the_pattern_finds():
    chance = random.Random(3)
    for text in (*PLAUSIBLE, *NAMING, "a.*b$", "(?<!x)b.*c?$"):
        plain, timed = re.compile(text), TimedPattern(re.compile(text), "a table")
        for _ in range(20):
            name = "".join(chance.choice(string.ascii_lowercase[:4]) for _ in range(chance.randrange(0, 90)))
            found, wanted = timed.search(name), plain.search(name)
            assert (found and found.span()) == (wanted and wanted.span())


def test_all_names_of_a_pattern_share_its_time(monkeypatch):
    monkeypatch.setattr(timed_pattern, "ALL_S", 0.4)
    pattern = TimedPattern(re.compile("a.*a.*b.*c"), "a table")
    names = ["a" * length for length in range(300, 2_000)]
    with pytest.raises(UsageError, match="too slow"):
        list(map(pattern.search, names))


@pytest.mark.parametrize("text", ["^my_allreduce", "[a-z]_kernel", "(ab){2}c", "a{2000}b"])
def test_a_pattern_without_a_choice_has_no_limit(text: str):
    assert not isinstance(timed(re.compile(text), "a table"), TimedPattern)


def test_so_many_choices_that_no_budget_holds_are_refused_as_the_table_is_read():
    with pytest.raises(UsageError, match="a table: pattern has 2000 repetitions and alternatives"):
        timed(re.compile("a?" * 2_000 + "b"), "a table")


def test_many_long_names_are_no_reason_to_refuse_a_plain_pattern():
    pattern = timed(re.compile(".*nccl.*AllReduce.*"), "a table")
    names = [f"{CUTLASS}{number}" for number in range(1_500)]
    assert not any(pattern.search(name[:1_200]) for name in names)


@pytest.mark.parametrize("text", [each for each in SLOW if each not in QUICK_PIECES])
def test_in_another_thread_a_slow_pattern_is_refused_piece_by_piece(text: str, monkeypatch):
    monkeypatch.setattr(timed_pattern, "NAME_S", 0.2)
    with ThreadPoolExecutor(1) as pool, pytest.raises(UsageError, match="is too slow"):
        pool.submit(TimedPattern(re.compile(text), "a table").search, SLOW[text]).result(timeout=30)


def test_a_timer_of_the_programs_own_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(timed_pattern, "NAME_S", 0.2)
    pattern, heard = TimedPattern(re.compile("a.*b"), "a table"), []
    handler = signal.signal(signal.SIGVTALRM, lambda number, frame: heard.append(number))
    try:
        mine = signal.getsignal(signal.SIGVTALRM)
        assert pattern.search("xaxb")
        assert signal.getsignal(signal.SIGVTALRM) is mine
        signal.setitimer(signal.ITIMER_VIRTUAL, 100.0)
        assert pattern.search("xaxb")
        assert signal.getitimer(signal.ITIMER_VIRTUAL)[0] > 90
        slow = TimedPattern(re.compile("(x+x+)+y"), "a table")
        with pytest.raises(UsageError, match="is too slow"):
            slow.search("x" * 60)
        assert heard == []
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, handler)
