"""Fabrics as TOML: the shipped ones, the round trip, and every mistake's message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.roofline import (
    UNKNOWN,
    Fabric,
    Link,
    Quantity,
    Rates,
    choose_fabric,
    known_fabrics,
    load_fabric,
    parse_fabric,
    to_toml,
)
from shardtoll.ledger import FabricError
from shardtoll.ledger.volume import OPS
from tests.unit.analyzers.fabrics import ROUND
from tests.unit.analyzers.ledgers import run_of


def test_the_shipped_fabrics_are_known_by_name():
    names = [fabric.name for fabric in known_fabrics()]
    assert names == ["a100x8", "h100x8-ib400", "loopback-gloo", "pcie-gen4"]
    assert [load_fabric(name).name for name in names] == names


def test_every_shipped_number_names_its_source():
    for fabric in known_fabrics():
        numbers = dict(fabric.quantities())
        assert {"intra.default.bandwidth_gbps", "intra.base_latency_ns"} <= set(numbers)
        assert all(len(number.source) > 10 for number in numbers.values())
        assert "not measured on this machine" in fabric.provenance
        assert not fabric.measured


def test_loopback_figures_are_labelled_as_guesses():
    loopback = load_fabric("loopback-gloo")
    assert "typical" in loopback.provenance
    assert set(loopback.guesses) == {name for name, _ in loopback.quantities()}
    assert load_fabric("h100x8-ib400").guesses == ()


texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
quantities = st.builds(
    Quantity,
    st.floats(min_value=1e-6, max_value=1e12),
    texts,
    st.sampled_from(["verified", "derived", "GUESS"]),
)
rates = st.builds(Rates, quantities, quantities)
links = st.builds(Link, quantities, rates, st.dictionaries(st.sampled_from(OPS), rates, max_size=3))
strings = st.lists(texts, max_size=2).map(tuple)
fabrics = st.builds(
    Fabric,
    name=texts,
    title=texts,
    provenance=texts,
    measured=st.booleans(),
    ranks_per_node=st.none() | quantities,
    intra=links,
    inter=st.none() | links,
    device_names=strings,
    device_names_not=strings,
    backends=strings,
)


@given(fabrics)
def test_what_is_written_reads_back_equal(fabric):
    assert parse_fabric(to_toml(fabric), "round trip") == fabric


def test_a_file_is_loaded_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(ROUND), encoding="utf-8")
    assert load_fabric(path) == ROUND
    assert load_fabric(str(path)) == ROUND


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(FabricError) as caught:
        load_fabric("h100")
    assert caught.value.message == "no fabric named 'h100'"
    assert caught.value.hint == (
        "use one of a100x8, h100x8-ib400, loopback-gloo, pcie-gen4, or the path of a .toml file"
    )
    assert caught.value.exit_code == 2


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(FabricError) as caught:
        load_fabric(tmp_path / "none.toml")
    assert str(caught.value) == (
        f"fabric file {tmp_path / 'none.toml'} cannot be read (No such file or directory): "
        "name a readable .toml file"
    )


def test_a_file_that_is_not_text_is_one_line(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FabricError, match="not UTF-8"):
        load_fabric(path)


GOOD = to_toml(ROUND)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not TOML"),
        ("x = " + "[" * 20_000, "not TOML"),
        (GOOD.replace('name = "round"', ""), "`name` is missing"),
        (GOOD.replace('name = "round"', "name = 3"), "`name` must be a str, not int 3"),
        (GOOD.replace("[intra]", "[elsewhere]"), "unknown key `elsewhere`"),
        (GOOD.replace("[intra.default]", "[intra.allreduce]"), "unknown key `allreduce`"),
        (GOOD.replace("[intra.default]", "[intra.broadcast]"), "[intra]: `default` is missing"),
        (GOOD.replace("bandwidth_gbps = ", "bandwidth = "), "unknown key `bandwidth`"),
        (GOOD.replace("value = 10.0,", "value = -1,"), "is -1, it must be"),
        (
            GOOD.replace("bandwidth_gbps = { value = 10.0", "bandwidth_gbps = { value = 0"),
            "it must be above 0",
        ),
        (GOOD.replace("value = 10.0,", "value = nan,"), "is nan"),
        (GOOD.replace("value = 10.0,", 'value = "fast",'), "needs a number as value, not 'fast'"),
        (GOOD.replace("value = 10.0,", "value = true,"), "needs a number as value, not True"),
        (GOOD.replace("value = 10.0, ", ""), "needs a number as value, not None"),
        (GOOD.replace('confidence = "derived"', 'confidence = "sure"'), "confidence 'sure', not one of"),
        (GOOD.replace('source = "made for a test", ', ""), "`source` is missing"),
        (GOOD + "\n[x]\n", "unknown key `x`"),
        (GOOD.replace("measured = false", 'measured = "no"'), "`measured` must be a bool"),
        (GOOD.replace("measured = false", "backends = [1]"), "`backends` must hold strings"),
    ],
)
def test_mistakes_in_a_file_are_one_line_with_their_place(text, message):
    with pytest.raises(FabricError) as caught:
        parse_fabric(text, "mine.toml")
    assert message in caught.value.message
    assert caught.value.message.startswith("fabric mine.toml")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("device", "backend", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "nccl", "h100x8-ib400"),
        ("NVIDIA H200", "nccl", "h100x8-ib400"),
        ("NVIDIA A100-SXM4-80GB", "nccl", "a100x8"),
        ("NVIDIA A100-PCIE-40GB", "nccl", "pcie-gen4"),
        ("NVIDIA H100 PCIe", "nccl", "unknown"),
        ("NVIDIA GH200 480GB", "nccl", "unknown"),
        ("Tesla V100", "nccl", "unknown"),
        ("cpu", "gloo", "loopback-gloo"),
        (None, "gloo", "loopback-gloo"),
        ("cpu", "cpu:gloo,cuda:nccl", "loopback-gloo"),
        ("cpu", "fake", "unknown"),
        ("NVIDIA H100 80GB HBM3", "fake", "unknown"),
        ("cpu", None, "unknown"),
        (None, None, "unknown"),
        ("cpu", "mpi", "unknown"),
    ],
)
def test_the_fabric_is_chosen_by_device_and_backend(device, backend, name):
    chosen = choose_fabric(run_of(device=device, backend=backend))
    assert chosen.name == name
    if name == "unknown":
        assert chosen == UNKNOWN
        assert "unknown" in chosen.provenance
    else:
        assert (device if device not in (None, "cpu") else backend) in chosen.provenance


def test_the_network_is_assumed_only_where_there_is_one():
    one = choose_fabric(run_of(device="NVIDIA H100 80GB HBM3", hosts=("a",)))
    two = choose_fabric(run_of(device="NVIDIA H100 80GB HBM3", hosts=("a", "b")))
    assert "assumed" not in one.provenance
    half = choose_fabric(run_of(8, device="NVIDIA H100 80GB HBM3", hosts=("a",), ranks_seen=(0, 1, 2, 3)))
    assert "the network between hosts is assumed" in half.provenance
    assert "the network between hosts is assumed" in two.provenance
