from __future__ import annotations

import json

import pytest

from shardtoll.analyzers.roofline import known_fabrics, load_fabric, parse_fabric


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
    # Two of the interconnect's, none of the accelerator's.
    fabric = load_fabric("oci-h100")
    assert fabric.gpu is not None
    count = len([*fabric.quantities(), *fabric.gpu.quantities()])
    block = out.split("oci-h100\n")[1].split("\n")[:4]
    assert f"2 of {count} are guesses" in " ".join(block)


def test_a_pipe_gets_a_line_a_fabric(shardtoll):
    lines = shardtoll("fabrics").out.splitlines()
    assert len(lines) == len(known_fabrics())
    for line, fabric in zip(lines, known_fabrics(), strict=True):
        assert line.split()[0] == fabric.name
        assert line.index(fabric.title) < line.index(fabric.provenance)
        assert line == line.rstrip()
    assert len({line.index(fabric.title) for line, fabric in zip(lines, known_fabrics(), strict=True)}) == 1


def test_json_has_the_source_of_every_number(shardtoll):
    listed = json.loads(shardtoll("fabrics", "--json").out)
    assert [entry["name"] for entry in listed] == [fabric.name for fabric in known_fabrics()]
    for entry, fabric in zip(listed, known_fabrics(), strict=True):
        assert set(entry["numbers"]) == {name for name, _ in fabric.quantities()}
        assert all(number["source"] for number in entry["numbers"].values())


def test_list_is_the_same(shardtoll):
    assert shardtoll("fabrics", "list", "--width", 90).out == shardtoll("fabrics", "--width", 90).out


@pytest.mark.parametrize("width", [60, 140])
def test_show_has_every_number_with_its_unit_and_source(shardtoll, width):
    ran = shardtoll("fabrics", "show", "aws-p5", "--width", width)
    assert ran.code == 0
    assert max(map(len, ran.out.splitlines())) <= width
    flat = " ".join(ran.out.split())
    fabric = load_fabric("aws-p5")
    assert fabric.gpu is not None
    for name, number in (*fabric.quantities(), *fabric.gpu.quantities()):
        assert name in flat
        # A wide table folds a source between its other columns.
        assert number.source.split()[0] in flat
        assert number.confidence in flat
        if width == 60:
            assert number.source in flat
    for amount in ("450 GB/s", "400 GB/s", "75,000 ns", "989 TFLOP/s"):
        assert amount in flat
    assert "between nodes: efa" in flat
    assert "GUESS" not in flat


@pytest.mark.parametrize("width", [60, 140])
def test_show_marks_guesses_without_colour_too(shardtoll, width):
    flat = " ".join(shardtoll("fabrics", "show", "oci-h100", "--width", width).out.split())
    assert flat.count("GUESS") >= 3
    assert "2 of these numbers are GUESSES" in flat


def test_show_of_a_node_says_that_the_network_is_not_known(shardtoll):
    assert "between nodes: not known" in shardtoll("fabrics", "show", "h100x8").out


def test_show_has_shares_of_rates(shardtoll):
    assert "intra.reached.ring = 0.7 of the rate, derived" in shardtoll("fabrics", "show", "mi300x8").out


def test_show_as_json_and_toml(shardtoll):
    told = json.loads(shardtoll("fabrics", "show", "oci-h100", "--json").out)
    assert told["guesses"] == ["inter.rank_gbps", "inter.node_gbps"]
    assert (told["intra"], told["inter"], told["library"]) == ("nvswitch", "roce", "nccl")
    assert told["gpu"]["numbers"]["peak_tflops.bfloat16"]["value"] == 989
    text = shardtoll("fabrics", "show", "oci-h100", "--toml").out
    assert parse_fabric(text, "printed") == load_fabric("oci-h100")


def test_show_of_ones_own_file(shardtoll, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nextends = "aws-p5"\n[inter]\ncards = 4\n', encoding="utf-8")
    out = " ".join(shardtoll("fabrics", "show", path, "--width", 60).out.split())
    assert "inter.cards = 4, GUESS" in out
    assert "given without a source in" in out


def test_mistakes_are_one_line(shardtoll, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nextends = "aws-p5"\n[inter]\nrank_gbit = 4\n', encoding="utf-8")
    ran = shardtoll("fabrics", "show", path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"shardtoll: fabric {path} [inter]: unknown key `rank_gbit`: did you mean `rank_gbps`, in GB/s, "
        "1e9 bytes a second in one direction (a card of 400 Gb/s has 50)?\n"
    )
    assert shardtoll("fabrics", "show", "h100").code == 2
    assert shardtoll("fabrics", "nonsense").code == 2
