"""Which fabric a job gets, how sure that is said to be, and what else is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers import run
from shardtoll.analyzers.roofline import (
    UNKNOWN,
    Fabric,
    Placement,
    choose_fabric,
    collective_cost,
    describes,
    find_gpu,
    load_fabric,
)
from shardtoll.analyzers.roofline.machines import load
from shardtoll.analyzers.roofline.machines.gpu import named
from tests.unit.analyzers.ledgers import ledger, run_of, step

H100 = "NVIDIA H100 80GB HBM3"


def test_files_of_other_accelerators_are_not_parsed_and_none_that_fits_is_missed():
    every = load.known_fabrics()
    devices = {f"NVIDIA {name}-80GB" for fabric in every for name in fabric.device_names}
    for device in sorted(devices | {H100, "NVIDIA H100 PCIe", "NVIDIA A100-PG509-200", "a CPU"}):
        fitting = [each for each in every if named(device, each.device_names, each.device_names_not)]
        assert load.fabrics_of(device) == fitting, device
    load._shipped.cache_clear()
    assert load.fabrics_of(H100)
    assert load._shipped.cache_info().currsize < len(every) / 3


def chosen(world_size: int = 8, hosts: int = 1, **given: object) -> Fabric:
    names = tuple(f"host{number}" for number in range(hosts))
    values = {"backend": "nccl", "hosts": names, "ranks_per_host": world_size // hosts} | given
    return choose_fabric(run_of(world_size, **values))


@pytest.mark.parametrize(
    ("device", "name"),
    [
        (H100, "h100x8"),
        ("NVIDIA H200", "h200x8"),
        ("NVIDIA B200", "b200x8"),
        ("NVIDIA GB200", "gb200-nvl72"),
        ("NVIDIA A100-SXM4-80GB", "a100x8"),
        ("NVIDIA A100-PG509-200", "a100x8"),
        ("Tesla V100-SXM2-16GB", "v100x8-mesh"),
        ("AMD Instinct MI300X", "mi300x8"),
        ("NVIDIA A100-PCIE-40GB", "pcie-gen4"),
        ("NVIDIA H100 PCIe", "pcie-gen5"),
        ("NVIDIA H100 NVL", "pcie-gen5"),
        ("NVIDIA L40S", "pcie-gen4"),
        ("Tesla T4", "pcie-gen3"),
    ],
)
def test_a_job_on_one_node_is_certain(device, name):
    fabric = chosen(device=device)
    assert fabric.name == name
    assert f"(certain: {device} on one node)" in fabric.provenance
    assert fabric.gpu == (find_gpu(device) or fabric.gpu)
    assert fabric.inter is None


@pytest.mark.parametrize(
    ("device", "backend"),
    [
        ("NVIDIA A100X", "nccl"),
        ("Some Accelerator 9000", "nccl"),
        ("cpu", "fake"),
        (H100, "fake"),
        ("cpu", None),
        (None, None),
        ("cpu", "mpi"),
    ],
)
def test_a_job_that_nothing_fits_has_no_fabric(device, backend):
    assert chosen(device=device, backend=backend) == UNKNOWN
    assert "unknown" in UNKNOWN.provenance


@pytest.mark.parametrize(
    ("device", "backend"), [("cpu", "gloo"), (None, "gloo"), ("cpu", "cpu:gloo,cuda:nccl")]
)
def test_a_job_without_accelerators_goes_by_its_backend(device, backend):
    fabric = chosen(device=device, backend=backend)
    assert fabric.name == "loopback-gloo"
    assert f"(assumed: backend {backend} on this machine)" in fabric.provenance


def test_four_of_a_node_may_be_all_of_it():
    fabric = chosen(4, device=H100)
    assert fabric.name == "h100x8"
    assert f"(likely: {H100} on one node; it could as well be h100x4)" in fabric.provenance


def test_a_network_that_is_not_on_record_is_assumed_and_others_are_named():
    fabric = chosen(16, 2, device=H100)
    assert fabric.name == "h100x8-ib400"
    assert f"(assumed: {H100}; which network is between nodes is not on record; it could" in fabric.provenance
    assert "aws-p5, gcp-a3-high, gcp-a3-mega" in fabric.provenance
    # Its rates are published ones, and still guesses for this job: every cost over it says so.
    assert set(fabric.guesses) >= {"inter.rank_gbps", "inter.node_gbps", "inter.cards"}
    assert all(name.startswith("inter.") for name in fabric.guesses)
    cost = collective_cost(fabric, "all_reduce", 1 << 30, Placement(16, 2, 8))
    told = chosen(16, 2, device=H100, machine="8x infiniband 400 Gb/s")
    known = collective_cost(told, "all_reduce", 1 << 30, Placement(16, 2, 8))
    assert told.guesses == ()
    assert cost is not None
    assert known is not None
    assert "inter.rank_gbps" in cost.guesses
    assert known.guesses == ()
    assert cost.time_ns == known.time_ns
    # Half the time, but for the speed of light of the network that is assumed.
    assert cost.low_ns <= max(cost.light_ns, cost.time_ns // 2)
    assert cost.high_ns > 2 * cost.time_ns
    assert cost.high_ns - cost.low_ns > 2 * (known.high_ns - known.low_ns)
    assert chosen(8, 2, device="NVIDIA A100-SXM4-40GB").name == "a100x4-ib200"


def test_ranks_that_left_no_records_may_be_on_other_hosts():
    fabric = chosen(16, device=H100, ranks_per_host=None, ranks_seen=tuple(range(8)))
    assert "assumed" in fabric.provenance


@pytest.mark.parametrize(
    ("device", "machine", "name", "sure"),
    [
        (H100, "p5.48xlarge; 32x efa", "aws-p5", "certain: `p5.48xlarge` is named"),
        ("NVIDIA H200", "p5en.48xlarge; 16x efa", "aws-p5en", "certain: `p5en.48xlarge` is named"),
        (H100, "Virtual Machine; 8x infiniband 400 Gb/s", "h100x8-ib400", f"likely: {H100}, infiniband"),
        (H100, "Google Compute Engine; NCCL_NET=FasTrak", "gcp-a3-mega", "certain: `fastrak` is named"),
        (H100, "Google Compute Engine; NCCL_NET=GPUDirectTCPX_v7", "gcp-a3-high", "certain: `gpudirecttcpx`"),
        (
            "NVIDIA H200",
            "Google Compute; 8x roce 400 Gb/s",
            "gcp-a3-ultra",
            "likely: NVIDIA H200, roce",
        ),
        ("NVIDIA A100-SXM4-40GB", "2x slingshot", "perlmutter", "could as well be polaris"),
        ("NVIDIA A100-SXM4-80GB", "DGXA100; 8x infiniband 200 Gb/s", "a100x8-ib200", "likely: "),
        # A machine that cannot have such a device is not believed.
        (H100, "p4d.24xlarge", "h100x8-ib400", "assumed: "),
    ],
)
def test_what_the_machine_says_of_itself_decides(device, machine, name, sure):
    ranks = 4 if "slingshot" in machine else 8
    fabric = chosen(2 * ranks, 2, device=device, machine=machine)
    assert fabric.name == name
    assert sure in fabric.provenance


@pytest.mark.parametrize(
    ("fabric", "device", "told"),
    [
        ("h100x8-ib400", "NVIDIA A100-PG509-200", "the job ran on NVIDIA A100-PG509-200"),
        ("h100x8-ib400", "cpu", "the job ran on CPUs"),
        ("h100x8-ib400", "NVIDIA H100 80GB HBM3", ""),
        ("h100x8-ib400", None, ""),
        ("a100x8-ib200", "NVIDIA A100-SXM4-80GB", ""),
    ],
)
def test_a_fabric_of_another_accelerator_than_the_jobs_is_told(fabric, device, told):
    backend = "gloo" if device == "cpu" else "nccl"
    report = run(ledger(run=run_of(2, device=device, backend=backend)), load_fabric(fabric))
    assert report.fabric.provenance.count("WARNING: the fabric is of") == int(bool(told))
    assert told in report.fabric.provenance
    if told:
        made = run(ledger(run=run_of(2, device=device, backend=backend), steps=[step()]), load_fabric(fabric))
        assert made.roofline is not None
        assert "H100" not in (made.roofline.gpu or ""), "its peaks are not the job's"


def test_fabrics_of_a_backend_are_found_without_parsing_all():
    from shardtoll.analyzers.roofline.machines.load import fabrics_with, known_fabrics

    named = [fabric for fabric in known_fabrics() if fabric.backends]
    assert named
    assert fabrics_with("backends") == named


def test_a_job_of_one_rank_says_nothing_of_networks():
    fabric = choose_fabric(run_of(1, device=H100, backend=None, hosts=()))
    assert fabric.inter is None
    assert f"({H100}; its one rank uses no links)" in fabric.provenance


def test_a_host_with_a_device_for_each_rank_holds_the_job():
    values = {"device": H100, "backend": "nccl", "hosts": ()}
    assert choose_fabric(run_of(8, devices_per_host=8, **values)).inter is None
    assert choose_fabric(run_of(16, devices_per_host=8, **values)).inter is not None
    assert choose_fabric(run_of(8, devices_per_host=1, **values)).inter is not None


def test_memory_and_chip_name_the_accelerator_of_a_run():
    facts = {"device_memory_bytes": 206_141_652_992, "device_sms": 304, "device_capability": "9.4"}
    report = run(ledger(run=run_of(1, device=None, backend=None, hosts=(), **facts), steps=[step()]))
    assert report.run.device == "AMD Instinct MI300X"
    assert report.fabric.name == "mi300x8"
    a100 = choose_fabric(run_of(2, device="NVIDIA A100-PG509-200", device_memory_bytes=42_505_273_344))
    assert a100.gpu is not None
    assert a100.gpu.name == "a100-sxm-40gb"


def test_a_measured_fabric_is_of_the_machine_whose_accelerator_or_host_it_names():
    gloo = replace(load_fabric("loopback-gloo"), hosts=("host0", "host1"))
    h100 = load_fabric("h100x8")
    on_cpu = {"device": "cpu", "backend": "gloo"}
    assert describes(gloo, run_of(4, hosts=("host1",), **on_cpu))
    assert not describes(gloo, run_of(4, hosts=("host2",), **on_cpu))
    assert not describes(gloo, run_of(4, hosts=(), **on_cpu))
    assert not describes(replace(gloo, hosts=()), run_of(4, hosts=("host1",), **on_cpu))
    assert not describes(gloo, run_of(8, device=H100, backend="nccl", hosts=("host1",)))
    assert describes(h100, run_of(8, device=H100, backend="nccl", hosts=("host7",)))
    assert not describes(h100, run_of(8, device="NVIDIA A100-SXM4-80GB", backend="nccl"))
    assert not describes(h100, run_of(4, hosts=("host1",), **on_cpu))
    assert not describes(h100, run_of(8, device=H100, backend="fake", source="dry"))
    assert not describes(h100, run_of(8, device=None, backend="nccl"))


def test_the_fabric_of_a_dry_run_is_the_one_on_record():
    fabric = chosen(64, backend="fake", device=H100, source="dry", fabric="h100x8-ib400")
    assert fabric.name == "h100x8-ib400"
    assert fabric.provenance.endswith("(named by the run)")
    assert fabric.gpu == find_gpu(H100)
    assert chosen(64, fabric="gone.toml", backend="fake", device=H100) is UNKNOWN
