"""The backend of a group, whatever its process group was made with."""

from __future__ import annotations

import pytest

from shardtoll.ledger import Group
from shardtoll.profiler.live.cause.backends import by_device, chosen
from shardtoll.profiler.live.cause.groups import Groups


@pytest.mark.parametrize(
    ("name", "config", "device", "backend"),
    [
        ("gloo", "cpu:gloo,cuda:gloo", "cpu", "gloo"),
        ("nccl", "cuda:nccl", "cuda", "nccl"),
        # The job computes where its backend has no entry: the name it was given stands.
        ("nccl", "cuda:nccl", "cpu", "nccl"),
        # init_process_group() and init_device_mesh() alone.
        ("undefined", "cpu:gloo", "cpu", "gloo"),
        ("undefined", "cpu:gloo,cuda:nccl", "cuda", "nccl"),
        ("undefined", "cpu:gloo,cuda:nccl", "cpu", "gloo"),
        ("undefined", "cpu:gloo,cuda:nccl,xpu:xccl", "xpu", "xccl"),
        ("undefined", "cpu:gloo,cuda:nccl", None, "gloo"),
        ("undefined", "cpu:gloo", "cuda", "gloo"),
        # By device.
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", "cuda", "nccl"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,cuda:nccl", "cpu", "gloo"),
        ("cpu:gloo", "cpu:gloo", "cpu", "gloo"),
        ("fake", "cpu:fake,cuda:fake", "cpu", "fake"),
        ("mine", "", "cpu", "mine"),
        ("undefined", "", "cpu", "undefined"),
    ],
)
def test_the_backend_of_a_kind_of_device(name: str, config: str, device: str | None, backend: str) -> None:
    assert chosen(name, config, device) == backend


def test_a_text_without_devices_lists_none() -> None:
    assert by_device("gloo") == {}
    assert by_device("cpu:gloo, cuda:nccl") == {"cpu": "gloo", "cuda": "nccl"}


def test_a_job_runs_on_the_backend_of_the_groups_that_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = Groups("cuda")
    monkeypatch.setattr(groups, "record", lambda group: group)
    assert groups.backend() is None
    # The default group carries a few objects, the others the gradients; a group of one rank carries nothing.
    for group, times in (
        (Group("0", (0, 1), backend="gloo"), 2),
        (Group("1", (0, 1), backend="nccl"), 3),
        (Group("2", (0,), backend="fake"), 9),
    ):
        for _ in range(times):
            assert groups.used(group) is group
    assert groups.backend() == "nccl"
