"""What a host says of its make and its network cards, from files as Linux lays them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardtoll.profiler.live.session.machine import machine_hint, nccl_version, ranks_per_node


def card(
    root: Path, name: str, *, rate: str = "", layer: str = "", state: str = "4: ACTIVE", vendor: str = ""
) -> None:
    port = root / "class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (root / "class/infiniband" / name / "device").mkdir()
    for path, text in ((port / "rate", rate), (port / "link_layer", layer), (port / "state", state)):
        path.write_text(f"{text}\n")
    (root / "class/infiniband" / name / "device/vendor").write_text(f"{vendor}\n")


def product(root: Path, name: str) -> None:
    (root / "class/dmi/id").mkdir(parents=True)
    (root / "class/dmi/id/product_name").write_text(f"{name}\n")


def test_a_host_that_says_nothing_has_no_hint(tmp_path):
    assert machine_hint(tmp_path, {}) is None


def test_an_instance_of_aws(tmp_path):
    product(tmp_path, "p5.48xlarge")
    for number in range(32):
        card(tmp_path, f"rdmap{number}s0", vendor="0x1d0f", layer="Unspecified")
    environment = {"FI_PROVIDER": "efa", "HOME": "/secret"}
    assert machine_hint(tmp_path, environment) == "p5.48xlarge; 32x efa; FI_PROVIDER=efa"


def test_the_network_that_carries_most_is_told(tmp_path):
    for number in range(8):
        card(tmp_path, f"mlx5_{number}", rate="400 Gb/sec (4X NDR)", layer="InfiniBand", vendor="0x15b3")
    card(tmp_path, "mlx5_an0", rate="100 Gb/sec (4X EDR)", layer="Ethernet", vendor="0x15b3")
    card(tmp_path, "mlx5_down", rate="400 Gb/sec (4X NDR)", layer="InfiniBand", state="1: DOWN")
    assert machine_hint(tmp_path, {}) == "8x infiniband 400 Gb/s"


def test_cards_of_slingshot(tmp_path):
    for number in range(4):
        (tmp_path / f"class/cxi/cxi{number}").mkdir(parents=True)
    assert machine_hint(tmp_path, {}) == "4x slingshot"


def test_a_hint_is_bounded(tmp_path):
    product(tmp_path, "x" * 10_000)
    hint = machine_hint(tmp_path, {"NCCL_NET": "y" * 10_000})
    assert hint is not None
    assert len(hint) <= 200


@pytest.mark.parametrize("backend", [None, "gloo", "fake"])
def test_a_job_without_nccl_has_no_version(backend):
    assert nccl_version(backend) is None


def torchrun(rank: int, local: int) -> dict[str, str]:
    return {
        "LOCAL_WORLD_SIZE": str(local),
        "LOCAL_RANK": str(rank % local),
        "GROUP_RANK": str(rank // local),
    }


@pytest.mark.parametrize("rank", range(4))
def test_torchrun_tells_it(rank: int) -> None:
    assert ranks_per_node(rank, 4, torchrun(rank, 2)) == 2
    assert ranks_per_node(rank, 4, torchrun(rank, 4)) == 4


def test_other_launchers_number_nodes_by_another_name() -> None:
    assert ranks_per_node(3, 4, {"LOCAL_WORLD_SIZE": "2", "NODE_RANK": "1"}) == 2


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"LOCAL_WORLD_SIZE": "2"},
        {"GROUP_RANK": "1"},
        torchrun(3, 2) | {"GROUP_RANK": "0"},
        torchrun(3, 2) | {"LOCAL_RANK": "0"},
        torchrun(3, 2) | {"LOCAL_WORLD_SIZE": "3"},
        torchrun(3, 2) | {"LOCAL_WORLD_SIZE": "0"},
        torchrun(3, 2) | {"LOCAL_WORLD_SIZE": "two"},
        torchrun(3, 2) | {"GROUP_RANK": "-1"},
    ],
)
def test_what_does_not_fit_this_rank_is_not_believed(variables: dict[str, str]) -> None:
    assert ranks_per_node(3, 4, variables) is None
