"""Several dotted names in as few forms as they have."""

from __future__ import annotations

import itertools

import pytest

from shardtoll.ledger.words.names import shortened

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
    ],
)
def test_names_are_written_once(names: list[str], said: str):
    assert shortened(names) == said
