"""Several dotted names in as few forms as they have."""

from __future__ import annotations

import itertools
import time

import pytest

from shardtoll.ledger.words import names as names_module
from shardtoll.ledger.words.names import MOST_PARTS, shortened

ATTENTION = [f"layers.3.{name}.weight" for name in ("wq", "wk", "wv", "wo")]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], ""),
        (["weight"], "weight"),
        (["weight", "bias"], "weight, bias"),
        (ATTENTION, "layers.3.{wq,wk,wv,wo}.weight"),
        (["up.weight", "up.bias"], "up.{weight,bias}"),
        ([f"layers.{n}.norm.weight" for n in (0, 1, 2, 7)], "layers.{0-2,7}.norm.weight"),
        (
            [f"h.{n}.{at}.weight" for n, at in itertools.product(range(12), ("up", "down"))],
            "h.{0-11}.{up,down}.weight",
        ),
        (["h.0.up", "h.0.down", "h.1.up"], "h.0.{up,down}, h.1.up"),
        (["head.weight", *ATTENTION], "head.weight, layers.3.{wq,wk,wv,wo}.weight"),
        ([f"m.{name}.weight" for name in "abcdefgh"], "m.{a,b,c,d,e,f,...}.weight"),
        (["a", "b.c", "d.e.f", "g.h.i.j"], "a, b.c, d.e.f, ..."),
        (["x.{a,b}", "x.c", "x.d"], "x.{a,b}, x.{c,d}"),
        (["a.b", "a.b"], "a.b"),
        (["m.00.w", "m.01.w", "m.10.w"], "m.{00,01,10}.w"),
        (["m.0.w", "m.1.w", "m.01.w"], "m.{0,1,01}.w"),
        ([f"m.{'9' * 5000}.w", "m.1.w"], f"m.{{{'9' * 5000},1}}.w"),
    ],
)
def test_names_are_written_once(names: list[str], said: str):
    assert shortened(names) == said


def test_names_beyond_those_looked_at_are_no_part_of_a_form(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(names_module, "MOST_PARTS_SQUARED", 10 * 3**2)
    names = [f"m.{number}.w" for number in range(11)]
    assert shortened(names[:-1]) == "m.{0-9}.w"
    assert shortened(names) == "m.{0-9}.w, ..."
    assert shortened([*names[:-1], names[0]]) == "m.{0-9}.w", "a repeated one is no other"


def test_all_experts_of_a_large_model_are_one_form():
    assert shortened(LARGE["experts"]) == "h.{0-60}.e.{0-255}.{a,b,c}"


def test_a_name_of_very_many_parts_is_written_whole():
    one, other = (".".join(["m"] * (MOST_PARTS - 1) + [end]) for end in "ab")
    assert shortened([one, other]).endswith(".{a,b}")
    assert shortened([f"m.{one}", f"m.{other}"]) == f"m.{one}, m.{other}"


# As models have them; names from damaged files; and pairs that differ in one place each, so that few join.
LARGE = {
    "experts": [
        f"h.{n}.e.{e}.{at}" for n, e, at in itertools.product(range(61), range(256), ("a", "b", "c"))
    ],
    "long": [".".join([f"p{n}"] * 150 + [str(n % 3)] * 150) for n in range(400)],
    "stairs": [
        ".".join(str(n) if at == n % MOST_PARTS else str(n // 2) for at in range(MOST_PARTS))
        for n in range(20_000)
    ],
}


@pytest.mark.parametrize("names", LARGE.values(), ids=LARGE)
def test_names_of_files_take_bounded_time(names: list[str]):
    begun = time.process_time()
    shortened(names)
    assert time.process_time() - begun < 4
