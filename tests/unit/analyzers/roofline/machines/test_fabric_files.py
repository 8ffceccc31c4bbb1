"""Fabrics as TOML: the shipped ones, the round trip, what a file takes from another, and every mistake."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.roofline import (
    Curve,
    CurvePoint,
    Fabric,
    Gpu,
    Link,
    Quantity,
    fabric_names,
    find_gpu,
    gpu_to_toml,
    known_fabrics,
    known_gpus,
    load_fabric,
    load_gpu,
    parse_fabric,
    to_toml,
)
from shardtoll.analyzers.roofline.machines.fabric import INTER_KINDS, INTRA_KINDS, LIBRARIES, REACHED
from shardtoll.analyzers.roofline.machines.gpu import PEAK_DTYPES
from shardtoll.analyzers.roofline.model.library import load_library
from shardtoll.ledger import FabricError
from shardtoll.ledger.records.volume import OPS
from tests.shared_inputs import shared
from tests.unit.analyzers.fabrics import ROUND

# -- what is shipped --------------------------------------------------------------------------------


def test_the_shipped_fabrics_are_known_by_name():
    assert [fabric.name for fabric in known_fabrics()] == list(fabric_names())
    assert {"h100x8-ib400", "aws-p5", "gb200-nvl72-ib400", "mi300x8", "polaris", "loopback-gloo"} <= set(
        fabric_names()
    )
    assert [load_fabric(name).name for name in fabric_names()] == list(fabric_names())


def test_every_shipped_number_names_its_source_and_how_sure_it_is():
    for fabric in known_fabrics():
        numbers = dict(fabric.quantities())
        assert "intra.rank_gbps" in numbers, fabric.name
        assert all(len(number.source) > 10 for number in numbers.values())
        assert "not measured on this machine" in fabric.provenance
        assert not fabric.measured
        assert not fabric.curves
    for gpu in known_gpus():
        assert gpu.peak_tflops.keys() >= {"float32", "float16"}
        assert all(len(number.source) > 10 for _, number in gpu.quantities())


def test_what_is_from_memory_or_contested_is_a_guess():
    numbers = [pair for fabric in known_fabrics() for pair in fabric.quantities()]
    numbers += [pair for gpu in known_gpus() for pair in gpu.quantities()]
    for name, number in numbers:
        unsure = re.search(r"from memory|conflict|no published", number.source)
        assert not unsure or number.confidence == "GUESS", (name, number)
    loopback = load_fabric("loopback-gloo")
    assert set(loopback.guesses) == {name for name, _ in loopback.quantities()}
    assert load_fabric("h100x8-ib400").guesses == ()
    assert load_fabric("oci-h100").guesses == ("inter.rank_gbps", "inter.node_gbps")


def test_the_parts_of_a_shipped_network_agree():
    for fabric in known_fabrics():
        inter, size = fabric.inter, fabric.ranks_per_node
        if inter is None:
            continue
        assert inter.node_gbps is not None, fabric.name
        assert size is not None
        rank, node = inter.rank_gbps.value, inter.node_gbps.value
        assert node / size.value <= rank <= node
        if inter.cards is not None:
            # A rank sends over its own cards, or shares one with its neighbours.
            assert rank == max(node / size.value, node / inter.cards.value)


def test_nodes_are_as_the_reference_table_has_them():
    import csv

    with (shared("reference", "nodes.csv")).open() as file:
        rows = {row["node"]: row for row in csv.DictReader(file)}
    pairs = {
        "DGX A100 (HDR)": "a100x8-ib200",
        "DGX/HGX H100 H200 (NDR)": "h100x8-ib400",
        "DGX B300 (XDR)": "b300x8-ib800",
        "AWS p4d/p4de (EFAv1)": "aws-p4de",
        "AWS p5/p5e (EFAv2)": "aws-p5e",
        "AWS p5en (EFAv3)": "aws-p5en",
        "AWS p6-b200 (EFAv4)": "aws-p6-b200",
        "AWS p6-b300 (EFAv4)": "aws-p6-b300",
        "GCP a3-high (TCPX)": "gcp-a3-high",
        "GCP a3-mega (TCPXO)": "gcp-a3-mega",
        "GCP a3-ultra (RoCE CX-7)": "gcp-a3-ultra",
        "Azure ND A100 v4": "azure-nd-a100-v4",
        "Azure ND H100 v5": "azure-nd-h100-v5",
        "Azure GB300 NDv6": "azure-nd-gb300-v6",
        "ALCF Polaris (Slingshot-11)": "polaris",
        "CSCS Alps GH200 (Slingshot-11)": "alps-gh200",
    }
    for node, name in pairs.items():
        row, fabric = rows[node], load_fabric(name)
        assert fabric.inter is not None
        assert fabric.ranks_per_node is not None
        assert fabric.ranks_per_node.value == float(row["gpus"])
        assert fabric.inter.cards is not None
        assert fabric.inter.cards.value == float(row["nics"])
        assert fabric.inter.node_gbps is not None
        assert fabric.inter.node_gbps.value == float(row["node_GBps_per_dir"])
        if row["nccl_net_latency_us"]:
            latency = fabric.inter.plugin_latency_ns
            assert latency is not None
            assert latency.value == 1000 * float(row["nccl_net_latency_us"])


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200-sxm"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Tesla V100-SXM2-32GB", "v100-sxm-32gb"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm-80gb"),
        ("Tesla V100-DGXS-32GB", "v100-dgxs-32gb"),
        ("AMD Instinct MI250", "mi250"),
        ("AMD Instinct MI250X", "mi250x"),
        ("AMD Instinct MI210", "mi210"),
        ("AMD Instinct MI350X", "mi350x"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 4080", "rtx-4080"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", None),
        ("NVIDIA L40", None),
        ("NVIDIA A100X", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("cpu", None),
        (None, None),
    ],
)
def test_an_accelerator_is_found_by_its_device_name(device, name):
    found = find_gpu(device)
    assert (found and found.name) == name


@pytest.mark.parametrize(
    ("device", "memory_bytes", "sms", "capability", "name"),
    [
        ("NVIDIA A100-PG509-200", 42_505_273_344, 108, "8.0", "a100-sxm-40gb"),
        ("NVIDIA A100-PG509-210", 85_198_045_184, 108, "8.0", "a100-sxm-80gb"),
        ("NVIDIA A100-PG509-200", None, None, None, None),
        ("Tesla V100-XYZ", 16_945_512_448, 80, "7.0", "v100-sxm-16gb"),
        ("", 206_141_652_992, 304, "9.4", "mi300x"),
        (None, 206_141_652_992, 304, "9.4", "mi300x"),
        (None, 274_877_906_944, 304, "9.4", "mi325x"),
        (None, 25_386_352_640, 128, "8.9", "rtx-4090"),
        # H100 and H800 report the same chip and memory, and have equal peaks; the H100 NVL has more memory.
        (None, 100_000_000_000, 132, "9.0", None),
        (None, 206_141_652_992, None, None, None),
        ("Some Accelerator 9000", 42_505_273_344, 108, "8.0", None),
        ("NVIDIA H100 80GB HBM3", 42_505_273_344, 108, "8.0", "h100-sxm"),
    ],
)
def test_what_the_driver_reports_tells_boards_apart_and_names_the_nameless(
    device, memory_bytes, sms, capability, name
):
    found = find_gpu(device, memory_bytes, sms, capability)
    assert (found and found.name) == name


def test_a_chip_that_is_told_apart_is_written_and_read_back():
    gpu = next(gpu for gpu in known_gpus() if gpu.name == "a100-sxm-40gb")
    own = replace(ROUND, gpu=replace(gpu, name="mine"))
    assert parse_fabric(to_toml(own), "x").gpu == own.gpu


@pytest.mark.parametrize("written", ["sm_90", "9.0a", "gfx942", "9", "9.0.1", "", "-9.0", "9." + 5000 * "0"])
def test_a_capability_that_is_not_two_numbers_is_told_when_the_file_is_read(written: str):
    gpu = next(gpu for gpu in known_gpus() if gpu.name == "h100-sxm")
    assert load_gpu(gpu_to_toml(gpu)).capability == (9, 0)
    text = gpu_to_toml(gpu).replace('capability = "9.0"', f'capability = "{written}"')
    with pytest.raises(FabricError, match=r"`capability` (is|has) ") as caught:
        load_gpu(text)
    assert len(str(caught.value)) <= 300
    assert "\n" not in str(caught.value)


# -- round trip -------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
words = st.lists(texts.filter(bool), max_size=2).map(tuple)


def numbers(least: float = 1e-6, most: float = 1e6) -> st.SearchStrategy[Quantity]:
    sure = st.sampled_from(["verified", "derived", "measured", "GUESS"])
    return st.builds(Quantity, st.floats(least, most), texts, sure)


counts = st.builds(Quantity, st.integers(1, 1000).map(float), texts, st.just("derived"))
reached = st.dictionaries(st.sampled_from(REACHED), numbers(most=1.2), max_size=3)
intra = st.builds(Link, st.sampled_from(INTRA_KINDS), numbers(), peers=st.none() | counts, reached=reached)
inter = st.builds(
    Link,
    st.sampled_from(INTER_KINDS),
    numbers(most=10),
    st.none() | numbers(least=10),
    st.none() | counts,
    st.none() | numbers(0, 1e6),
    reached=reached,
)
gpus = st.builds(
    Gpu,
    texts,
    texts,
    st.dictionaries(st.sampled_from(PEAK_DTYPES), numbers(), max_size=3),
    numbers(),
    numbers(),
    st.none() | numbers(),
    words,
    words,
)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    sizes = sorted(draw(st.sets(st.integers(0, 2**40), min_size=1, max_size=4)))
    points = []
    for size in sizes:
        low, time, high = sorted(draw(st.tuples(*[st.integers(1, 10**12)] * 3)))
        points.append(CurvePoint(size, time, low, high, draw(st.integers(1, 100))))
    ranks = draw(st.integers(2, 64))
    return Curve(draw(st.sampled_from(OPS)), ranks, draw(st.integers(1, ranks)), tuple(points), draw(texts))


def in_order(found: list[Curve]) -> tuple[Curve, ...]:
    return tuple(sorted(found, key=lambda curve: (OPS.index(curve.op), curve.ranks, curve.nodes)))


fabrics = st.builds(
    Fabric,
    name=texts,
    title=texts,
    provenance=texts,
    library=st.sampled_from(LIBRARIES),
    gpu=st.none() | st.sampled_from(known_gpus()) | gpus,
    ranks_per_node=st.none() | counts,
    ranks_per_domain=st.none() | counts,
    intra=intra,
    inter=st.none() | inter,
    curves=st.lists(curves(), max_size=2).map(in_order),
    measured=st.booleans(),
    sharp=st.booleans(),
    device_names=words,
    device_names_not=words,
    backends=words,
    hardware=words,
)


@given(fabrics)
def test_what_is_written_reads_back_equal(fabric):
    assert parse_fabric(to_toml(fabric), "round trip") == fabric


def test_a_file_is_loaded_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(ROUND), encoding="utf-8")
    assert load_fabric(path) == ROUND
    assert load_fabric(str(path)) == ROUND


# -- extends ----------------------------------------------------------------------------------------

MINE = """
name = "ours"
extends = "h100x8-ib400"
[inter]
node_gbps = { value = 200, source = "4 cards of 400 Gb/s, by ibstat", confidence = "verified" }
cards = { value = 4, source = "ibstat", confidence = "verified" }
"""


def test_a_file_says_only_what_differs():
    ours, base = parse_fabric(MINE, "ours.toml"), load_fabric("h100x8-ib400")
    assert ours.inter is not None
    assert base.inter is not None
    assert ours.inter.node_gbps == Quantity(200.0, "4 cards of 400 Gb/s, by ibstat", "verified")
    assert ours.inter.rank_gbps == base.inter.rank_gbps
    assert ours.inter.reached == base.inter.reached
    assert (ours.intra, ours.gpu, ours.ranks_per_node) == (base.intra, base.gpu, base.ranks_per_node)
    assert ours.device_names == base.device_names
    # Words that name the other's machines do not name these.
    assert ours.hardware == ()
    assert ours.title == f"{base.title}, changed"
    assert ours.provenance == f"ours.toml, over h100x8-ib400: {base.provenance}"


def test_a_link_of_another_kind_inherits_nothing_of_it():
    text = 'name = "x"\nextends = "h100x8-ib400"\n[inter]\nkind = "roce"\nrank_gbps = 25\n'
    made = parse_fabric(text, "x.toml")
    given = Quantity(25.0, "given without a source in x.toml", "GUESS")
    assert made.inter == Link("roce", given)
    assert made.guesses == ("inter.rank_gbps",)


def test_one_reached_share_leaves_the_others():
    text = 'name = "x"\nextends = "h100x8-ib400"\n[inter.reached]\ntree = 0.5\n'
    made, base = parse_fabric(text, "x.toml").inter, load_fabric("h100x8-ib400").inter
    assert made is not None
    assert base is not None
    assert made.reached == {
        **base.reached,
        "tree": Quantity(0.5, "given without a source in x.toml", "GUESS"),
    }


def test_measured_times_go_with_the_links_they_crossed(tmp_path):
    def curve(nodes: int) -> Curve:
        return Curve("all_reduce", 8, nodes, (CurvePoint(8, 10_000, 9_000, 11_000, 5),), "here")

    base = replace(ROUND, curves=(curve(1), curve(2)), measured=True)
    (tmp_path / "base.toml").write_text(to_toml(base), encoding="utf-8")
    head = 'name = "x"\nextends = "base.toml"\n'
    own = tmp_path / "own.toml"
    kept = {
        "": (curve(1), curve(2)),
        "[inter]\nrank_gbps = 3\n": (curve(1),),
        "[intra]\nrank_gbps = 30\n": (),
    }
    for text, curves_left in kept.items():
        own.write_text(head + text, encoding="utf-8")
        made = load_fabric(own)
        assert made.curves == curves_left
        # Another machine's measurements were not made on this one.
        assert not made.measured


def test_a_path_is_meant_from_the_file_that_names_it(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "base.toml").write_text(to_toml(ROUND), encoding="utf-8")
    (tmp_path / "deep" / "mine.toml").write_text(
        'name = "mine"\nextends = "../base.toml"\n', encoding="utf-8"
    )
    monkeypatch.chdir("/")
    assert load_fabric(tmp_path / "deep" / "mine.toml").intra == ROUND.intra


@pytest.mark.parametrize("files", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "b"}])
def test_files_that_extend_each_other_are_one_line(tmp_path, files):
    for name, base in files.items():
        (tmp_path / f"{name}.toml").write_text(f'name = "x"\nextends = "./{base}.toml"\n', encoding="utf-8")
    with pytest.raises(FabricError, match="`extends` comes back to itself"):
        load_fabric(tmp_path / "a.toml")


def test_a_long_chain_has_an_end(tmp_path):
    for number in range(40):
        text = f'name = "x"\nextends = "./{number + 1}.toml"\n'
        (tmp_path / f"{number}.toml").write_text(text, encoding="utf-8")
    with pytest.raises(FabricError, match="more than 16 files"):
        load_fabric(tmp_path / "0.toml")


def test_a_file_may_bear_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("aws-p5.toml").write_text('name = "x"\nextends = "aws-p5"\nsharp = true\n', encoding="utf-8")
    assert load_fabric("aws-p5.toml").sharp
    assert not load_fabric("aws-p5").sharp


def test_the_example_of_the_docs_is_a_fabric(tmp_path):
    page = (Path(__file__).parents[5] / "docs" / "fabrics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks[0].splitlines()) <= 10
    for number, block in enumerate(blocks):
        made = parse_fabric(block, f"docs {number}")
        assert made.intra is not None
        assert parse_fabric(to_toml(made), "again") == made


# -- mistakes ---------------------------------------------------------------------------------------


def test_an_unknown_name_tells_those_alike():
    with pytest.raises(FabricError) as caught:
        load_fabric("h100")
    assert caught.value.message == "no fabric named 'h100'"
    assert "h100x8, h100x8-ib400" in caught.value.hint
    assert "`shardtoll fabrics`" in caught.value.hint
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


CURVES = """
[[curve]]
op = "all_reduce"
ranks = 4
nodes = 1
source = "here"
message_bytes = [8, 16]
time_ns = [100, 200]
"""
TEN = "rank_gbps = { value = 10.0"
GOOD = to_toml(ROUND) + CURVES


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("name = ", "not TOML", "fabrics show"),
        ("x = " + "[" * 20_000, "not TOML", ""),
        ('name = "x"', "`title` is missing", "write title"),
        ('name = "x"\ntitle = "x"\nprovenance = "x"', "no link inside a host", "[intra]"),
        ("name = 3", "`name` is 3", 'name = "..."'),
        ('name = "x"\nextends = "p5"', "`extends` names no fabric 'p5'", "shardtoll fabrics"),
        ('name = "x"\nextends = "./none.toml"', "cannot be read", ""),
        (GOOD.replace("[intra]", "[elsewhere]"), "unknown key `elsewhere`", ""),
        (GOOD.replace("rank_gbps", "rank_gbit"), "[intra]: unknown key `rank_gbit`", "`rank_gbps`, in GB/s"),
        (GOOD.replace("rank_gbps", "bandwidth_gbps"), "older form", "shardtoll calibrate"),
        (GOOD.replace(TEN, "rank_gbps = { value = -1"), "[intra]: `rank_gbps` is -1", "above 0 in GB/s"),
        (GOOD.replace(TEN, "rank_gbps = { value = 0"), "`rank_gbps` is 0", "above 0"),
        (GOOD.replace(TEN, "rank_gbps = { value = nan"), "`rank_gbps` is nan", ""),
        (GOOD.replace(TEN, "rank_gbps = { value = 1e400"), "`rank_gbps` is inf", ""),
        (GOOD.replace(TEN, "rank_gbps = { value = 1e9"), "`rank_gbps` is 1000000000.0", "at most 1e+06"),
        (GOOD.replace(TEN, 'rank_gbps = { value = "fast"'), "`rank_gbps` is 'fast'", "a number"),
        (GOOD.replace(TEN, "rank_gbps = { value = true"), "`rank_gbps` is True", "a number"),
        (GOOD.replace(f"{TEN},", "rank_gbps = {"), "`rank_gbps` has no value", "rank_gbps = { value"),
        (GOOD.replace('source = "made for a test", ', ""), "has no source", "source ="),
        (GOOD.replace('"derived"', '"sure"'), "`confidence` is 'sure'", "verified, derived"),
        (GOOD.replace('"nvswitch"', '"infiniband"'), "`kind` is 'infiniband'", "nvswitch, nvlink"),
        (GOOD.replace('kind = "infiniband"\n', ""), "[inter]: `kind` is missing", 'kind = "infiniband"'),
        (
            GOOD.replace("value = 8.0", "value = 1.0"),
            "a rank's 2 GB/s is more than its node's 1",
            "(400 Gb/s is 50",
        ),
        (GOOD.replace("cards = { value = 4.0", "cards = { value = 4.5"), "`cards` is 4.5", "a whole number"),
        (GOOD.replace("[intra]", "[intra]\npeers = 0"), "`peers` is 0", "a whole number above 0"),
        (GOOD.replace("[intra]", "[intra]\ncards = 4"), "unknown key `cards`", ""),
        (GOOD + "[intra.reached]\nring = 1.3\n", "`ring` is 1.3", "at most 1.2"),
        (GOOD + "[intra.reached]\nrings = 1\n", "unknown key `rings`", "`ring`"),
        ('measured = "no"\n' + GOOD, "`measured` is 'no'", "true or false"),
        ("backends = [1]\n" + GOOD, "`backends` is [1]", "list of texts"),
        ('gpu = "h100"\n' + GOOD, "no `gpu` 'h100'", "h100-sxm"),
        (GOOD + '[gpu]\nname = "x"\n', "[gpu]: `title` is missing", ""),
        (
            'library = "mpi"\n' + GOOD.replace('library = "nccl"\n', ""),
            "`library` is 'mpi'",
            "nccl, rccl, gloo",
        ),
        (f'title = "{"x" * 3000}"', "`title` has 3000 characters", "at most 2000"),
        (GOOD.replace("time_ns = [100, 200]", "time_ns = [100]"), "[curve 1]: its lists differ", ""),
        (GOOD.replace("time_ns = [100, 200]", "time_ns = [100, 0]"), "[curve 1]: a point of 0", "0 < low_ns"),
        (GOOD.replace("time_ns = [100, 200]", "time_us = [100, 200]"), "unknown key `time_us`", "`time_ns`"),
        (GOOD.replace("[100, 200]", "[100, 2.5]"), "`time_ns` holds 2.5", "whole numbers"),
        (GOOD.replace("[8, 16]", "[16, 8]"), "does not ascend", ""),
        (GOOD.replace("[8, 16]", "[8, 8]"), "does not ascend", ""),
        (GOOD.replace("ranks = 4\n", "ranks = 1\n"), "1 ranks on 1 nodes", "at least 2"),
        (GOOD.replace('op = "all_reduce"', 'op = "allreduce"'), "`op` is 'allreduce'", "all_reduce"),
        (GOOD + "low_ns = [101, 1]\n", "a point of 101 <= 100", ""),
        (
            "curve = 3\n" + GOOD.replace(CURVES, ""),
            "`curve` is 3",
            "[[curve]]",
        ),
    ],
)
def test_mistakes_in_a_file_are_one_line_with_file_key_and_what_to_write(text, message, hint):
    with pytest.raises(FabricError) as caught:
        parse_fabric(text, "mine.toml")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.message.startswith("fabric ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_a_mistake_in_a_base_names_the_base(tmp_path):
    (tmp_path / "base.toml").write_text(GOOD.replace(TEN, "rank_gbps = { value = -1"), encoding="utf-8")
    (tmp_path / "mine.toml").write_text('name = "mine"\nextends = "./base.toml"\n', encoding="utf-8")
    with pytest.raises(FabricError) as caught:
        load_fabric(tmp_path / "mine.toml")
    assert caught.value.message == f"fabric {tmp_path / 'base.toml'} [intra]: `rank_gbps` is -1"


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.toml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(FabricError, match="larger than"):
        load_fabric(path)
    shutil.rmtree(tmp_path)


def test_a_device_is_no_fabric_file():
    with pytest.raises(FabricError, match=r"/dev/zero cannot be read \(not a regular file\)"):
        load_fabric("/dev/zero")


def test_constants_without_a_source_are_guesses_where_nothing_moved_them():
    for name, number in load_library("nccl").numbers.items():
        if number.source.startswith("no source"):
            assert number.confidence == "GUESS", name
