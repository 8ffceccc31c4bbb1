"""Descriptions of hardware as people write them, to the fabric they mean."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardtoll.analyzers.roofline import UNKNOWN, Fabric, fabric_of_hardware, load_fabric
from shardtoll.analyzers.roofline.machines.network_words import NetworkWords, network_words
from tests.shared_inputs import shared

# Text, nodes, GPUs in use, fabric, how sure, and GB/s of a node where the text gives a rate.
SWEEPS = [
    ("8xH100 SXM HGX, 8x CX-7 IB NDR400", 2, 16, "h100x8-ib400", "likely", 400),
    ("8xA100-SXM4-40GB DGX NVSwitch", 1, 8, "a100x8", "certain", None),
    ("8xH100 SXM, 400G/GPU", 128, 1024, "h100x8-ib400", "likely", 400),
    ("8xH100 SXM p5.48xlarge", 1, 8, "aws-p5", "certain", 400),
    ("8xH100 p5.48xlarge EFAv2 32x100G", 2, 16, "aws-p5", "certain", 400),
    ("8xH100 p5.48xlarge EFAv2", 2, 16, "aws-p5", "certain", 400),
    ("8xA100-80 p4de EFAv1 4x100G", 2, 16, "aws-p4de", "certain", 50),
    ("8xA100-40 DGX, 8x IB HDR200 (ALCF Sophia)", 2, 16, "a100x8-ib200", "certain", 200),
    ("4xA100-40, 2x Slingshot-11 200G (ALCF Polaris)", 540, 2160, "polaris", "certain", 50),
    ("H100 80GB HBM3, NDR400/GPU (xxrjun cluster01), NCCL 2.29.2", 10, 80, "h100x8-ib400", "likely", 400),
    ("H100 80GB HBM3, NDR400/GPU (xxrjun cluster01), NCCL 2.29.2", 10, 40, "h100x8-ib400", "likely", 400),
    ("H100 80GB HBM3, NDR400/GPU (xxrjun cluster01), NCCL 2.29.2", 10, 10, "h100x8-ib400", "likely", 400),
    ("H100 80GB HBM3, NDR400/GPU (xxrjun cluster01), NCCL 2.29.2", 1, 8, "h100x8", "certain", 400),
    ("H100 80GB HBM3, NDR400/GPU (xxrjun cluster01), NCCL 2.29.2", 1, 4, "h100x8", "likely", 400),
    ("GB200 NVL72 (4 GPU trays), IB NDR400/GPU", 360, 1440, "gb200-nvl72-ib400", "likely", 200),
    ("4xGH200, 4x Slingshot-11 200G (CSCS Alps)", 2, 8, "alps-gh200", "certain", 100),
    ("8xH200 SXM NVLink4", 1, 8, "h200x8", "certain", None),
    ("8xB200 p6-b200", 1, 8, "aws-p6-b200", "certain", 400),
    ("8xA100 (4 nodes; see source L1-10)", 4, 32, "a100x8-ib200", "assumed", 200),
]
OTHERS = [
    ("4xA100", 1, 4, "a100x4", "likely", None),
    ("4xA100", 4, 16, "a100x4-ib200", "assumed", 100),
    ("MI300X", 1, 8, "mi300x8", "certain", None),
    ("8xMI300X, 8x400G RoCE", 2, 16, "mi300x8-roce400", "likely", 400),
    ("ND H100 v5", 2, 16, "azure-nd-h100-v5", "certain", 400),
    ("Standard_ND96isr_H100_v5", 4, 32, "azure-nd-h100-v5", "certain", 400),
    ("8x NVIDIA H100 80GB HBM3, 8x400G IB", 2, 16, "h100x8-ib400", "likely", 400),
    ("H100x8 p5", 2, 16, "aws-p5", "certain", 400),
    ("H100-SXM5-80GB (8 GPUs per node), RoCEv2 8x400GbE", 4, 32, "h100x8-roce400", "likely", 400),
    ("a3-mega TCPXO", 2, 16, "gcp-a3-mega", "certain", 200),
    ("8xH100 a3-highgpu-8g TCPX", 2, 16, "gcp-a3-high", "certain", 100),
    ("8xH200 a3-ultragpu-8g", 2, 16, "gcp-a3-ultra", "certain", 400),
    ("8xH200 p5en.48xlarge", 4, 32, "aws-p5en", "certain", 400),
    ("8xH200, EFA 16x200G", 4, 32, "aws-p5en", "likely", 400),
    ("8xH200, EFA 32x100G", 4, 32, "aws-p5e", "likely", 400),
    ("AWS p4d.24xlarge", 2, 16, "aws-p4d", "certain", 50),
    ("8xA100 4x100G EFA", 2, 16, "aws-p4d", "likely", 50),
    ("8xA100 HDR200", 4, 32, "a100x8-ib200", "likely", 200),
    ("8xH100, HDR200 x4", 2, 16, "h100x8-ib400", "likely", 100),
    ("8xH100 SXM, 1.6 Tbps InfiniBand", 2, 16, "h100x8-ib400", "likely", 200),
    ("8xB200, 8x CX-7 NDR400", 4, 32, "b200x8-ib400", "likely", 400),
    ("4xH100 94GB SXM, 4x NDR200", 2, 8, "h100x4-ib400", "likely", 100),
    ("GB300 NVL72, XDR800/GPU", 72, 288, "azure-nd-gb300-v6", "likely", 400),
    ("Perlmutter", 8, 32, "perlmutter", "certain", 100),
    ("4xMI250X Frontier", 2, 16, "frontier", "certain", 100),
    ("V100 DGX-1, 4x EDR", 2, 16, "v100x8-ib100", "certain", 50),
    ("H100 NVL x4", 1, 4, "pcie-gen5", "certain", None),
    ("A100-PCIE-40GB x2", 1, 2, "pcie-gen4", "certain", None),
    ("8x L40S PCIe", 1, 8, "pcie-gen4", "certain", None),
    ("HDR200", 2, 16, "a100x8-ib200", "assumed", 200),
    ("NDR400", 2, 16, "h100x8-ib400", "assumed", 400),
    ("Slingshot-11", 2, 8, "perlmutter", "assumed", 100),
    ("RoCE", 2, 16, "h100x8-roce400", "assumed", 400),
    ("8xH100 in a basement", 2, 16, "h100x8-ib400", "assumed", 400),
    ("Gaudi3, 24x 200 GbE", 2, 16, "unknown", "unknown", None),
    ("", 2, 16, "unknown", "unknown", None),
]


def node_gbps(fabric: Fabric) -> float | None:
    return None if fabric.inter is None or fabric.inter.node_gbps is None else fabric.inter.node_gbps.value


@pytest.mark.parametrize(("text", "nodes", "gpus", "name", "sure", "rate"), SWEEPS + OTHERS)
def test_a_description_means_this_fabric(text, nodes, gpus, name, sure, rate):
    fabric, how_sure = fabric_of_hardware(text, nodes, gpus)
    assert fabric.name == name
    assert how_sure.startswith(f"{sure}: ")
    assert how_sure in fabric.provenance or fabric == UNKNOWN
    assert node_gbps(fabric) == rate


def test_every_sweep_has_its_fabric():
    expected = {text: name for text, _, _, name, _, _ in SWEEPS}
    with shared("sweeps", "INDEX.csv").open() as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        fabric, _ = fabric_of_hardware(row["hardware"], int(row["nodes"]), int(row["gpus"]))
        assert fabric != UNKNOWN
        if int(row["nodes"]) > 1 and row["hardware"] in expected:
            assert fabric.inter is not None
        if "xxrjun" not in row["hardware"]:
            assert fabric.name == expected[row["hardware"]]


def test_what_the_text_gives_goes_before_what_is_shipped():
    fabric, _ = fabric_of_hardware("8xH100 SXM, 4x CX-6 HDR200", 2, 16)
    shipped = load_fabric("h100x8-ib400")
    assert fabric.inter is not None
    assert shipped.inter is not None
    assert (fabric.inter.node_gbps, fabric.inter.cards, fabric.inter.rank_gbps) != (
        shipped.inter.node_gbps,
        shipped.inter.cards,
        shipped.inter.rank_gbps,
    )
    numbers = (fabric.inter.node_gbps, fabric.inter.cards, fabric.inter.rank_gbps)
    assert [number.value for number in numbers if number is not None] == [100, 4, 25]
    assert all(number is not None and "4x CX-6 HDR200" in number.source for number in numbers)
    # Shares of the rate, and the link inside, stay.
    assert fabric.inter.reached == shipped.inter.reached
    assert fabric.intra == shipped.intra


def test_the_accelerator_that_is_named_is_taken():
    for text, name in (("8xA100-40 HDR", "a100-sxm-40gb"), ("8xA100-80 HDR", "a100-sxm-80gb")):
        gpu = fabric_of_hardware(text, 2, 16)[0].gpu
        assert gpu is not None
        assert gpu.name == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("8x CX-7 IB NDR400", NetworkWords("infiniband", 8, 400)),
        ("4x 200 Gb/s InfiniBand", NetworkWords("infiniband", 4, 200)),
        ("NVLink 900 GB/s, 8 CX-7 NICs", NetworkWords(None, 8, 400)),
        ("3.2 Tbps RoCE", NetworkWords("roce", node_gbit=3200)),
        ("EFA 3200 Gbps", NetworkWords("efa", node_gbit=3200)),
        ("100GbE", NetworkWords("ethernet", None, 100)),
        ("400 Gbps per GPU", NetworkWords(None, None, 400, each_gpu=True)),
        ("80GB HBM3, NCCL 2.29.2, NVLink4, PCIe Gen5, NVL72", NetworkWords()),
        ("DGX-1, EDR", NetworkWords("infiniband", None, 100)),
        ("Slingshot-11", NetworkWords("slingshot")),
        ("library ibverbs", NetworkWords()),
    ],
)
def test_words_of_networks(text, said):
    assert network_words(text) == said


@given(st.text(max_size=200))
def test_any_text_gives_an_answer(text):
    fabric, sure = fabric_of_hardware(text, 2, 16)
    assert sure.split(":")[0] in ("certain", "likely", "assumed", "unknown")
    assert (fabric == UNKNOWN) == sure.startswith("unknown")
