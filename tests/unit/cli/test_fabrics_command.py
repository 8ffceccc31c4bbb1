from __future__ import annotations

import json

from shardtoll.analyzers.roofline import known_fabrics


def test_every_fabric_is_listed_with_its_source(shardtoll):
    for width in (60, 140):
        ran = shardtoll("fabrics", "--width", width)
        flat = " ".join(ran.out.split())
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= width
        for fabric in known_fabrics():
            assert fabric.name in flat
            if width == 60:
                assert fabric.provenance in flat
                assert fabric.title in flat


def test_guesses_are_said(shardtoll):
    out = shardtoll("fabrics", "--width", 60).out
    guessing = next(fabric for fabric in known_fabrics() if fabric.guesses)
    count = len(list(guessing.quantities()))
    assert f"{len(guessing.guesses)} of {count} are guesses" in out


def test_json_has_the_source_of_every_number(shardtoll):
    listed = json.loads(shardtoll("fabrics", "--json").out)
    assert [entry["name"] for entry in listed] == [fabric.name for fabric in known_fabrics()]
    for entry, fabric in zip(listed, known_fabrics(), strict=True):
        assert set(entry["numbers"]) == {name for name, _ in fabric.quantities()}
        assert all(number["source"] for number in entry["numbers"].values())
