"""`shardtoll gpus`: every name that --gpu takes, with its figures."""

from __future__ import annotations

import json

from shardtoll.analyzers.roofline import known_gpus


def test_every_gpu_is_listed_with_its_figures(shardtoll):
    for width in (60, 140):
        ran = shardtoll("gpus", "--width", width)
        assert ran.code == 0
        assert max(map(len, ran.out.splitlines())) <= width
        assert all(gpu.name in ran.out for gpu in known_gpus())
    # A pipe gets a line a GPU, as grep reads it.
    lines = shardtoll("gpus").out.splitlines()
    assert [line.split()[0] for line in lines] == [gpu.name for gpu in known_gpus()]
    (h100,) = [line for line in lines if line.startswith("h100-sxm ")]
    assert "NVIDIA H100 SXM 80 GB" in h100
    assert "80.0 GB at 3,350 GB/s, 989 TFLOP/s in bfloat16" in h100


def test_json_has_the_source_of_every_number(shardtoll):
    listed = json.loads(shardtoll("gpus", "--json").out)
    assert [entry["name"] for entry in listed] == [gpu.name for gpu in known_gpus()]
    for entry, gpu in zip(listed, known_gpus(), strict=True):
        assert set(entry["numbers"]) == {name for name, _ in gpu.quantities()}
        assert all(number["source"] for number in entry["numbers"].values())


def test_an_unknown_name_says_where_names_are_listed(shardtoll):
    ran = shardtoll("advise", "--model", "llama3-8b", "--gpus", "8", "--gpu", "h1000")
    assert ran.code == 2
    assert "name one that `shardtoll gpus` lists, as h100-sxm" in ran.err.replace("h100-pcie, ", "")
