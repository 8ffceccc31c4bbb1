"""Patterns that take a power of a name's length: refused once names show it, taken where they are quick."""

from __future__ import annotations

import random
import re
import string
import time

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
    assert timed_pattern.BUDGET_S == 2
    monkeypatch.setattr(timed_pattern, "BUDGET_S", 0.4)
    table = tmp_path / "mine.toml"
    table.write_text(f"[[kernel]]\npattern = 'first'\n[[kernel]]\npattern = '{text}'\n")
    begin_s = time.thread_time()
    with pytest.raises(UsageError, match=r"mine.toml, entry 2: pattern .* is too slow") as caught:
        load_table(table).classify(SLOW[text])
    assert time.thread_time() - begin_s < 8.0
    assert len(str(caught.value)) < 300 + len(str(tmp_path))
    assert "\n" not in str(caught.value)


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
    monkeypatch.setattr(timed_pattern, "BUDGET_S", 0.4)
    pattern = TimedPattern(re.compile("a.*a.*b.*c"), "a table")
    names = ["a" * length for length in range(300, 2_000)]
    with pytest.raises(UsageError, match="too slow"):
        list(map(pattern.search, names))


@pytest.mark.parametrize("text", ["^my_allreduce", "[a-z]+_kernel", "(ab){2}c+", "one|two", "a{2000}b"])
def test_a_pattern_with_one_choice_has_no_budget(text: str):
    assert not isinstance(timed(re.compile(text), "a table"), TimedPattern)


def test_so_many_choices_that_no_budget_holds_are_refused_as_the_table_is_read():
    with pytest.raises(UsageError, match="a table: pattern has 2000 repetitions and alternatives"):
        timed(re.compile("a?" * 2_000 + "b"), "a table")
